// The scenario, told by the official TypeScript SDK 1: `node client_1.mjs PROTOCOL_VERSIONS SERVER…`.
// The server is a command, or a URL; or a command that dials, with `hub` in front.
// With `legacy` instead of the protocolVersion, the SDK's own choice, it only greets.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { WebSocket } from "ws";

import { Refused, has } from "./facts.mjs";
import { Host } from "./host.mjs";
import { capabilitiesAt, greet, tell } from "./scenario.mjs";
import { transportTo } from "./web.mjs";

const [wanted, ...place] = process.argv.slice(2);
const protocolVersion = wanted === "legacy" ? types.LATEST_PROTOCOL_VERSION : wanted;

const host = new Host();
const client = new Client(
  { name: "typescript", version: "1" },
  { capabilities: capabilitiesAt(protocolVersion) },
);

/** The words of the SDK for a refusal. */
function refusal(error) {
  if (!(error instanceof Refused)) throw error;
  throw new types.McpError(error.code, error.message);
}

client.setRequestHandler(types.CreateMessageRequestSchema, async ({ params }, extra) => {
  const report = (progress) =>
    extra.sendNotification({
      method: "notifications/progress",
      params: { progressToken: extra._meta.progressToken, ...progress },
    });
  return host.sample(params, { report, signal: extra.signal }).catch(refusal);
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
  client.setNotificationHandler(schema, (notification) => host.hear(notification));
}
client.onerror = (error) => host.complain(error);

const fetches = {
  tools: client.listTools,
  resources: client.listResources,
  resourceTemplates: client.listResourceTemplates,
  prompts: client.listPrompts,
};

const session = {
  call: (name, given, options) => client.callTool({ name, arguments: given }, undefined, options),
  /** The items of all pages. */
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
  async watching(uri, body) {
    await client.subscribeResource({ uri });
    await body();
    await client.unsubscribeResource({ uri });
  },
  hearingChanges: (body) => body(),
};

// The SDK's own transport takes what a browser has.
globalThis.WebSocket = WebSocket;

const transports = {
  Stdio: StdioClientTransport,
  Http: StreamableHTTPClientTransport,
  Sse: SSEClientTransport,
  Socket: WebSocketClientTransport,
};

/** A transport to the server, at the protocolVersion that this is about: the SDK offers a newer one. */
async function transport() {
  const made = await transportTo(place, transports);
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
await (wanted === "legacy" ? greet(session) : tell(session, host, protocolVersion));
await client.close();
