// The benchmarked server on the official TypeScript SDK 1, over stdio, WebSocket or HTTP:
//
// `node server_typescript.mjs [--tools N] [--websocket PORT | --port PORT --form json|sse]`. Node
// looks for packages beside this file, so the benchmark copies it into a folder that has them. Over
// HTTP each session has a server and a transport, as the SDK's documentation recommends.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const string = { type: "string" };
const { values } = parseArgs({
  options: { tools: { ...string, default: "0" }, websocket: string, port: string, form: string },
});

const text = (value) => ({ content: [{ type: "text", text: String(value) }] });

function makeServer() {
  const server = new McpServer({ name: "bench", version: "0" });
  const addTool = (name, description, number) =>
    server.registerTool(
      name,
      { description, inputSchema: { a: z.number().int(), b: z.number().int() } },
      async ({ a, b }) => text(a + b + number),
    );
  addTool("add", "Add two numbers.", 0);
  server.registerTool(
    "echo",
    { description: "Return the text.", inputSchema: { text: z.string() } },
    async (sent) => text(sent.text),
  );
  server.registerTool(
    "notify",
    { description: "Report progress so many times.", inputSchema: { count: z.number().int() } },
    async ({ count }, { _meta, sendNotification }) => {
      const progressToken = _meta?.progressToken;
      for (let progress = 1; progress <= count; progress += 1) {
        const params = { progressToken, progress, total: count };
        await sendNotification({ method: "notifications/progress", params });
      }
      return text(count);
    },
  );
  for (let number = 0; number < Number(values.tools); number += 1) {
    addTool(`add_${number}`, `Add two numbers and ${number}.`, number);
  }
  return server;
}

/** Serve the one connection that is measured. */
async function serveWebSocket(port) {
  const { listenOn, SocketTransport } = await import("./websocket.mjs");
  const listener = listenOn({ host: "127.0.0.1", port });
  listener.once("connection", (socket) => makeServer().connect(new SocketTransport(socket)));
}

function serveHttp(port) {
  const sessions = new Map();
  async function makeTransport() {
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: values.form === "json",
      onsessioninitialized: (id) => sessions.set(id, transport),
      onsessionclosed: (id) => sessions.delete(id),
    });
    await makeServer().connect(transport);
    return transport;
  }
  const listener = createServer(async (request, response) => {
    const transport = sessions.get(request.headers["mcp-session-id"]) ?? (await makeTransport());
    await transport.handleRequest(request, response);
  });
  listener.listen(port, "127.0.0.1");
}

if (values.websocket) await serveWebSocket(Number(values.websocket));
else if (values.port) serveHttp(Number(values.port));
else await makeServer().connect(new StdioServerTransport());
