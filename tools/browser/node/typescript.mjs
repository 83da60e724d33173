// Clients of the official TypeScript SDKs, for `CLIENTS` of `page/visit.js`; esbuild bundles them.

import * as newest from "@modelcontextprotocol/client";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";

const INFO = { name: "typescript", version: "1" };
const MODES = { legacy: "legacy", stateless: { pin: "2026-07-28" } };

const TRANSPORTS = {
  "TypeScript 1": {
    websocket: WebSocketClientTransport,
    http: StreamableHTTPClientTransport,
    sse: SSEClientTransport,
  },
  "TypeScript 2": {
    http: newest.StreamableHTTPClientTransport,
    sse: newest.SSEClientTransport,
  },
};

/** Call `greet` with an SDK's client, and return the outcome. */
async function callGreet(client, task, call) {
  const progress = [];
  await client.connect(new TRANSPORTS[task.client][task.transport](new URL(task.url)));
  const { tools } = await client.listTools();
  const called = await call(({ message }) => progress.push(message));
  await client.close();
  const offered = tools.map((tool) => tool.name);
  return { result: "answered", text: called.content[0].text, progress, offered };
}

globalThis.typescript = {
  "TypeScript 1": (task) => {
    const client = new Client(INFO);
    const params = { name: "greet", arguments: { name: task.name } };
    return callGreet(client, task, (onprogress) => client.callTool(params, undefined, { onprogress }));
  },
  "TypeScript 2": (task) => {
    const client = new newest.Client(INFO, { versionNegotiation: { mode: MODES[task.mode] } });
    const params = { name: "greet", arguments: { name: task.name } };
    return callGreet(client, task, (onprogress) => client.callTool(params, { onprogress }));
  },
};
