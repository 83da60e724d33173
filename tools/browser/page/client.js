// A small MCP client, as written into a page: three transports, legacy and stateless versions.
"use strict";

const INFO = { name: "page", version: "1" };
const META = "io.modelcontextprotocol/";
const PROTOCOL_VERSIONS = { legacy: "2025-11-25", stateless: "2026-07-28" };

/** The server or the browser rejects the page; the message is the outcome in a word or two. */
class Rejected extends Error {}

/** Each JSON-RPC message is one text message. */
class WebSocketLink {
  constructor({ url, token }) {
    this.url = url;
    this.subprotocols = token ? ["mcp", `mcp.token.${base64Url(token)}`] : ["mcp"];
  }

  open() {
    this.socket = new WebSocket(this.url, this.subprotocols);
    this.socket.onmessage = ({ data }) => this.onmessage(JSON.parse(data));
    return new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onclose = ({ code }) => reject(new Rejected(`closed ${code}`));
    });
  }

  async send(message) {
    this.socket.send(JSON.stringify(message));
  }

  close() {
    this.socket.close(1000);
  }

  get facts() {
    return { subprotocol: this.socket.protocol };
  }
}

/** Each message is a POST; the response is JSON or a stream of events. */
class HttpLink {
  facts = { types: [] };

  constructor({ url, token }) {
    this.url = url;
    this.authorization = token ? { Authorization: `Bearer ${token}` } : {};
  }

  async open() {}

  async send(message) {
    const body = JSON.stringify(message);
    const response = await this.fetch({ method: "POST", headers: this.headersFor(message), body });
    this.facts.session ??= response.headers.get("Mcp-Session-Id");
    if (response.status === 202) return;
    const [type] = response.headers.get("Content-Type").split(";");
    this.facts.types.push(type);
    if (type === "application/json") this.onmessage(await response.json());
    else for await (const data of dataIn(response.body)) this.onmessage(JSON.parse(data));
  }

  async fetch({ headers, ...options }) {
    const session = this.facts.session ? { "Mcp-Session-Id": this.facts.session } : {};
    const always = { Accept: "application/json, text/event-stream", ...this.authorization };
    const sent = { ...options, headers: { ...always, ...session, ...headers } };
    const response = await fetch(this.url, sent).catch(() => {
      throw new Rejected("blocked");
    });
    if (!response.ok) throw new Rejected(`read ${response.status}`, { cause: await response.text() });
    return response;
  }

  /** Return the headers that repeat members of the body. */
  headersFor({ method, params }) {
    const json = { "Content-Type": "application/json" };
    const version = params?._meta?.[`${META}protocolVersion`];
    if (!version) return this.facts.session ? { ...json, "MCP-Protocol-Version": PROTOCOL_VERSIONS.legacy } : json;
    const name = params.name ? { "Mcp-Name": params.name } : {};
    return { ...json, "MCP-Protocol-Version": version, "Mcp-Method": method, ...name };
  }

  async close() {
    if (this.facts.session) await this.fetch({ method: "DELETE" });
  }
}

/** Responses arrive on an EventSource, whose first event has the URL for POST. */
class SseLink {
  facts = {};

  constructor({ url }) {
    this.url = url;
  }

  open() {
    this.source = new EventSource(this.url);
    this.source.onmessage = ({ data }) => this.onmessage(JSON.parse(data));
    return new Promise((resolve, reject) => {
      this.source.onerror = () => reject(new Rejected("blocked"));
      this.source.addEventListener("endpoint", ({ data }) => {
        this.endpoint = new URL(data, this.url);
        resolve();
      });
    });
  }

  async send(message) {
    const headers = { "Content-Type": "application/json" };
    await fetch(this.endpoint, { method: "POST", headers, body: JSON.stringify(message) });
  }

  close() {
    this.source.close();
  }
}

/** Send requests over a link, and match the responses. */
class Client {
  onnotification = () => {};
  #waiting = new Map();
  #ids = 0;

  constructor(link, mode) {
    this.link = link;
    this.isStateless = mode === "stateless";
    link.onmessage = (message) => this.#receive(message);
  }

  async connect() {
    await this.link.open();
    if (this.isStateless) return;
    const protocolVersion = PROTOCOL_VERSIONS.legacy;
    await this.request("initialize", { protocolVersion, capabilities: {}, clientInfo: INFO });
    await this.link.send({ jsonrpc: "2.0", method: "notifications/initialized" });
  }

  request(method, params = {}) {
    const id = ++this.#ids;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.link.send({ jsonrpc: "2.0", id, method, params: this.#complete(params) }).catch(reject);
    });
  }

  /** Add the metadata that a stateless request has in place of a handshake. */
  #complete({ _meta = {}, ...params }) {
    const metadata = {
      [`${META}protocolVersion`]: PROTOCOL_VERSIONS.stateless,
      [`${META}clientInfo`]: INFO,
      [`${META}clientCapabilities`]: {},
    };
    return { ...params, _meta: this.isStateless ? { ...metadata, ..._meta } : _meta };
  }

  #receive({ id, result, error, ...message }) {
    const waiting = this.#waiting.get(id);
    if (waiting === undefined) this.onnotification(message);
    else if (error) waiting.reject(new Error(error.message));
    else waiting.resolve(result);
  }
}

/** Yield the data of each event of a stream. */
async function* dataIn(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      const data = lines.map((line) => line.slice(6)).join("\n");
      if (data) yield data; // an empty event only has an id, for resuming
    }
  }
}

function base64Url(text) {
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
