// Run the scenario with the official TypeScript SDK 2: `node client_2.mjs PROTOCOL_VERSION SERVER…`.
// The server is a command, a URL, or after `hub` a command that dials. With a version mode
// (`legacy`, `stateless`, `both`) in place of the version, the client only calls one tool; with
// `tour:` before the version, it runs mount_checks.mjs instead.

import {
  Client,
  ProtocolError,
  SSEClientTransport,
  StreamableHTTPClientTransport,
} from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { Rejected, TOUR, facts, has } from "./facts.mjs";
import { Host, NOTIFICATIONS } from "./host.mjs";
import { capabilitiesAt, greet, run } from "./scenario.mjs";
import { DialTransport } from "./websocket.mjs";
import { runMountChecks } from "./mount_checks.mjs";
import { transportTo } from "./connections.mjs";

const [argument, ...server] = process.argv.slice(2);
const isTour = argument.startsWith(TOUR);
const wanted = isTour ? argument.slice(TOUR.length) : argument;
const newest = facts.protocol_versions.at(-1);
const modes = { legacy: "legacy", both: "auto", stateless: { pin: newest } };
const protocolVersion = wanted in modes ? newest : wanted;
const isSession = has(protocolVersion, "sessions");

const host = new Host();
const client = new Client(
  { name: "typescript", version: "2" },
  {
    capabilities: capabilitiesAt(protocolVersion),
    ...(isSession
      ? { supportedProtocolVersions: [protocolVersion] }
      : { versionNegotiation: { mode: modes[wanted] ?? "auto" } }),
  },
);

/** Convert a rejection to the error of the SDK. */
function toSdkError(error) {
  if (!(error instanceof Rejected)) throw error;
  throw new ProtocolError(error.code, error.message);
}

client.setRequestHandler("sampling/createMessage", async ({ params }, { mcpReq }) => {
  const report = (progress) =>
    mcpReq.notify({
      method: "notifications/progress",
      params: { progressToken: mcpReq._meta.progressToken, ...progress },
    });
  return host.sample(params, { report, signal: mcpReq.signal }).catch(toSdkError);
});
client.setRequestHandler("roots/list", async () => host.listRoots());
if (has(protocolVersion, "elicitation")) {
  client.setRequestHandler("elicitation/create", async ({ params }) => host.elicit(params));
}
for (const method of [...NOTIFICATIONS, "notifications/elicitation/complete"]) {
  client.setNotificationHandler(method, (notification) => host.receive(notification));
}
client.onerror = (error) => host.addError(error);

const fetches = {
  tools: client.listTools,
  resources: client.listResources,
  resourceTemplates: client.listResourceTemplates,
  prompts: client.listPrompts,
};
let level = {};

/** Run `body` with a subscription. */
async function subscribed(filter, body) {
  const subscription = await client.listen(filter);
  await body();
  await subscription.close();
}

const session = {
  call: (name, given, options) =>
    client.callTool({ name, arguments: given, ...level }, options),
  list: async (member) => (await fetches[member].call(client))[member],
  read: async (uri) => (await client.readResource({ uri })).contents,
  getPrompt: async (name, given) => (await client.getPrompt({ name, arguments: given })).messages,
  complete: async (params) => (await client.complete(params)).completion.values,
  ping: () => client.ping(),
  async setLevel(wanted) {
    if (isSession) await client.setLoggingLevel(wanted);
    else level = { _meta: { "io.modelcontextprotocol/logLevel": wanted } };
  },
  rootsChanged: () => client.sendRootsListChanged(),
  async subscription(uri, body) {
    if (!isSession) return subscribed({ resourceSubscriptions: [uri] }, body);
    await client.subscribeResource({ uri });
    await body();
    await client.unsubscribeResource({ uri });
  },
  listChanges(body) {
    const kinds = ["tools", "prompts", "resources"].map((kind) => [`${kind}ListChanged`, true]);
    return isSession ? body() : subscribed(Object.fromEntries(kinds), body);
  },
};

/** The SDK starts a second server to negotiate, which would be recorded, unless this is a subclass. */
class RecordedTransport extends StdioClientTransport {}

const transports = {
  Stdio: wanted in modes ? StdioClientTransport : RecordedTransport,
  Http: StreamableHTTPClientTransport,
  Sse: SSEClientTransport,
  Socket: DialTransport,
};
await client.connect(await transportTo(server, transports));
session.protocolVersion = client.getNegotiatedProtocolVersion();
session.capabilities = client.getServerCapabilities();
if (isTour) await runMountChecks(session, host, protocolVersion);
else await (wanted in modes ? greet(session) : run(session, host, protocolVersion));
await client.close();
