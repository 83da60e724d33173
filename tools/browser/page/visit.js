// What a page does when it is told to: it calls a tool of a server, and shows what came of that.
"use strict";

const TOOL = "greet";
const LINKS = { websocket: WebSocketLink, http: HttpLink, sse: SseLink };
const CLIENTS = { plain: byHand, blind, ...globalThis.typescript };

/** What came of a visit: what the page was told, in a word, and what it has seen on the way. */
async function visit(task) {
  show(task);
  const outcome = await CLIENTS[task.client](task).catch(refused);
  const output = document.querySelector("output");
  output.className = outcome.said === "answered" ? "answered" : "refused";
  output.textContent = outcome.text || outcome.said;
  return { ...outcome, shown: output.textContent, origin: globalThis.origin };
}

function refused(error) {
  if (!(error instanceof Refused)) return { said: `failed: ${error}` };
  return { said: error.message, text: error.cause };
}

/** The client of this page. */
async function byHand({ transport, era, name, ...where }) {
  const link = new LINKS[transport](where);
  const client = new Client(link, era);
  const heard = [];
  client.onnotification = ({ params }) => heard.push(params.message);
  await client.connect();
  const { tools } = await client.request("tools/list");
  const _meta = { progressToken: name };
  const result = await client.request("tools/call", { name: TOOL, arguments: { name }, _meta });
  const offered = tools.map((tool) => tool.name);
  await link.close();
  return { said: "answered", text: result.content[0].text, heard, offered, ...link.facts };
}

/** A request that needs nobody's leave, and whose answer cannot be read: what a forger sends. */
async function blind({ url, name }) {
  const params = { name: TOOL, arguments: { name } };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params });
  const response = await fetch(url, { method: "POST", mode: "no-cors", body }).catch(() => null);
  return { said: response?.type ?? "blocked" };
}

function show(task) {
  const said = { "page of": globalThis.origin, ...task };
  const rows = Object.entries(said).flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]);
  document.querySelector("#what").replaceChildren(...rows);
}

function cell(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text ?? "none";
  return element;
}
