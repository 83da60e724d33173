// The server of both eras that is measured beside ours, by the official TypeScript SDK 2.
//
// Its packages are looked for beside this file, so the benchmark puts a copy of it into a folder
// that has them.

import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

function makeServer() {
  const server = new McpServer({ name: "bench", version: "0" });
  server.registerTool(
    "add",
    {
      description: "Add two numbers.",
      inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
    },
    async ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }] }),
  );
  return server;
}

serveStdio(makeServer);
