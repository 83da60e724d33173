// The "everything" server, by the official TypeScript SDK 2: `node server_2.mjs [ERA]`, over stdio.
// It speaks both eras, or only `legacy`, or only `modern`.

import { ProtocolError, Server, inputRequired } from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";

import { NeedsAnswers, askByRequests, askByResults } from "./asking.mjs";
import { Everything, METHODS } from "./everything.mjs";
import { Refused, has } from "./facts.mjs";

/** What this SDK lets a handler do. */
function callerOf(server, { mcpReq }) {
  const revision = server.getNegotiatedProtocolVersion();
  const request = (question, options) => mcpReq.send(question, options);
  const state = mcpReq.requestState();
  const answers = { ...JSON.parse(state ?? "{}"), ...mcpReq.inputResponses };
  const progressToken = mcpReq._meta?.progressToken;
  return {
    revision,
    signal: mcpReq.signal,
    request,
    ask: has(revision, "sessions") ? askByRequests(request) : askByResults(answers),
    notify: (method, params) => server.notification({ method, params }),
    log: (level, data) => mcpReq.log(level, data),
    async progress(progress, total, message) {
      if (progressToken === undefined) return;
      const words = has(revision, "progress_messages") ? { message } : {};
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

/** A server for one connection. */
function makeServer() {
  const everything = new Everything();
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
      everything.answer(method, params, callerOf(server, context)).catch(outcomeOf),
    );
  }
  for (const method of ["notifications/initialized", "notifications/roots/list_changed"]) {
    server.setNotificationHandler(method, () => everything.heard.push(method));
  }
  return server;
}

const serve = {
  both: () => serveStdio(makeServer),
  modern: () => serveStdio(makeServer, { legacy: "reject" }),
  legacy: () => makeServer().connect(new StdioServerTransport()),
};

await serve[process.argv[2] ?? "both"]();
