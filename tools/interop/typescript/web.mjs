// Servers that are told by their URL instead of the command that starts them.

import { createServer } from "node:http";

/** A transport to a server; `transports` are those of an SDK. */
export function transportTo([server, ...args], { Stdio, Http, Sse }) {
  if (!server.startsWith("http://")) return new Stdio({ command: server, args });
  const Web = server.endsWith("/sse") ? Sse : Http;
  return new Web(new URL(server));
}

/** Serve at any port; prints the URL that all have in common. Handlers have names as "GET /sse". */
export function listen(handlers) {
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const handle = handlers[`${request.method} ${pathname}`] ?? handlers[pathname];
    if (handle === undefined) response.writeHead(405).end();
    else handle(request, response);
  });
  const host = "127.0.0.1";
  server.listen(0, host, () => console.log(`http://${host}:${server.address().port}`));
}
