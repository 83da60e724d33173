// The server of sessions that is measured over HTTP beside ours, by the official TypeScript SDK.
//
// `node server_http_typescript.mjs --port N --form json|sse`: a server and a transport for each
// session, as its documentation has it, on Node's own HTTP server. For its packages see
// `server_typescript.mjs`.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const { values } = parseArgs({ options: { port: { type: "string" }, form: { type: "string" } } });
const sessions = new Map();

function makeServer() {
  const server = new McpServer({ name: "bench", version: "0" });
  server.registerTool(
    "add",
    { description: "Add two numbers.", inputSchema: { a: z.number().int(), b: z.number().int() } },
    async ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }] }),
  );
  return server;
}

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
listener.listen(Number(values.port), "127.0.0.1");
