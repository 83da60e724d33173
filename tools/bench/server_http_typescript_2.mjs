// The stateless server that is measured over HTTP beside ours, by the official TypeScript SDK 2.
//
// `node server_http_typescript_2.mjs --port N`, on Node's own HTTP server through the adapter that
// the SDK 1 uses, too. For its packages see `server_typescript.mjs`.

import { createServer } from "node:http";
import { parseArgs } from "node:util";

import { getRequestListener } from "@hono/node-server";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { z } from "zod";

const { values } = parseArgs({ options: { port: { type: "string" }, form: { type: "string" } } });
const inputSchema = z.object({ a: z.number().int(), b: z.number().int() });

function makeServer() {
  const server = new McpServer({ name: "bench", version: "0" });
  server.registerTool("add", { description: "Add two numbers.", inputSchema }, async ({ a, b }) => ({
    content: [{ type: "text", text: String(a + b) }],
  }));
  return server;
}

const handler = createMcpHandler(makeServer);
const listener = createServer(getRequestListener((request) => handler.fetch(request)));
listener.listen(Number(values.port), "127.0.0.1");
