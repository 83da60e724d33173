// Servers that are told by their URL instead of the command that starts them.

import { createServer } from "node:http";

import { HUB } from "./facts.mjs";
import { hub, listenOn } from "./sockets.mjs";

/** A transport to a server; `transports` are those of an SDK. */
export async function transportTo([server, ...args], { Stdio, Http, Sse, Socket }) {
  if (server === HUB) return hub(args);
  if (server.startsWith("ws://")) return new Socket(new URL(server));
  if (!server.startsWith("http://")) return new Stdio({ command: server, args });
  const Web = server.endsWith("/sse") ? Sse : Http;
  return new Web(new URL(server));
}

/**
 * Serve at any port; prints the URL that all have in common. Handlers have names as "GET /sse";
 * `take` gets the WebSockets.
 */
export function listen(handlers, take) {
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const handle = handlers[`${request.method} ${pathname}`] ?? handlers[pathname];
    if (handle === undefined) response.writeHead(405).end();
    else handle(request, response);
  });
  listenOn({ server, path: "/ws" }).on("connection", take);
  const host = "127.0.0.1";
  server.listen(0, host, () => console.log(`http://${host}:${server.address().port}`));
}
