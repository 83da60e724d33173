// The "everything" server, by the official TypeScript SDK 2: `node server_2.mjs [ERA]`, over stdio.
// It speaks both eras, or only `legacy`, or only `stateless`; with `http` in front of that, over HTTP
// and WebSocket. With `dial URL` it dials there, and speaks both.

import { randomUUID } from "node:crypto";

// The SDK 1 needs the same between Node and itself.
import { getRequestListener } from "@hono/node-server";
import {
  ProtocolError,
  Server,
  WebStandardStreamableHTTPServerTransport,
  createMcpHandler,
  inputRequired,
  isLegacyRequest,
} from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";

import { NeedsAnswers, askByRequests, askByResults } from "./asking.mjs";
import { Everything, METHODS } from "./everything.mjs";
import { Refused, has } from "./facts.mjs";
import { DialTransport, SocketTransport } from "./sockets.mjs";
import { listen } from "./web.mjs";

/** What this SDK lets a handler do; `notify` sends a notification. */
function callerOf(server, { mcpReq }, notify) {
  const protocolVersion = server.getNegotiatedProtocolVersion();
  const request = (question, options) => mcpReq.send(question, options);
  const state = mcpReq.requestState();
  const answers = { ...JSON.parse(state ?? "{}"), ...mcpReq.inputResponses };
  const progressToken = mcpReq._meta?.progressToken;
  return {
    protocolVersion,
    signal: mcpReq.signal,
    request,
    ask: has(protocolVersion, "sessions") ? askByRequests(request) : askByResults(answers),
    notify,
    log: (level, data) => mcpReq.log(level, data),
    async progress(progress, total, message) {
      if (progressToken === undefined) return;
      const words = has(protocolVersion, "progress_messages") ? { message } : {};
      const params = { progressToken, progress, total, ...words };
      await mcpReq.notify({ method: "notifications/progress", params });
    },
  };
}

/** The words of the SDK for how a request ends otherwise. */
function outcomeOf(error) {
  if (error instanceof Refused) throw new ProtocolError(error.code, error.message, error.data);
  if (!(error instanceof NeedsAnswers)) throw error;
  const requestState = JSON.stringify(error.answers);
  return inputRequired({ inputRequests: error.questions, requestState });
}

/** A server for one connection, or for one request where there is none. */
function makeServer(everything = new Everything(), publish = undefined) {
  const notify = publish ?? ((method, params) => server.notification({ method, params }));
  const server = new Server(
    { name: "everything", version: "2" },
    {
      capabilities: {
        completions: {},
        logging: {},
        prompts: { listChanged: true },
        resources: { listChanged: true, subscribe: true },
        tools: { listChanged: true },
      },
    },
  );
  for (const method of METHODS) {
    server.setRequestHandler(method, ({ params }, context) =>
      everything.answer(method, params, callerOf(server, context, notify)).catch(outcomeOf),
    );
  }
  for (const method of ["notifications/initialized", "notifications/roots/list_changed"]) {
    server.setNotificationHandler(method, () => everything.heard.push(method));
  }
  return server;
}

/** A session, and requests without, which share what the server remembers; or one of the two. */
async function serveHttp(era = "both") {
  const sessions = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: randomUUID });
  await makeServer().connect(sessions);
  const everything = new Everything();
  const stateless = createMcpHandler(() => makeServer(everything, publish), { legacy: "reject" });
  const events = {
    "notifications/tools/list_changed": stateless.notify.toolsChanged,
    "notifications/prompts/list_changed": stateless.notify.promptsChanged,
    "notifications/resources/list_changed": stateless.notify.resourcesChanged,
    "notifications/resources/updated": ({ uri }) => stateless.notify.resourceUpdated(uri),
  };
  async function publish(method, params) {
    events[method](params);
  }
  const answers = {
    both: async (request) =>
      (await isLegacyRequest(request)) ? sessions.handleRequest(request) : stateless.fetch(request),
    legacy: (request) => sessions.handleRequest(request),
    stateless: (request) => stateless.fetch(request),
  };
  listen({ "/mcp": getRequestListener(answers[era]) }, (socket) =>
    connections[era](new SocketTransport(socket)),
  );
}

/** What carries one connection, whatever it is: only in the SDK's name for it that is stdio. */
const connections = {
  both: (transport) => serveStdio(() => makeServer(), { transport }),
  stateless: (transport) => serveStdio(() => makeServer(), { transport, legacy: "reject" }),
  legacy: (transport) => makeServer().connect(transport),
};

const serve = {
  both: () => connections.both(new StdioServerTransport()),
  stateless: () => connections.stateless(new StdioServerTransport()),
  legacy: () => connections.legacy(new StdioServerTransport()),
  http: serveHttp,
  dial: (url) => connections.both(new DialTransport(url)),
};

const [how = "both", more] = process.argv.slice(2);
await serve[how](more);
