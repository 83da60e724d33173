// The benchmarked server on the official TypeScript SDK 2: over stdio at all protocol versions, or
// stateless over HTTP with `--port N`, through the adapter that the SDK 1 uses, too.
//
// Node looks for packages beside this file, so the benchmark copies it into a folder that has them.

import { createServer } from "node:http";
import { parseArgs } from "node:util";

import { getRequestListener } from "@hono/node-server";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
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

if (values.port) {
  const handler = createMcpHandler(makeServer);
  const listener = createServer(getRequestListener((request) => handler.fetch(request)));
  listener.listen(Number(values.port), "127.0.0.1");
} else {
  serveStdio(makeServer);
}
