// The scenario, told by the official TypeScript SDK 2: `node client_2.mjs PROTOCOL_VERSIONS SERVER…`.
// The server is a command, or a URL; or a command that dials, with `hub` in front.
// With an era instead of the protocolVersion (`legacy`, `stateless`, or `both`) it only greets; with `tour:` in
// front of the protocolVersion it takes the tour instead.

import {
  Client,
  ProtocolError,
  SSEClientTransport,
  StreamableHTTPClientTransport,
} from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { Refused, TOUR, facts, has } from "./facts.mjs";
import { Host, NOTIFICATIONS } from "./host.mjs";
import { capabilitiesAt, greet, tell } from "./scenario.mjs";
import { DialTransport } from "./sockets.mjs";
import { take } from "./tour.mjs";
import { transportTo } from "./web.mjs";

const [said, ...place] = process.argv.slice(2);
const isTour = said.startsWith(TOUR);
const wanted = isTour ? said.slice(TOUR.length) : said;
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

/** The words of the SDK for a refusal. */
function refusal(error) {
  if (!(error instanceof Refused)) throw error;
  throw new ProtocolError(error.code, error.message);
}

client.setRequestHandler("sampling/createMessage", async ({ params }, { mcpReq }) => {
  const report = (progress) =>
    mcpReq.notify({
      method: "notifications/progress",
      params: { progressToken: mcpReq._meta.progressToken, ...progress },
    });
  return host.sample(params, { report, signal: mcpReq.signal }).catch(refusal);
});
client.setRequestHandler("roots/list", async () => host.listRoots());
if (has(protocolVersion, "elicitation")) {
  client.setRequestHandler("elicitation/create", async ({ params }) => host.elicit(params));
}
for (const method of [...NOTIFICATIONS, "notifications/elicitation/complete"]) {
  client.setNotificationHandler(method, (notification) => host.hear(notification));
}
client.onerror = (error) => host.complain(error);

const fetches = {
  tools: client.listTools,
  resources: client.listResources,
  resourceTemplates: client.listResourceTemplates,
  prompts: client.listPrompts,
};
let level = {};

/** Hear of something meanwhile. */
async function listening(filter, body) {
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
  async watching(uri, body) {
    if (!isSession) return listening({ resourceSubscriptions: [uri] }, body);
    await client.subscribeResource({ uri });
    await body();
    await client.unsubscribeResource({ uri });
  },
  hearingChanges(body) {
    const kinds = ["tools", "prompts", "resources"].map((kind) => [`${kind}ListChanged`, true]);
    return isSession ? body() : listening(Object.fromEntries(kinds), body);
  },
};

/** The SDK asks a server of its own first, which would be recorded, unless this is a subclass. */
class RecordedTransport extends StdioClientTransport {}

const transports = {
  Stdio: wanted in modes ? StdioClientTransport : RecordedTransport,
  Http: StreamableHTTPClientTransport,
  Sse: SSEClientTransport,
  Socket: DialTransport,
};
await client.connect(await transportTo(place, transports));
session.protocolVersion = client.getNegotiatedProtocolVersion();
session.capabilities = client.getServerCapabilities();
if (isTour) await take(session, host, protocolVersion);
else await (wanted in modes ? greet(session) : tell(session, host, protocolVersion));
await client.close();
