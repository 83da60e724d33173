// The "everything" server of the TypeScript SDKs, independent of the SDK; see ../everything.py. A
// caller is what an SDK offers to a handler; see ../caller.py.

import { setTimeout as sleep } from "node:timers/promises";

import { ToolFailed, inputTools, contextOf } from "./input_requests.mjs";
import { Rejected, facts, has } from "./facts.mjs";

const STEP_MS = 20;
const SLOW_STEP_MS = 100;

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: facts.png, mimeType: "image/png" };
const audio = { type: "audio", data: facts.wav, mimeType: "audio/wav" };
const link = { type: "resource_link", uri: facts.static_text_uri, name: "static-text" };
const resource = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });

export const CAPABILITIES = {
  completions: {},
  logging: {},
  prompts: { listChanged: true },
  resources: { listChanged: true, subscribe: true },
  tools: { listChanged: true },
};

/** The server of one connection. */
export class Everything {
  /** Received notifications and cancelled calls, which the tool `test_received` lists. */
  received = [];
  subscribed = new Set();
  extras = new Set();

  /** Return the result of a request; throw `Rejected` for an error. */
  answer(method, params, caller) {
    return answers[method].call(this, params ?? {}, caller);
  }

  /** Add the extra item to a list, or remove it, and notify the client. */
  async toggle(kind, caller) {
    if (!this.extras.delete(kind)) this.extras.add(kind);
    await caller.notify(`notifications/${kind}/list_changed`);
    return [text("changed")];
  }

  extra(kind, item) {
    return this.extras.has(kind) ? [item] : [];
  }
}

// Tools, called on the server, and the schemas of those that take arguments.

const tools = {
  test_simple_text: async () => [text(facts.simple_text)],
  test_image_content: async () => [image],
  test_audio_content: async () => [audio],
  test_resource_link: async () => [link],
  test_embedded_resource: async () => [
    resource(facts.embedded_uri, "text/plain", facts.embedded_text),
  ],
  test_multiple_content_types: async () => [
    text(facts.mixed_text),
    image,
    resource(facts.mixed_uri, "application/json", JSON.stringify(facts.mixed_json)),
  ],
  test_structured_content: async () => ({
    content: [text(JSON.stringify(facts.structured))],
    structuredContent: facts.structured,
  }),
  test_tool_with_logging: async (_, caller) => {
    for (const data of facts.logged) {
      await caller.log("info", data);
      await sleep(STEP_MS);
    }
    return [text("logged")];
  },
  test_tool_with_progress: async (_, caller) => {
    for (const [progress, total, message] of facts.progress) {
      await caller.progress(progress, total, message);
      await sleep(STEP_MS);
    }
    return [text("done")];
  },
  test_error_handling: async () => {
    throw new ToolFailed(facts.error_text);
  },
  async test_slow({ seconds = 2 }, caller) {
    caller.signal.addEventListener("abort", () => this.received.push("test_slow was stopped"));
    const steps = Math.round((seconds * 1000) / SLOW_STEP_MS);
    for (let step = 0; step <= steps && !caller.signal.aborted; step += 1) {
      await caller.progress(step, steps);
      await sleep(SLOW_STEP_MS);
    }
    return [text("done")];
  },
  test_trigger_tool_change(_, caller) {
    return this.toggle("tools", caller);
  },
  test_trigger_resource_change(_, caller) {
    return this.toggle("resources", caller);
  },
  test_trigger_prompt_change(_, caller) {
    return this.toggle("prompts", caller);
  },
  async test_update_watched_resource(_, caller) {
    // Without a session the SDK knows the subscribers.
    if (this.subscribed.has(facts.watched_uri) || has(caller.protocolVersion, "rounds")) {
      await caller.notify("notifications/resources/updated", { uri: facts.watched_uri });
    }
    return [text("updated")];
  },
  json_schema_2020_12_tool: async (given) => [text(JSON.stringify(given))],
  async test_received() {
    return [text(JSON.stringify(this.received))];
  },
  ...inputTools,
};

const string = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
});

const schemas = {
  test_elicitation: string("message"),
  test_sampling: string("prompt"),
  test_sampling_with_progress: string("prompt"),
  test_slow: { type: "object", properties: { seconds: { type: "number" } } },
  test_structured_content: string("city"),
  json_schema_2020_12_tool: facts.contact_schema,
};

/** Members of tools, by the feature of the protocol version that they need. */
const descriptions = {
  test_simple_text: {
    annotations: { annotations: { readOnlyHint: true } },
    titles: { title: facts.tool_title },
    icons: { icons: [facts.icon] },
  },
  test_structured_content: { structure: { outputSchema: facts.structured_schema } },
};

function described(name, protocolVersion) {
  const inputSchema = schemas[name] ?? { type: "object", properties: {} };
  const more = Object.entries(descriptions[name] ?? {})
    .filter(([feature]) => has(protocolVersion, feature))
    .map(([, members]) => members);
  return Object.assign({ name, inputSchema }, ...more);
}

// Resources, and prompts: the names of their arguments, and the content of their messages.

const resources = {
  [facts.static_text_uri]: { mimeType: "text/plain", text: facts.static_text },
  [facts.static_binary_uri]: { mimeType: "image/png", blob: facts.png },
  [facts.watched_uri]: { mimeType: "text/plain", text: "watched" },
};

const prompts = {
  test_simple_prompt: [[], () => [text(facts.simple_prompt)]],
  test_prompt_with_arguments: [
    ["arg1", "arg2"],
    ({ arg1, arg2 }) => {
      const filled = facts.prompt_with_arguments.replace("{arg1}", arg1).replace("{arg2}", arg2);
      return [text(filled)];
    },
  ],
  test_prompt_with_embedded_resource: [
    ["resourceUri"],
    ({ resourceUri }) => [
      resource(resourceUri, "text/plain", facts.prompt_resource_text),
      text(facts.prompt_resource_request),
    ],
  ],
  test_prompt_with_image: [[], () => [image, text(facts.prompt_image_request)]],
};

// The results of methods, called on the server.

const answers = {
  async "tools/list"(_, { protocolVersion }) {
    const listed = Object.keys(tools).map((name) => described(name, protocolVersion));
    return { tools: [...listed, ...this.extra("tools", described(facts.extra_tool, protocolVersion))] };
  },

  async "tools/call"(params, caller) {
    const tool = tools[params.name];
    if (!tool) throw new Rejected(facts.invalid_params, `Unknown tool: ${params.name}`);
    try {
      const returned = await tool.call(this, params.arguments ?? {}, caller);
      return Array.isArray(returned) ? { content: returned } : returned;
    } catch (error) {
      if (!(error instanceof ToolFailed)) throw error;
      return { content: [text(error.message)], isError: true };
    }
  },

  async "resources/list"() {
    const uris = [...Object.keys(resources), ...this.extra("resources", facts.extra_resource_uri)];
    return { resources: uris.map((uri) => ({ uri, name: uri })) };
  },

  async "resources/templates/list"() {
    return { resourceTemplates: [{ uriTemplate: facts.template, name: "template" }] };
  },

  async "resources/read"({ uri }, caller) {
    if (uri === facts.asking_uri) return { contents: [{ uri, text: await contextOf(caller) }] };
    if (resources[uri]) return { contents: [{ uri, ...resources[uri] }] };
    const [before, after] = facts.template.split("{id}");
    if (uri.startsWith(before) && uri.endsWith(after)) {
      const id = uri.slice(before.length, -after.length);
      const data = JSON.stringify(facts.template_data).replaceAll("{id}", id);
      return { contents: [{ uri, mimeType: "application/json", text: data }] };
    }
    const isSession = has(caller.protocolVersion, "sessions");
    const code = isSession ? facts.resource_not_found : facts.invalid_params;
    throw new Rejected(code, `Resource not found: ${uri}`, { uri });
  },

  async "resources/subscribe"({ uri }) {
    this.subscribed.add(uri);
    return {};
  },

  async "resources/unsubscribe"({ uri }) {
    this.subscribed.delete(uri);
    return {};
  },

  async "prompts/list"() {
    const listed = Object.entries(prompts).map(([name, [needed]]) => ({
      name,
      arguments: needed.map((argument) => ({ name: argument, required: true })),
    }));
    return { prompts: [...listed, ...this.extra("prompts", { name: facts.extra_prompt })] };
  },

  async "prompts/get"(params, caller) {
    const given = params.arguments ?? {};
    const [needed, render] =
      params.name === facts.asking_prompt
        ? [[], async () => [text(await contextOf(caller))]]
        : (prompts[params.name] ?? []);
    if (!needed?.every((name) => name in given)) {
      throw new Rejected(facts.invalid_params, `No such prompt: ${params.name}`);
    }
    const contents = await render(given);
    return { messages: contents.map((content) => ({ role: "user", content })) };
  },

  async "completion/complete"({ ref, argument, context }) {
    const ids = Array.from({ length: 1000 }, (_, number) => String(number));
    const known = ref.type === "ref/resource" ? ids : facts.words;
    const taken = Object.values(context?.arguments ?? {});
    const values = known.filter((word) => word.startsWith(argument.value) && !taken.includes(word));
    return { completion: { values, total: values.length, hasMore: false } };
  },
};

export const METHODS = Object.keys(answers);
