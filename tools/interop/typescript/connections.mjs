// Transports to servers, and an HTTP listener for the servers of the TypeScript SDKs.

import { createServer } from "node:http";

import { HUB } from "./facts.mjs";
import { hub, listenOn } from "./websocket.mjs";

/** Return a transport to a server; the second argument has the transports of an SDK. */
export async function transportTo([server, ...args], { Stdio, Http, Sse, Socket }) {
  if (server === HUB) return hub(args);
  if (server.startsWith("ws://")) return new Socket(new URL(server));
  if (!server.startsWith("http://")) return new Stdio({ command: server, args });
  const Web = server.endsWith("/sse") ? Sse : Http;
  return new Web(new URL(server));
}

/**
 * Serve at a free port, and print the URL. The handlers' keys are paths, or a method and a path as
 * "GET /sse"; `acceptWebSocket` gets the WebSockets.
 */
export function listen(handlers, acceptWebSocket) {
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const handle = handlers[`${request.method} ${pathname}`] ?? handlers[pathname];
    if (handle === undefined) response.writeHead(405).end();
    else handle(request, response);
  });
  listenOn({ server, path: "/ws" }).on("connection", acceptWebSocket);
  const host = "127.0.0.1";
  server.listen(0, host, () => console.log(`http://${host}:${server.address().port}`));
}
