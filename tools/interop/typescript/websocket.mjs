// WebSocket transports for clients and servers of the TypeScript SDKs, with `ws`.

import { spawn } from "node:child_process";
import { once } from "node:events";

import { WebSocket, WebSocketServer } from "ws";

const SUBPROTOCOL = "mcp";
const DONE = 1000;

/** A transport that sends each message as text, over a socket of either side. */
export class SocketTransport {
  constructor(socket) {
    this.socket = socket;
  }

  async start() {
    const { socket } = this;
    socket.on("message", (data) => this.onmessage?.(JSON.parse(data.toString())));
    socket.on("error", (error) => this.onerror?.(error));
    socket.on("close", () => this.onclose?.());
    if (socket.readyState === WebSocket.CONNECTING) await once(socket, "open");
  }

  send(message) {
    return new Promise((resolve, reject) => {
      this.socket.send(JSON.stringify(message), (error) => (error ? reject(error) : resolve()));
    });
  }

  async close() {
    if (this.socket.readyState === WebSocket.CLOSED) return;
    const closed = once(this.socket, "close");
    this.socket.close(DONE);
    await closed;
  }
}

/** A transport that opens the connection; `ws` offers compression. */
export class DialTransport extends SocketTransport {
  constructor(url) {
    super(new WebSocket(url, SUBPROTOCOL));
  }
}

/** A transport to a server that dials; closing it stops the server. */
class HubTransport extends SocketTransport {
  constructor(socket, server) {
    super(socket);
    this.server = server;
  }

  async close() {
    await super.close();
    if (this.server.exitCode !== null) return;
    const exited = once(this.server, "exit");
    this.server.kill();
    await exited;
  }
}

/** Listen, start a server with the URL as its argument, and accept its one connection. */
export async function hub([program, ...args]) {
  const listener = listenOn({ host: "127.0.0.1", port: 0 });
  await once(listener, "listening");
  const url = `ws://127.0.0.1:${listener.address().port}`;
  const server = spawn(program, [...args, url], { stdio: ["ignore", "ignore", "inherit"] });
  const [socket] = await once(listener, "connection");
  listener.close();
  return new HubTransport(socket, server);
}

/** Return a listener, which accepts offers of compression. */
export function listenOn(address) {
  return new WebSocketServer({ perMessageDeflate: true, ...address });
}
