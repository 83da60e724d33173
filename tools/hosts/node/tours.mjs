// The tour of ../tours.py with the frameworks of npm: `node tours.mjs FRAMEWORK TRANSPORT TARGET`.

import { createMCPClient } from "@ai-sdk/mcp";
import { StdioMCPTransport } from "@ai-sdk/mcp/mcp-stdio";
import { MultiServerMCPClient } from "@langchain/mcp-adapters";

const CALLS = {
  hello: { name: "Ada" },
  place: { city: "Oslo" },
  numbers: { count: 3 },
  paint: { colour: "blue" },
  photo: {},
  fail: {},
  crash: {},
};
const URI = "tour://tide";

const outcomes = {};

async function step(name, use) {
  try {
    outcomes[name] = { value: (await use()) ?? null };
  } catch (error) {
    outcomes[name] = { raises: error.name, text: error.message.slice(0, 200) };
  }
}

async function aiSdk(transport, target) {
  const client = await createMCPClient({
    transport:
      transport === "stdio"
        ? new StdioMCPTransport({ command: target[0], args: target.slice(1), stderr: "ignore" })
        : { type: transport, url: target },
  });
  try {
    const tools = await client.tools();
    await step("tools", async () => {
      const schemas = {};
      for (const [name, tool] of Object.entries(tools)) {
        schemas[name] = [tool.description, await tool.inputSchema.jsonSchema];
      }
      return schemas;
    });
    for (const [name, args] of Object.entries(CALLS)) {
      const options = { toolCallId: "1", messages: [] };
      await step(name, async () => {
        const output = await tools[name].execute(args, options);
        return tools[name].toModelOutput({ toolCallId: "1", input: args, output });
      });
    }
    await step("resource", () => client.readResource({ uri: URI }));
    await step("prompt", () => client.getPrompt({ name: "plan", arguments: { city: "Oslo" } }));
  } finally {
    await client.close();
  }
}

async function langchain(transport, target) {
  const client = new MultiServerMCPClient({
    mcpServers: {
      tour:
        transport === "stdio"
          ? { transport, command: target[0], args: target.slice(1), stderr: "ignore" }
          : { transport, url: target, automaticSSEFallback: false },
    },
  });
  try {
    const tools = Object.fromEntries((await client.getTools()).map((tool) => [tool.name, tool]));
    await step("tools", () =>
      Object.fromEntries(
        Object.entries(tools).map(([name, tool]) => [name, [tool.description, tool.schema]]),
      ),
    );
    for (const [name, args] of Object.entries(CALLS)) {
      await step(name, async () => {
        const call = { name, args, id: "1", type: "tool_call" };
        const { content, artifact } = await tools[name].invoke(call);
        return { content, artifact };
      });
    }
    await step("resource", () => client.readResource("tour", URI));
  } finally {
    await client.close();
  }
}

const [framework, transport, text] = process.argv.slice(2);
const tour = { "@ai-sdk/mcp": aiSdk, "@langchain/mcp-adapters": langchain }[framework];
try {
  await tour(transport, transport === "stdio" ? JSON.parse(text) : text);
} catch (error) {
  outcomes.tour = { raises: error.name, text: error.message.slice(0, 300) };
}
console.log(`\n${JSON.stringify(outcomes)}`);
process.exit();
