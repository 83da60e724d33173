// What `ws` does with frames beside sending a message in each, and how our end takes it.
// `node framing.mjs URL` connects to our server; without a URL it prints its own, where that dials.
// Says for each trick what came of it, as ../framing.py reads it.

import { on, once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import { WebSocket } from "ws";

import { expect } from "./scenario.mjs";
import { listenOn } from "./sockets.mjs";

const PROTOCOL_VERSION = "2025-11-25";
const BIG_CHARS = 1024 * 1024;
// Of both ends: ../framing.py has it, too.
const FRAME_BYTES_MAX = 2 * BIG_CHARS;
const CONTROL_BYTES_MAX = 125;
const PATIENCE_MS = 20_000;
const PINGS = 3;

/** A connection, on which messages are sent in whatever way, and what has come on it. */
class Line {
  heard = [];
  pongs = [];
  pings = 0;
  ids = 0;
  code = undefined;
  fault = "none";

  constructor(socket) {
    this.socket = socket;
    socket.on("message", (data) => this.heard.push(JSON.parse(data.toString())));
    socket.on("pong", (data) => this.pongs.push(data.toString()));
    socket.on("ping", () => (this.pings += 1));
    socket.on("close", (code) => (this.code = code));
    socket.on("error", ({ message }) => (this.fault = message));
  }

  /** Agree on a session. */
  async greet() {
    const clientInfo = { name: "ws", version: "8" };
    const params = { protocolVersion: PROTOCOL_VERSION, capabilities: {}, clientInfo };
    const answer = await this.ask("initialize", params, this.whole);
    expect("protocol version", answer.result?.protocolVersion, PROTOCOL_VERSION);
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", method: "notifications/initialized" }));
    return this;
  }

  /** Send in one frame. */
  whole = (data) => this.socket.send(data.toString());

  /** Send in pieces of that size, and do something between two. */
  pieces = (bytes, between = () => undefined) => (data) => {
    for (let start = 0; start < data.length; start += bytes) {
      const fin = start + bytes >= data.length;
      this.socket.send(data.subarray(start, start + bytes), { binary: false, fin });
      if (!fin) between();
    }
  };

  /** The answer to a request, which is sent by `send`. */
  async ask(method, params, send) {
    const id = (this.ids += 1);
    send(Buffer.from(JSON.stringify({ jsonrpc: "2.0", id, method, params })));
    await this.until(() => this.heard.some((message) => message.id === id), method);
    return this.heard.find((message) => message.id === id);
  }

  /** A text comes back as it went. */
  async echo(text, send = this.whole) {
    const params = { name: "echo", arguments: { text } };
    const { result, error } = await this.ask("tools/call", params, send);
    expect("error", error, undefined);
    expect("the text comes back", result.content[0].text === text, true);
  }

  /** Return when it is so. */
  async until(isSo, what) {
    const end = Date.now() + PATIENCE_MS;
    while (!isSo() && this.code === undefined && Date.now() < end) await sleep(5);
    if (!isSo()) throw new Error(`${what} does not come, closed: ${this.code}, fault: ${this.fault}`);
  }

  /** The other end closes, too, and with that code. */
  async ends(code) {
    await this.until(() => this.code !== undefined, "the close");
    expect("close code", this.code, code);
  }
}

const big = "x".repeat(BIG_CHARS);

// Each has a connection of its own, of which nothing was said yet.
const tricks = {
  "the handshake": async (line) => {
    expect("subprotocol", line.socket.protocol, "mcp");
    await (await line.greet()).echo("hello");
  },
  // Both sides of `ws` offer it, or take it up.
  "no compression": async (line) => {
    expect("extensions", line.socket.extensions, "");
    await (await line.greet()).echo(big);
  },
  "1 MiB in frames of 4 KiB": async (line) => {
    await (await line.greet()).echo(big, line.pieces(4096));
  },
  "frames of one byte": async (line) => {
    await (await line.greet()).echo("ä€𝄞", line.pieces(1));
  },
  "empty frames": async (line) => {
    const empty = () => line.socket.send("", { binary: false, fin: false });
    await (await line.greet()).echo("hello", line.pieces(8, empty));
  },
  "pings between frames": async (line) => {
    let count = 0;
    await line.greet();
    await line.echo(big, line.pieces(BIG_CHARS / 8, () => line.socket.ping(String((count += 1)))));
    // The last of several may be answered alone.
    expect("pong", line.pongs.at(-1), String(count));
  },
  "pings of any size": async (line) => {
    for (const size of [0, 1, CONTROL_BYTES_MAX]) {
      const said = "p".repeat(size);
      line.socket.ping(said);
      await line.until(() => line.pongs.includes(said), `a pong of ${size}`);
    }
    await (await line.greet()).echo("hello");
  },
  "pongs unasked": async (line) => {
    line.socket.pong("nobody asked");
    await (await line.greet()).echo("hello");
  },
  "is pinged": async (line) => {
    await line.greet();
    await line.until(() => line.pings >= PINGS, "a ping");
    await line.echo("hello");
  },
  "too much": async (line) => {
    await line.greet();
    line.socket.send(`{"jsonrpc":"2.0","id":9,"method":"${"x".repeat(FRAME_BYTES_MAX)}"}`);
    await line.until(() => line.heard.some(({ error }) => error !== undefined), "an error");
    const { error } = line.heard.at(-1);
    expect(error.message, error.message.includes("limits.messages.bytes_max"), true);
    await line.echo("hello");
  },
  "a binary message": async (line) => {
    await line.greet();
    line.socket.send(Buffer.from("{}"));
    await line.ends(1003);
  },
  "a close": async (line) => {
    await line.greet();
    line.socket.close(1000);
    await line.ends(1000);
  },
  "a close of our own": async (line) => {
    line.socket.close(4001, "for a reason");
    await line.ends(4001);
  },
  // The next connection tells how it was taken.
  "a cut": async (line) => {
    await line.greet();
    line.socket.terminate();
  },
  "another connection": async (line) => {
    await (await line.greet()).echo("hello");
  },
};

/** The next connection, opened by us. */
const connecting = (url) => async () => {
  const line = new Line(new WebSocket(url, ["other", "mcp"]));
  await once(line.socket, "open");
  return line;
};

/** The next connection, opened by a server that dials. */
async function listening() {
  const listener = listenOn({ host: "127.0.0.1", port: 0 });
  const connections = on(listener, "connection");
  await once(listener, "listening");
  console.log(`ws://127.0.0.1:${listener.address().port}`);
  return async () => new Line((await connections.next()).value[0]);
}

const [url] = process.argv.slice(2);
const next = url === undefined ? await listening() : connecting(url);
for (const [name, trick] of Object.entries(tricks)) {
  const line = await next();
  const outcome = await trick(line).then(
    () => "ok",
    (error) => error.message,
  );
  console.log(`${name}: ${outcome}`);
  line.socket.terminate();
}
process.exit();
