// The "everything" server on the official TypeScript SDK 1: `node server_1.mjs [TRANSPORT]`, over
// stdio, over HTTP and WebSocket ("http"), or at a URL that it dials ("dial URL"). It serves one session.

import { randomUUID } from "node:crypto";

import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import { askByRequests } from "./input_requests.mjs";
import { CAPABILITIES, Everything } from "./everything.mjs";
import { Rejected, has } from "./facts.mjs";
import { DialTransport, SocketTransport } from "./websocket.mjs";
import { listen } from "./connections.mjs";

const requests = {
  "tools/list": types.ListToolsRequestSchema,
  "tools/call": types.CallToolRequestSchema,
  "resources/list": types.ListResourcesRequestSchema,
  "resources/templates/list": types.ListResourceTemplatesRequestSchema,
  "resources/read": types.ReadResourceRequestSchema,
  "resources/subscribe": types.SubscribeRequestSchema,
  "resources/unsubscribe": types.UnsubscribeRequestSchema,
  "prompts/list": types.ListPromptsRequestSchema,
  "prompts/get": types.GetPromptRequestSchema,
  "completion/complete": types.CompleteRequestSchema,
};

const results = {
  "sampling/createMessage": types.CreateMessageResultWithToolsSchema,
  "elicitation/create": types.ElicitResultSchema,
  "roots/list": types.ListRootsResultSchema,
  ping: types.EmptyResultSchema,
};

const everything = new Everything();
let protocolVersion;

const server = new Server(
  { name: "everything", version: "1" },
  { capabilities: CAPABILITIES },
);

/** Return what this SDK offers to a handler; see ../caller.py. */
function callerOf(extra) {
  const request = (question, options) =>
    extra.sendRequest(question, results[question.method], options);
  const notify = (method, params) => server.notification({ method, params });
  const progressToken = extra._meta?.progressToken;
  return {
    protocolVersion,
    signal: extra.signal,
    request,
    ask: askByRequests(request),
    notify,
    log: (level, data) => server.sendLoggingMessage({ level, data }, extra.sessionId),
    async progress(progress, total, message) {
      if (progressToken === undefined) return;
      const messages = has(protocolVersion, "progress_messages") ? { message } : {};
      const params = { progressToken, progress, total, ...messages };
      await extra.sendNotification({ method: "notifications/progress", params });
    },
  };
}

for (const [method, schema] of Object.entries(requests)) {
  server.setRequestHandler(schema, async ({ params }, extra) => {
    try {
      return await everything.answer(method, params, callerOf(extra));
    } catch (error) {
      if (!(error instanceof Rejected)) throw error;
      throw new types.McpError(error.code, error.message, error.data);
    }
  });
}

for (const schema of [types.InitializedNotificationSchema, types.RootsListChangedNotificationSchema]) {
  server.setNotificationHandler(schema, ({ method }) => everything.received.push(method));
}

/** Connect, and note the negotiated version, which the SDK does not give to handlers. */
async function connect(transport) {
  const send = transport.send.bind(transport);
  transport.send = (message, ...options) => {
    protocolVersion ??= message.result?.protocolVersion;
    return send(message, ...options);
  };
  await server.connect(transport);
  return transport;
}

let opened;

/** Return the transport of the session, which the first request opens. */
function open(make) {
  opened ??= connect(make());
  return opened;
}

async function handle(request, response) {
  const options = { sessionIdGenerator: randomUUID };
  const transport = await open(() => new StreamableHTTPServerTransport(options));
  await transport.handleRequest(request, response);
}

const serve = {
  stdio: () => open(() => new StdioServerTransport()),
  http: () =>
    listen(
      {
        "/mcp": handle,
        "GET /sse": (_, response) => open(() => new SSEServerTransport("/messages", response)),
        "POST /messages": async (request, response) =>
          (await opened).handlePostMessage(request, response),
      },
      (socket) => open(() => new SocketTransport(socket)),
    ),
  dial: (url) => open(() => new DialTransport(url)),
};

const [how = "stdio", url] = process.argv.slice(2);
await serve[how](url);
