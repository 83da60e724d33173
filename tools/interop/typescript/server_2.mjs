// The "everything" server on the official TypeScript SDK 2: `node server_2.mjs [MODE]`, over stdio.
// It supports both legacy and stateless versions, or only `legacy`, or only `stateless`; with `http`
// before the mode, over HTTP and WebSocket. With `dial URL` it dials there, and supports both.

import { randomUUID } from "node:crypto";

// The SDK 1 needs the same adapter between Node and itself.
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

import { InputRequired, askByRequests, askByResults } from "./input_requests.mjs";
import { CAPABILITIES, Everything, METHODS } from "./everything.mjs";
import { Rejected, has } from "./facts.mjs";
import { DialTransport, SocketTransport } from "./websocket.mjs";
import { listen } from "./connections.mjs";

/** Return what this SDK offers to a handler; `notify` sends a notification. */
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
      const messages = has(protocolVersion, "progress_messages") ? { message } : {};
      const params = { progressToken, progress, total, ...messages };
      await mcpReq.notify({ method: "notifications/progress", params });
    },
  };
}

/** Return the SDK's result for a request that needs input, or throw its error. */
function endOf(error) {
  if (error instanceof Rejected) throw new ProtocolError(error.code, error.message, error.data);
  if (!(error instanceof InputRequired)) throw error;
  const requestState = JSON.stringify(error.answers);
  return inputRequired({ inputRequests: error.questions, requestState });
}

/** Return a server for one connection, or for one stateless request. */
function makeServer(everything = new Everything(), publish = undefined) {
  const notify = publish ?? ((method, params) => server.notification({ method, params }));
  const server = new Server(
    { name: "everything", version: "2" },
    { capabilities: CAPABILITIES },
  );
  for (const method of METHODS) {
    server.setRequestHandler(method, ({ params }, context) =>
      everything.answer(method, params, callerOf(server, context, notify)).catch(endOf),
    );
  }
  for (const method of ["notifications/initialized", "notifications/roots/list_changed"]) {
    server.setNotificationHandler(method, () => everything.received.push(method));
  }
  return server;
}

/** Serve one session, stateless requests that share one state, or both. */
async function serveHttp(mode = "both") {
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
  listen({ "/mcp": getRequestListener(answers[mode]) }, (socket) =>
    connections[mode](new SocketTransport(socket)),
  );
}

/** Serve one connection of any transport, which the SDK calls stdio. */
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
