// Call the server of tools/interop/instances_failures.py by the official TypeScript SDK:
// `node instances_client.mjs URL NAMES SECONDS`. Prints one line for each call: the key, the
// outcome, the milliseconds, and the numbers of different messages and of those received again.

import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, names, seconds] = process.argv.slice(2);
const end = Date.now() + 1000 * Number(seconds);

async function callUntilEnd(name) {
  let number = 0;
  while (Date.now() < end) {
    const received = [];
    const client = new Client({ name: "many", version: "1" }, { capabilities: {} });
    client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => {
      received.push(String(params.data));
    });
    client.onerror = () => {};
    try {
      await client.connect(new StreamableHTTPClientTransport(new URL(url)));
      while (Date.now() < end) {
        number += 1;
        const tool = number % 10 === 0 ? "report" : "add";
        const key = `${name}-${number}`;
        const began = performance.now();
        let outcome = "unknown";
        try {
          const call = { name: tool, arguments: { key } };
          const result = await client.callTool(call, undefined, { timeout: 30000 });
          outcome = result.isError ? "error" : "answered";
        } finally {
          const notes = received.filter((each) => each.startsWith(`${key} `));
          const messages = new Set(notes).size;
          const milliseconds = (performance.now() - began).toFixed(1);
          console.log(key, outcome, milliseconds, messages, notes.length - messages);
        }
        await sleep(200);
      }
    } catch (error) {
      console.error("#", name, String(error));
      await sleep(500);
    } finally {
      await client.close().catch(() => {});
    }
  }
}

await Promise.all(names.split(",").map(callUntilEnd));
process.exit(0);
