// The story of ../scenario.py, told by the official TypeScript SDK: `node client.mjs SERVER…`.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

const facts = JSON.parse(readFileSync(new URL("../facts.json", import.meta.url), "utf8"));

const PATIENCE_MS = 10_000;
const STORY_MS = 60_000;
const QUIET_MS = 350;
const REPORT_MS = 50;
const PNG_SIGNATURE = "89504e470d0a1a0a";

// Checking.

let checks = 0;

/** Compare deeply. */
function expect(what, found, expected) {
  checks += 1;
  if (!isDeepStrictEqual(found, expected)) {
    throw new Error(`${what}: ${JSON.stringify(found)}, not ${JSON.stringify(expected)}`);
  }
}

/** Await a request that has to be answered with this error. */
async function expectRefusal(what, request, code) {
  const answer = await request.catch((error) => error);
  expect(what, answer?.code, code);
}

/** The text of a result that has only that. */
function textOf({ content, isError = false }) {
  expect("isError", isError, false);
  expect("kinds of content", content.map(({ type }) => type), ["text"]);
  return content[0].text;
}

function expectImage({ mimeType }, data) {
  expect("MIME type", mimeType, "image/png");
  expect("PNG", Buffer.from(data, "base64").subarray(0, 8).toString("hex"), PNG_SIGNATURE);
}

/** Return when it has come: notifications may arrive behind the answer. */
async function waitFor(what, hasCome) {
  const end = Date.now() + PATIENCE_MS;
  while (!hasCome() && Date.now() < end) await sleep(10);
  expect(what, hasCome(), true);
}

// The host: what the user of the client is to the server.

const heard = [];
const faults = [];
const asked = [];
let roots = ["file:///work/one", "file:///work/two"];
let model = says("nothing");

const client = new Client(
  { name: "typescript", version: "1" },
  { capabilities: { roots: { listChanged: true }, sampling: {} } },
);

client.setRequestHandler(types.CreateMessageRequestSchema, async ({ params }, extra) => {
  asked.push(params);
  const said = await model(extra);
  return { role: "assistant", content: { type: "text", text: said }, model: "interop" };
});

client.setRequestHandler(types.ListRootsRequestSchema, async () => ({
  roots: roots.map((uri) => ({ uri })),
}));

for (const schema of [
  types.LoggingMessageNotificationSchema,
  types.ResourceUpdatedNotificationSchema,
  types.ToolListChangedNotificationSchema,
  types.PromptListChangedNotificationSchema,
  types.ResourceListChangedNotificationSchema,
]) {
  client.setNotificationHandler(schema, (notification) => heard.push(notification));
}

client.onerror = (error) => {
  // A report may have been on its way when its call was cancelled.
  if (!error.message.includes("progress notification for an unknown token")) {
    faults.push(error.message);
  }
};

const count = (method) => heard.filter((notification) => notification.method === method).length;

const logged = () =>
  heard
    .filter(({ method }) => method === "notifications/message")
    .map(({ params }) => params.data);

/** A model that always says the same. */
function says(text) {
  return async () => text;
}

/** A user who lets no model be asked. */
async function refuses() {
  throw new types.McpError(facts.user_rejected, "User rejected sampling request");
}

/** A model that tells how far it is. */
async function reports({ _meta, sendNotification }) {
  for (const progress of [1, 2, 3]) {
    const params = { progressToken: _meta.progressToken, progress, total: 3 };
    await sendNotification({ method: "notifications/progress", params });
    // As a server, too, this SDK loses a report that arrives together with the answer.
    await sleep(REPORT_MS);
  }
  return "At last.";
}

// What there is at the server.

const call = (name, given, options) =>
  client.callTool({ name, arguments: given }, undefined, options);

/** The items of all pages. */
async function list(fetch, member) {
  const items = [];
  let cursor;
  do {
    const page = await fetch.call(client, cursor === undefined ? undefined : { cursor });
    items.push(...page[member]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return items;
}

const listTools = () => list(client.listTools, "tools");
const listResources = () => list(client.listResources, "resources");
const listPrompts = () => list(client.listPrompts, "prompts");

const read = async (uri) => (await client.readResource({ uri })).contents;
const getPrompt = async (name, given) =>
  (await client.getPrompt({ name, arguments: given })).messages;

/** The server has heard it, if it is one that tells. */
async function serverHas(what) {
  if ((await listTools()).some(({ name }) => name === "test_heard")) {
    const told = JSON.parse(textOf(await call("test_heard")));
    expect(`${what} in ${told}`, told.includes(what), true);
  }
}

// The story, a chapter for each matter.

const story = {
  async shakeHands() {
    const offered = client.getServerCapabilities();
    for (const kind of ["tools", "prompts", "resources"]) {
      expect(`${kind}.listChanged`, offered[kind]?.listChanged, true);
    }
    expect("resources.subscribe", offered.resources.subscribe, true);
    expect("logging", "logging" in offered, true);
    await client.ping();
  },

  async listTools() {
    const tools = Object.fromEntries((await listTools()).map((tool) => [tool.name, tool]));
    expect("has test_simple_text", "test_simple_text" in tools, true);
    const { inputSchema } = tools.json_schema_2020_12_tool;
    expect("schema", inputSchema, facts.contact_schema);
  },

  async callTools() {
    expect("text", textOf(await call("test_simple_text")), facts.simple_text);
    const [image] = (await call("test_image_content")).content;
    expectImage(image, image.data);
    const [{ resource }] = (await call("test_embedded_resource")).content;
    expect("URI", resource.uri, facts.embedded_uri);
    expect("embedded", resource.text, facts.embedded_text);
    const mixed = (await call("test_multiple_content_types")).content;
    expect("kinds", mixed.map(({ type }) => type), ["text", "image", "resource"]);
    expect("JSON", JSON.parse(mixed[2].resource.text), facts.mixed_json);
    const failed = await call("test_error_handling");
    expect("isError", failed.isError, true);
    expect("error", failed.content[0].text, facts.error_text);
    const contact = { name: "Ada", contactMethod: "phone", phone: "1" };
    const told = textOf(await call("json_schema_2020_12_tool", contact));
    expect("arguments", JSON.parse(told.slice(told.indexOf("{"))), contact);
    await expectRefusal("no tool", call("no_tool"), facts.invalid_params);
  },

  async log() {
    await client.setLoggingLevel("debug");
    textOf(await call("test_tool_with_logging"));
    await waitFor("log messages", () => logged().length === facts.logged.length);
    expect("logged", logged(), facts.logged);
    await client.setLoggingLevel("error");
    textOf(await call("test_tool_with_logging"));
    await client.ping();
    expect("logged below the level", logged().length, facts.logged.length);
    await client.setLoggingLevel("debug");
  },

  async reportProgress() {
    const found = [];
    const onprogress = ({ progress, total }) => found.push([progress, total]);
    textOf(await call("test_tool_with_progress", {}, { onprogress }));
    // This SDK loses a report that arrives together with the answer (typescript-sdk#2580).
    expect("progress", found, facts.progress.slice(0, Math.max(found.length, 2)));
  },

  async cancel() {
    let found = 0;
    const controller = new AbortController();
    const onprogress = () => {
      found += 1;
      if (found === 2) controller.abort("no longer needed");
    };
    const options = { onprogress, signal: controller.signal };
    const outcome = await call("test_slow", { seconds: 5 }, options).catch(() => "cancelled");
    expect("cancelled", outcome, "cancelled");
    await client.ping();
    const after = found;
    await sleep(QUIET_MS);
    expect("reports after the cancellation", found - after, 0);
    await serverHas("test_slow was stopped");
  },

  async sample() {
    model = says("Blue.");
    const told = textOf(await call("test_sampling", { prompt: "Which colour?" }));
    expect("the model's answer", told, `${facts.model_said}Blue.`);
    const question = { role: "user", content: { type: "text", text: "Which colour?" } };
    expect("question", asked.at(-1).messages, [question]);
    expect("maxTokens", asked.at(-1).maxTokens, facts.max_tokens);
    model = refuses;
    const outcome = await call("test_sampling", { prompt: "?" }).catch(() => ({ isError: true }));
    expect("refused", outcome.isError, true);
  },

  async sampleWithProgress() {
    model = reports;
    const before = logged().length;
    const told = textOf(await call("test_sampling_with_progress", { prompt: "How far?" }));
    expect("the model's answer", told, `${facts.model_said}At last.`);
    await waitFor("logged reports", () => logged().length === before + 3);
    const expected = [1, 2, 3].map((progress) => ({ progress, total: 3 }));
    expect("reports", logged().slice(before), expected);
  },

  async giveUpSampling() {
    let isCancelled = false;
    model = async ({ signal }) => {
      await sleep(1000, undefined, { signal }).catch(() => undefined);
      isCancelled = signal.aborted;
      return "Too late.";
    };
    textOf(await call("test_cancelled_sampling"));
    await waitFor("the model was cancelled", () => isCancelled);
    await client.ping();
  },

  async listRoots() {
    for (const now of [roots, ["file:///work/three"]]) {
      roots = now;
      await client.sendRootsListChanged();
      expect("roots", textOf(await call("test_list_roots")).split("\n"), roots);
    }
  },

  async bePinged() {
    textOf(await call("test_ping"));
  },

  async readResources() {
    const listed = (await listResources()).map(({ uri }) => uri);
    for (const uri of [facts.static_text_uri, facts.static_binary_uri, facts.watched_uri]) {
      expect(`has ${uri}`, listed.includes(uri), true);
    }
    const templates = await list(client.listResourceTemplates, "resourceTemplates");
    expect("templates", templates.map(({ uriTemplate }) => uriTemplate), [facts.template]);
    const [text] = await read(facts.static_text_uri);
    expect("text", [text.uri, text.text], [facts.static_text_uri, facts.static_text]);
    const [binary] = await read(facts.static_binary_uri);
    expectImage(binary, binary.blob);
    const [data] = await read(facts.template.replace("{id}", "123"));
    const expected = JSON.stringify(facts.template_data).replaceAll("{id}", "123");
    expect("data", JSON.parse(data.text), JSON.parse(expected));
    await expectRefusal("no resource", read("test://nothing"), facts.resource_not_found);
  },

  async watchAResource() {
    const uri = facts.watched_uri;
    const updated = "notifications/resources/updated";
    await client.subscribeResource({ uri });
    textOf(await call("test_update_watched_resource"));
    await waitFor("update", () => count(updated) === 1);
    expect("update", heard.find(({ method }) => method === updated).params.uri, uri);
    await client.unsubscribeResource({ uri });
    textOf(await call("test_update_watched_resource"));
    await client.ping();
    await sleep(QUIET_MS);
    expect("updates after the subscription", count(updated), 1);
  },

  async hearOfChanges() {
    for (const [tool, kind, extra, items] of [
      ["test_trigger_tool_change", "tools", facts.extra_tool, listTools],
      ["test_trigger_prompt_change", "prompts", facts.extra_prompt, listPrompts],
      ["test_trigger_resource_change", "resources", facts.extra_resource_uri, listResources],
    ]) {
      const changed = `notifications/${kind}/list_changed`;
      textOf(await call(tool));
      await waitFor(changed, () => count(changed) === 1);
      const names = (await items()).map(({ uri, name }) => uri ?? name);
      expect(`${extra} has come`, names.includes(extra), true);
    }
  },

  async getPrompts() {
    const listed = await listPrompts();
    const { arguments: needed } = listed.find(({ name }) => name === "test_prompt_with_arguments");
    const names = needed.map(({ name, required }) => [name, required]);
    expect("arguments", names, [["arg1", true], ["arg2", true]]);
    const [simple] = await getPrompt("test_simple_prompt");
    expect("role", simple.role, "user");
    expect("text", simple.content.text, facts.simple_prompt);
    const [filled] = await getPrompt("test_prompt_with_arguments", { arg1: "hello", arg2: "wörld" });
    expect("text", filled.content.text, "Prompt with arguments: arg1='hello', arg2='wörld'");
    const uri = "test://given";
    const rich = await getPrompt("test_prompt_with_embedded_resource", { resourceUri: uri });
    expect("URI", rich[0].content.resource.uri, uri);
    expect("text", rich[1].content.text, facts.prompt_resource_request);
    const [image] = await getPrompt("test_prompt_with_image");
    expectImage(image.content, image.content.data);
    await expectRefusal("no prompt", getPrompt("no_prompt"), facts.invalid_params);
    const alone = getPrompt("test_prompt_with_arguments", { arg1: "alone" });
    await expectRefusal("no argument", alone, facts.invalid_params);
  },

  async complete() {
    const complete = async (ref, name, value) =>
      (await client.complete({ ref, argument: { name, value } })).completion.values;
    const prompt = { type: "ref/prompt", name: "test_prompt_with_arguments" };
    expect("words", await complete(prompt, "arg1", "par"), ["paris", "park", "party"]);
    const template = { type: "ref/resource", uri: facts.template };
    const ids = ["99", ...Array.from({ length: 10 }, (_, digit) => `99${digit}`)];
    expect("ids", await complete(template, "id", "99"), ids);
  },

  async beHeard() {
    for (const method of ["initialized", "progress", "roots/list_changed"]) {
      await serverHas(`notifications/${method}`);
    }
    expect("faults", faults, []);
  },
};

/** A transport to the command, at the revision that this is about: the SDK offers a newer one. */
function transportTo([command, ...args]) {
  const transport = new StdioClientTransport({ command, args });
  const send = transport.send.bind(transport);
  transport.send = (message, ...options) => {
    if (message.method === "initialize") message.params.protocolVersion = facts.revision;
    return send(message, ...options);
  };
  transport.setProtocolVersion = (revision) => expect("revision", revision, facts.revision);
  return transport;
}

const alarm = setTimeout(() => {
  console.error("the story took too long");
  process.exit(1);
}, STORY_MS);
await client.connect(transportTo(process.argv.slice(2)));
for (const [chapter, tell] of Object.entries(story)) {
  await tell().catch((error) => {
    error.message = `${chapter}: ${error.message}`;
    throw error;
  });
}
await client.close();
clearTimeout(alarm);
console.log(`${checks} checks`);
