// Send messages in unusual WebSocket frames with `ws`, and check how our server handles them.
// `node websocket_framing.mjs URL` connects to our server; without a URL it prints its own, which
// our server dials. It prints the outcome of each case, which ../websocket_framing.py reads.

import { on, once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import { WebSocket } from "ws";

import { expect } from "./scenario.mjs";
import { listenOn } from "./websocket.mjs";

const PROTOCOL_VERSION = "2025-11-25";
const BIG_CHARS = 1024 * 1024;
// The limit of both sides; ../websocket_framing.py has it, too.
const FRAME_BYTES_MAX = 2 * BIG_CHARS;
const CONTROL_BYTES_MAX = 125;
const WAIT_MS = 20_000;
const PINGS = 3;

/** A connection, and what was received on it. */
class Connection {
  received = [];
  pongs = [];
  pings = 0;
  ids = 0;
  code = undefined;
  error = "none";

  constructor(socket) {
    this.socket = socket;
    socket.on("message", (data) => this.received.push(JSON.parse(data.toString())));
    socket.on("pong", (data) => this.pongs.push(data.toString()));
    socket.on("ping", () => (this.pings += 1));
    socket.on("close", (code) => (this.code = code));
    socket.on("error", ({ message }) => (this.error = message));
  }

  /** Open a session. */
  async greet() {
    const clientInfo = { name: "ws", version: "8" };
    const params = { protocolVersion: PROTOCOL_VERSION, capabilities: {}, clientInfo };
    const answer = await this.ask("initialize", params, this.inOneFrame);
    expect("protocol version", answer.result?.protocolVersion, PROTOCOL_VERSION);
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", method: "notifications/initialized" }));
    return this;
  }

  /** Send in one frame. */
  inOneFrame = (data) => this.socket.send(data.toString());

  /** Return a function that sends frames of this size, and calls `between` between two frames. */
  inFrames = (bytes, between = () => undefined) => (data) => {
    for (let start = 0; start < data.length; start += bytes) {
      const fin = start + bytes >= data.length;
      this.socket.send(data.subarray(start, start + bytes), { binary: false, fin });
      if (!fin) between();
    }
  };

  /** Send a request with `send`, and return the answer. */
  async ask(method, params, send) {
    const id = (this.ids += 1);
    send(Buffer.from(JSON.stringify({ jsonrpc: "2.0", id, method, params })));
    await this.until(() => this.received.some((message) => message.id === id), method);
    return this.received.find((message) => message.id === id);
  }

  /** Check that the server returns a text unchanged. */
  async echo(text, send = this.inOneFrame) {
    const params = { name: "echo", arguments: { text } };
    const { result, error } = await this.ask("tools/call", params, send);
    expect("error", error, undefined);
    expect("the text comes back", result.content[0].text === text, true);
  }

  /** Wait until `isDone` is true. */
  async until(isDone, what) {
    const end = Date.now() + WAIT_MS;
    while (!isDone() && this.code === undefined && Date.now() < end) await sleep(5);
    if (!isDone()) throw new Error(`${what} was not received; closed: ${this.code}, error: ${this.error}`);
  }

  /** Check that the server closes the connection with this code. */
  async expectClose(code) {
    await this.until(() => this.code !== undefined, "the close");
    expect("close code", this.code, code);
  }
}

const big = "x".repeat(BIG_CHARS);

// Each case gets a new connection.
const cases = {
  "the handshake": async (connection) => {
    expect("subprotocol", connection.socket.protocol, "mcp");
    await (await connection.greet()).echo("hello");
  },
  // `ws` offers compression as a client, and accepts it as a server.
  "no compression": async (connection) => {
    expect("extensions", connection.socket.extensions, "");
    await (await connection.greet()).echo(big);
  },
  "1 MiB in frames of 4 KiB": async (connection) => {
    await (await connection.greet()).echo(big, connection.inFrames(4096));
  },
  "frames of one byte": async (connection) => {
    await (await connection.greet()).echo("ä€𝄞", connection.inFrames(1));
  },
  "empty frames": async (connection) => {
    const empty = () => connection.socket.send("", { binary: false, fin: false });
    await (await connection.greet()).echo("hello", connection.inFrames(8, empty));
  },
  "pings between frames": async (connection) => {
    let count = 0;
    await connection.greet();
    await connection.echo(big, connection.inFrames(BIG_CHARS / 8, () => connection.socket.ping(String((count += 1)))));
    // A server may answer only the last of several pings.
    expect("pong", connection.pongs.at(-1), String(count));
  },
  "pings of any size": async (connection) => {
    for (const size of [0, 1, CONTROL_BYTES_MAX]) {
      const payload = "p".repeat(size);
      connection.socket.ping(payload);
      await connection.until(() => connection.pongs.includes(payload), `a pong of ${size}`);
    }
    await (await connection.greet()).echo("hello");
  },
  "pongs unasked": async (connection) => {
    connection.socket.pong("unsolicited");
    await (await connection.greet()).echo("hello");
  },
  "is pinged": async (connection) => {
    await connection.greet();
    await connection.until(() => connection.pings >= PINGS, "a ping");
    await connection.echo("hello");
  },
  "too much": async (connection) => {
    await connection.greet();
    connection.socket.send(`{"jsonrpc":"2.0","id":9,"method":"${"x".repeat(FRAME_BYTES_MAX)}"}`);
    await connection.until(() => connection.received.some(({ error }) => error !== undefined), "an error");
    const { error } = connection.received.at(-1);
    expect(error.message, error.message.includes("limits.messages.bytes_max"), true);
    await connection.echo("hello");
  },
  "a binary message": async (connection) => {
    await connection.greet();
    connection.socket.send(Buffer.from("{}"));
    await connection.expectClose(1003);
  },
  "a close": async (connection) => {
    await connection.greet();
    connection.socket.close(1000);
    await connection.expectClose(1000);
  },
  "a close of our own": async (connection) => {
    connection.socket.close(4001, "for a reason");
    await connection.expectClose(4001);
  },
  // The next case checks that the server survived this one.
  "a cut": async (connection) => {
    await connection.greet();
    connection.socket.terminate();
  },
  "another connection": async (connection) => {
    await (await connection.greet()).echo("hello");
  },
};

/** Return a function that opens the next connection. */
const connecting = (url) => async () => {
  const connection = new Connection(new WebSocket(url, ["other", "mcp"]));
  await once(connection.socket, "open");
  return connection;
};

/** Return a function that accepts the next connection of a server that dials. */
async function listening() {
  const listener = listenOn({ host: "127.0.0.1", port: 0 });
  const connections = on(listener, "connection");
  await once(listener, "listening");
  console.log(`ws://127.0.0.1:${listener.address().port}`);
  return async () => new Connection((await connections.next()).value[0]);
}

const [url] = process.argv.slice(2);
const next = url === undefined ? await listening() : connecting(url);
for (const [name, test] of Object.entries(cases)) {
  const connection = await next();
  const outcome = await test(connection).then(
    () => "ok",
    (error) => error.message,
  );
  console.log(`${name}: ${outcome}`);
  connection.socket.terminate();
}
process.exit();
