// The client of `round_trips.py`, by the official TypeScript SDK 2.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [protocolVersion, command, ...args] = process.argv.slice(2);
const isStateless = protocolVersion === "2026-07-28";
const WARM_UP = 100;
const CALLS = 500;

const client = new Client(
  { name: "bench", version: "0" },
  { versionNegotiation: { mode: isStateless ? { pin: protocolVersion } : "legacy" } },
);
await client.connect(
  args.length
    ? new StdioClientTransport({ command, args })
    : new StreamableHTTPClientTransport(new URL(command)),
);
const seconds = [];
let cpuBegin;
for (let number = 0; number < WARM_UP + CALLS; number += 1) {
  if (number === WARM_UP) cpuBegin = process.cpuUsage();
  const begin = performance.now();
  const result = await client.callTool({ name: "add", arguments: { a: number, b: 1 } });
  if (number >= WARM_UP) seconds.push((performance.now() - begin) / 1000);
  if (result.content[0].text !== `${number + 1}`) throw new Error(JSON.stringify(result));
}
const { user, system } = process.cpuUsage(cpuBegin);
console.log(JSON.stringify({ seconds, cpu_seconds: (user + system) / 1_000_000 }));
await client.close();
