// The "everything" server, by the official TypeScript SDK: `node server.mjs`, over stdio.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

const facts = JSON.parse(readFileSync(new URL("../facts.json", import.meta.url), "utf8"));

const STEP_MS = 20;
const SLOW_STEP_MS = 100;
const PATIENCE_MS = 300;

/** What was heard from the client: the tool `test_heard` tells it. */
const heard = [];
const subscribed = new Set();
const extras = new Set();

const server = new Server(
  { name: "everything", version: "1" },
  {
    capabilities: {
      completions: {},
      logging: {},
      prompts: { listChanged: true },
      resources: { listChanged: true, subscribe: true },
      tools: { listChanged: true },
    },
  },
);

/** @param {string} text */
const text = (text) => ({ type: "text", text });
const image = { type: "image", data: facts.png, mimeType: "image/png" };
const resource = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });

/** A failure that the tool's result tells. */
class ToolFailed extends Error {}

/**
 * Ask the client's model.
 * @param {string} prompt
 * @param {object} options of the SDK: a signal that gives up, a function for progress
 */
async function sample(prompt, extra, options = {}) {
  const message = { role: "user", content: text(prompt) };
  const params = { messages: [message], maxTokens: facts.max_tokens };
  const request = { method: "sampling/createMessage", params };
  const result = await extra.sendRequest(request, types.CreateMessageResultSchema, options);
  return facts.model_said + result.content.text;
}

async function report(extra, progress, total) {
  const progressToken = extra._meta?.progressToken;
  if (progressToken !== undefined) {
    const params = { progressToken, progress, total };
    await extra.sendNotification({ method: "notifications/progress", params });
  }
}

/** Add what may come and go to a list, or remove it, and announce that. */
async function toggle(kind) {
  if (!extras.delete(kind)) extras.add(kind);
  await server.notification({ method: `notifications/${kind}/list_changed` });
  return [text("changed")];
}

// Tools: what they do, and the schemas of those that take arguments.

const tools = {
  test_simple_text: async () => [text(facts.simple_text)],
  test_image_content: async () => [image],
  test_embedded_resource: async () => [
    resource(facts.embedded_uri, "text/plain", facts.embedded_text),
  ],
  test_multiple_content_types: async () => [
    text(facts.mixed_text),
    image,
    resource(facts.mixed_uri, "application/json", JSON.stringify(facts.mixed_json)),
  ],
  test_tool_with_logging: async () => {
    for (const data of facts.logged) {
      await server.sendLoggingMessage({ level: "info", data });
      await sleep(STEP_MS);
    }
    return [text("logged")];
  },
  test_tool_with_progress: async (_, extra) => {
    for (const [progress, total] of facts.progress) {
      await report(extra, progress, total);
      await sleep(STEP_MS);
    }
    return [text("done")];
  },
  test_error_handling: async () => {
    throw new ToolFailed(facts.error_text);
  },
  test_sampling: async ({ prompt }, extra) => [text(await sample(prompt, extra))],
  test_sampling_with_progress: async ({ prompt }, extra) => {
    const onprogress = ({ progress, total }) => {
      heard.push("notifications/progress");
      server.sendLoggingMessage({ level: "info", data: { progress, total } });
    };
    return [text(await sample(prompt, extra, { onprogress }))];
  },
  test_cancelled_sampling: async (_, extra) => {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    await sample("Take your time.", extra, { signal }).catch(() => undefined);
    if (!signal.aborted) throw new ToolFailed("the model answered before anybody gave up");
    return [text("gave up")];
  },
  test_list_roots: async (_, extra) => {
    const { roots } = await extra.sendRequest({ method: "roots/list" }, types.ListRootsResultSchema);
    return [text(roots.map(({ uri }) => uri).join("\n"))];
  },
  test_ping: async (_, extra) => {
    await extra.sendRequest({ method: "ping" }, types.EmptyResultSchema);
    return [text("pong")];
  },
  test_slow: async ({ seconds = 2 }, extra) => {
    extra.signal.addEventListener("abort", () => heard.push("test_slow was stopped"));
    const steps = Math.round((seconds * 1000) / SLOW_STEP_MS);
    for (let step = 0; step <= steps && !extra.signal.aborted; step += 1) {
      await report(extra, step, steps);
      await sleep(SLOW_STEP_MS);
    }
    return [text("done")];
  },
  test_trigger_tool_change: () => toggle("tools"),
  test_trigger_resource_change: () => toggle("resources"),
  test_trigger_prompt_change: () => toggle("prompts"),
  test_update_watched_resource: async () => {
    if (subscribed.has(facts.watched_uri)) {
      await server.sendResourceUpdated({ uri: facts.watched_uri });
    }
    return [text("updated")];
  },
  json_schema_2020_12_tool: async (given) => [text(JSON.stringify(given))],
  test_heard: async () => [text(JSON.stringify(heard))],
};

const prompt = {
  type: "object",
  properties: { prompt: { type: "string" } },
  required: ["prompt"],
};
const schemas = {
  test_sampling: prompt,
  test_sampling_with_progress: prompt,
  test_slow: { type: "object", properties: { seconds: { type: "number" } } },
  json_schema_2020_12_tool: facts.contact_schema,
};

server.setRequestHandler(types.ListToolsRequestSchema, async () => {
  const names = [...Object.keys(tools), ...(extras.has("tools") ? [facts.extra_tool] : [])];
  const nothing = { type: "object", properties: {} };
  return { tools: names.map((name) => ({ name, inputSchema: schemas[name] ?? nothing })) };
});

server.setRequestHandler(types.CallToolRequestSchema, async ({ params }, extra) => {
  const tool = tools[params.name];
  if (!tool) throw new types.McpError(facts.invalid_params, `Unknown tool: ${params.name}`);
  try {
    return { content: await tool(params.arguments ?? {}, extra) };
  } catch (error) {
    if (!(error instanceof ToolFailed)) throw error;
    return { content: [text(error.message)], isError: true };
  }
});

// Resources.

const resources = {
  [facts.static_text_uri]: { mimeType: "text/plain", text: facts.static_text },
  [facts.static_binary_uri]: { mimeType: "image/png", blob: facts.png },
  [facts.watched_uri]: { mimeType: "text/plain", text: "watched" },
};

server.setRequestHandler(types.ListResourcesRequestSchema, async () => {
  const extra = extras.has("resources") ? [facts.extra_resource_uri] : [];
  return { resources: [...Object.keys(resources), ...extra].map((uri) => ({ uri, name: uri })) };
});

server.setRequestHandler(types.ListResourceTemplatesRequestSchema, async () => ({
  resourceTemplates: [{ uriTemplate: facts.template, name: "template" }],
}));

server.setRequestHandler(types.ReadResourceRequestSchema, async ({ params: { uri } }) => {
  if (resources[uri]) return { contents: [{ uri, ...resources[uri] }] };
  const [before, after] = facts.template.split("{id}");
  if (uri.startsWith(before) && uri.endsWith(after)) {
    const id = uri.slice(before.length, -after.length);
    const data = JSON.stringify(facts.template_data).replaceAll("{id}", id);
    return { contents: [{ uri, mimeType: "application/json", text: data }] };
  }
  throw new types.McpError(facts.resource_not_found, `Resource not found: ${uri}`);
});

server.setRequestHandler(types.SubscribeRequestSchema, async ({ params }) => {
  subscribed.add(params.uri);
  return {};
});

server.setRequestHandler(types.UnsubscribeRequestSchema, async ({ params }) => {
  subscribed.delete(params.uri);
  return {};
});

// Prompts: the names of their arguments, and the content of their messages.

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

server.setRequestHandler(types.ListPromptsRequestSchema, async () => {
  const listed = Object.entries(prompts).map(([name, [needed]]) => ({
    name,
    arguments: needed.map((argument) => ({ name: argument, required: true })),
  }));
  return { prompts: [...listed, ...(extras.has("prompts") ? [{ name: facts.extra_prompt }] : [])] };
});

server.setRequestHandler(types.GetPromptRequestSchema, async ({ params }) => {
  const given = params.arguments ?? {};
  const [needed, render] = prompts[params.name] ?? [];
  if (!needed?.every((name) => name in given)) {
    throw new types.McpError(facts.invalid_params, `No such prompt: ${params.name}`);
  }
  return { messages: render(given).map((content) => ({ role: "user", content })) };
});

// Completion, and what the client tells.

server.setRequestHandler(types.CompleteRequestSchema, async ({ params: { ref, argument } }) => {
  const ids = Array.from({ length: 1000 }, (_, number) => String(number));
  const known = ref.type === "ref/resource" ? ids : facts.words;
  const values = known.filter((word) => word.startsWith(argument.value));
  return { completion: { values, total: values.length, hasMore: false } };
});

for (const schema of [types.InitializedNotificationSchema, types.RootsListChangedNotificationSchema]) {
  server.setNotificationHandler(schema, ({ method }) => heard.push(method));
}

await server.connect(new StdioServerTransport());
