// The server that is measured beside ours, by the official TypeScript SDK.
//
// `node server_typescript.mjs [--tools N] [--websocket PORT]`; its packages are looked for beside this file, so the
// benchmark puts a copy of it into a folder that has them.

import { parseArgs } from "node:util";

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "bench", version: "0" });

/** @param {unknown} value */
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });

/**
 * Offer a tool that adds.
 * @param {string} name
 * @param {string} description
 * @param {number} number what is added to the two
 */
function offerAdd(name, description, number) {
  server.registerTool(
    name,
    { description, inputSchema: { a: z.number().int(), b: z.number().int() } },
    async ({ a, b }) => text(a + b + number),
  );
}

offerAdd("add", "Add two numbers.", 0);

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

const { values } = parseArgs({
  options: { tools: { type: "string", default: "0" }, websocket: { type: "string" } },
});
for (let number = 0; number < Number(values.tools); number += 1) {
  offerAdd(`add_${number}`, `Add two numbers and ${number}.`, number);
}

/** Take the one connection that is measured. */
async function serveWebSocket(port) {
  const { listenOn, SocketTransport } = await import("./websocket.mjs");
  const listener = listenOn({ host: "127.0.0.1", port });
  listener.once("connection", (socket) => server.connect(new SocketTransport(socket)));
}

if (values.websocket) await serveWebSocket(Number(values.websocket));
else await server.connect(new StdioServerTransport());
