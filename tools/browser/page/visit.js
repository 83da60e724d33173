// Call a tool of a server from a page, and show the outcome.
"use strict";

const TOOL = "greet";
const LINKS = { websocket: WebSocketLink, http: HttpLink, sse: SseLink };
const CLIENTS = { plain: byHand, blind, ...globalThis.typescript };

/** Run a task; return its outcome in a word, and what the page received. */
async function visit(task) {
  show(task);
  const outcome = await CLIENTS[task.client](task).catch(rejected);
  const output = document.querySelector("output");
  output.className = outcome.result === "answered" ? "answered" : "rejected";
  output.textContent = outcome.text || outcome.result;
  return { ...outcome, shown: output.textContent, origin: globalThis.origin };
}

function rejected(error) {
  if (!(error instanceof Rejected)) return { result: `failed: ${error}` };
  return { result: error.message, text: error.cause };
}

/** Call the tool with the client of this page. */
async function byHand({ transport, mode, name, ...where }) {
  const link = new LINKS[transport](where);
  const client = new Client(link, mode);
  const progress = [];
  client.onnotification = ({ params }) => progress.push(params.message);
  await client.connect();
  const { tools } = await client.request("tools/list");
  const _meta = { progressToken: name };
  const called = await client.request("tools/call", { name: TOOL, arguments: { name }, _meta });
  const offered = tools.map((tool) => tool.name);
  await link.close();
  return { result: "answered", text: called.content[0].text, progress, offered, ...link.facts };
}

/** Send a forged request: it needs no permission by CORS, and its response cannot be read. */
async function blind({ url, name }) {
  const params = { name: TOOL, arguments: { name } };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params });
  const response = await fetch(url, { method: "POST", mode: "no-cors", body }).catch(() => null);
  return { result: response?.type ?? "blocked" };
}

function show(task) {
  const shown = { "page of": globalThis.origin, ...task };
  const rows = Object.entries(shown).flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]);
  document.querySelector("#task").replaceChildren(...rows);
}

function cell(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text ?? "none";
  return element;
}
