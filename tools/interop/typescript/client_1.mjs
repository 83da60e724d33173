// Run the scenario with the official TypeScript SDK 1: `node client_1.mjs PROTOCOL_VERSION SERVER…`.
// The server is a command, a URL, or after `hub` a command that dials. With `legacy` in place of
// the version, the SDK chooses the version, and the client only calls one tool.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { WebSocket } from "ws";

import { Rejected, has } from "./facts.mjs";
import { Host } from "./host.mjs";
import { capabilitiesAt, greet, run } from "./scenario.mjs";
import { transportTo } from "./connections.mjs";

const [wanted, ...server] = process.argv.slice(2);
const protocolVersion = wanted === "legacy" ? types.LATEST_PROTOCOL_VERSION : wanted;

const host = new Host();
const client = new Client(
  { name: "typescript", version: "1" },
  { capabilities: capabilitiesAt(protocolVersion) },
);

/** Convert a rejection to the error of the SDK. */
function toSdkError(error) {
  if (!(error instanceof Rejected)) throw error;
  throw new types.McpError(error.code, error.message);
}

client.setRequestHandler(types.CreateMessageRequestSchema, async ({ params }, extra) => {
  const report = (progress) =>
    extra.sendNotification({
      method: "notifications/progress",
      params: { progressToken: extra._meta.progressToken, ...progress },
    });
  return host.sample(params, { report, signal: extra.signal }).catch(toSdkError);
});
client.setRequestHandler(types.ListRootsRequestSchema, async () => host.listRoots());
if (has(protocolVersion, "elicitation")) {
  client.setRequestHandler(types.ElicitRequestSchema, async ({ params }) => host.elicit(params));
}

for (const schema of [
  types.LoggingMessageNotificationSchema,
  types.ResourceUpdatedNotificationSchema,
  types.ToolListChangedNotificationSchema,
  types.PromptListChangedNotificationSchema,
  types.ResourceListChangedNotificationSchema,
  types.ElicitationCompleteNotificationSchema,
]) {
  client.setNotificationHandler(schema, (notification) => host.receive(notification));
}
client.onerror = (error) => host.addError(error);

const fetches = {
  tools: client.listTools,
  resources: client.listResources,
  resourceTemplates: client.listResourceTemplates,
  prompts: client.listPrompts,
};

const session = {
  call: (name, given, options) => client.callTool({ name, arguments: given }, undefined, options),
  /** Return the items of all pages. */
  async list(member) {
    const items = [];
    let cursor;
    do {
      const page = await fetches[member].call(client, cursor === undefined ? undefined : { cursor });
      items.push(...page[member]);
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return items;
  },
  read: async (uri) => (await client.readResource({ uri })).contents,
  getPrompt: async (name, given) => (await client.getPrompt({ name, arguments: given })).messages,
  complete: async (params) => (await client.complete(params)).completion.values,
  ping: () => client.ping(),
  setLevel: (level) => client.setLoggingLevel(level),
  rootsChanged: () => client.sendRootsListChanged(),
  async subscription(uri, body) {
    await client.subscribeResource({ uri });
    await body();
    await client.unsubscribeResource({ uri });
  },
  listChanges: (body) => body(),
};

// The SDK's transport uses the global of browsers.
globalThis.WebSocket = WebSocket;

const transports = {
  Stdio: StdioClientTransport,
  Http: StreamableHTTPClientTransport,
  Sse: SSEClientTransport,
  Socket: WebSocketClientTransport,
};

/** Return a transport that requests this protocol version; the SDK requests its newest one. */
async function transport() {
  const made = await transportTo(server, transports);
  const send = made.send.bind(made);
  made.send = (message, ...options) => {
    if (message.method === "initialize") message.params.protocolVersion = protocolVersion;
    return send(message, ...options);
  };
  const agree = made.setProtocolVersion?.bind(made);
  made.setProtocolVersion = (agreed) => {
    session.protocolVersion = agreed;
    agree?.(agreed);
  };
  return made;
}

await client.connect(await transport());
session.capabilities = client.getServerCapabilities();
await (wanted === "legacy" ? greet(session) : run(session, host, protocolVersion));
await client.close();
