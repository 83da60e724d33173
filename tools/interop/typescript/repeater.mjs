// Repeat a recorded session with the official TypeScript SDK: `node repeater.mjs SCRIPT SERVER…`.
// ../mocks.py describes the script, and what is printed.

import { readFileSync } from "node:fs";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

const [script, command, ...args] = process.argv.slice(2);
const { requests, replies } = JSON.parse(readFileSync(script, "utf8"));
const { protocol_version: protocolVersion } = JSON.parse(readFileSync(new URL("../facts.json", import.meta.url), "utf8"));

const answers = [];
const serverRequests = [];
const notifications = [];
const errors = [];

const client = new Client(
  { name: "typescript", version: "1" },
  { capabilities: { roots: { listChanged: true }, sampling: {} } },
);
for (const schema of [types.ListRootsRequestSchema, types.CreateMessageRequestSchema]) {
  client.setRequestHandler(schema, async ({ method, params }) => {
    serverRequests.push({ method, params });
    return replies[method];
  });
}
client.fallbackNotificationHandler = async ({ method, params }) => {
  notifications.push({ method, params });
};
client.onerror = ({ message }) => {
  // The SDK treats a report that arrives together with its answer as an error (typescript-sdk#2580).
  const [, lost] = message.match(/progress notification for an unknown token: (.*)/) ?? [];
  if (lost === undefined) errors.push(message);
  else notifications.push(JSON.parse(lost));
};

/** Send a recorded request again, and keep its answer. */
async function repeat({ method, params, wantsProgress }) {
  const onprogress = (progress) =>
    notifications.push({ method: "notifications/progress", params: progress });
  try {
    const options = wantsProgress ? { onprogress } : {};
    const result = await client.request({ method, params }, types.ResultSchema, options);
    answers.push({ result });
  } catch (error) {
    if (!(error instanceof types.McpError)) throw error;
    const { code, data } = error;
    // The SDK puts this before the message that was sent.
    answers.push({ error: { code, message: error.message.replace(`MCP error ${code}: `, ""), data } });
  }
}

/** Return a transport that requests the recorded protocol version; the SDK requests a newer one. */
function transport() {
  const made = new StdioClientTransport({ command, args });
  const send = made.send.bind(made);
  made.send = (message, ...options) => {
    if (message.method === "initialize") message.params.protocolVersion = protocolVersion;
    return send(message, ...options);
  };
  made.setProtocolVersion = (agreed) => (made.agreed = agreed);
  return made;
}

const server = transport();
await client.connect(server);
answers.push({
  result: {
    protocolVersion: server.agreed,
    capabilities: client.getServerCapabilities(),
    serverInfo: client.getServerVersion(),
    instructions: client.getInstructions(),
  },
});
for (const request of requests) await repeat(request);
// Everything that the server sent before this answer has been received.
await client.ping();
await client.close();
console.log(JSON.stringify({ answers, serverRequests, notifications, errors }));
