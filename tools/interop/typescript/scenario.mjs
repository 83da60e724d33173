// The scenario of ../scenario.py, for the TypeScript SDKs. client_1.mjs and client_2.mjs adapt the
// clients of the SDKs to the session that the steps use.

import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { facts, has } from "./facts.mjs";
import { rejecting, reporting, answering } from "./host.mjs";

const WAIT_MS = 10_000;
const SCENARIO_MS = 60_000;
const QUIET_MS = 350;
const PROGRESS_CALLS_MAX = 5;
const PNG_SIGNATURE = "89504e470d0a1a0a";

// Checking.

let checks = 0;

/** Compare deeply. */
export function expect(what, found, expected) {
  checks += 1;
  if (!isDeepStrictEqual(found, expected)) {
    throw new Error(`${what}: ${JSON.stringify(found)}, not ${JSON.stringify(expected)}`);
  }
}

/** Check that a request is answered with an error of one of these codes. */
async function expectError(what, request, ...codes) {
  const answer = await request.catch((error) => error);
  expect(`${what}: ${answer?.code} is of ${codes}`, codes.includes(answer?.code), true);
}

/** Return the text of a result that has no other content. */
export function textOf({ content, isError = false }) {
  expect("isError", isError, false);
  expect("kinds of content", content.map(({ type }) => type), ["text"]);
  return content[0].text;
}

/** Return the user's answer that a tool repeats, without members that are null. */
function userAnswerIn(result) {
  const { action, content } = JSON.parse(textOf(result).replace(facts.user_answer, ""));
  return content === null ? { action } : { action, content };
}

function expectImage({ mimeType }, data) {
  expect("MIME type", mimeType, "image/png");
  expect("PNG", Buffer.from(data, "base64").subarray(0, 8).toString("hex"), PNG_SIGNATURE);
}

/** Wait until `isDone` is true: notifications may arrive after the answer. */
async function waitFor(what, isDone) {
  const end = Date.now() + WAIT_MS;
  while (!isDone() && Date.now() < end) await sleep(10);
  expect(what, isDone(), true);
}

/** Make a request, so that all earlier notifications have arrived. */
async function settle(session) {
  if (has(session.protocolVersion, "sessions")) await session.ping();
  else await session.list("resourceTemplates");
}

/** Check the server's list of received notifications, if it has the tool `test_received`. */
async function expectServerReceived(session, what) {
  if ((await session.list("tools")).some(({ name }) => name === "test_received")) {
    const answer = JSON.parse(textOf(await session.call("test_received")));
    expect(`${what} in ${answer}`, answer.includes(what), true);
  }
}

const toolsOf = async (session) =>
  Object.fromEntries((await session.list("tools")).map((tool) => [tool.name, tool]));

const titlesOf = (options) => options.map((option) => [option.const, option.title]);

// The steps of the scenario.

export const steps = {
  async checkCapabilities(session) {
    const offered = session.capabilities;
    for (const kind of ["tools", "prompts", "resources"]) {
      expect(`${kind}.listChanged`, offered[kind]?.listChanged, true);
    }
    expect("resources.subscribe", offered.resources.subscribe, true);
    expect("logging", "logging" in offered, true);
    if (has(session.protocolVersion, "completions")) expect("completions", "completions" in offered, true);
    await settle(session);
  },

  async listTools(session) {
    const tools = await toolsOf(session);
    expect("has test_simple_text", "test_simple_text" in tools, true);
    const { inputSchema } = tools.json_schema_2020_12_tool;
    expect("schema", inputSchema, facts.contact_schema);
    for (const [feature, member, value] of [
      ["annotations", "annotations", { readOnlyHint: true }],
      ["titles", "title", facts.tool_title],
      ["icons", "icons", [facts.icon]],
    ]) {
      if (has(session.protocolVersion, feature)) expect(member, tools.test_simple_text[member], value);
    }
  },

  async callTools(session) {
    const call = (...given) => session.call(...given);
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
    const answer = textOf(await call("json_schema_2020_12_tool", contact));
    expect("arguments", JSON.parse(answer.slice(answer.indexOf("{"))), contact);
    await expectError("no tool", call("no_tool"), facts.invalid_params);
  },

  async callAudioTool(session) {
    const [part] = (await session.call("test_audio_content")).content;
    expect("audio", { ...part }, { type: "audio", data: facts.wav, mimeType: "audio/wav" });
  },

  async callStructuredTool(session) {
    const { outputSchema } = (await toolsOf(session)).test_structured_content;
    const { properties, required } = facts.structured_schema;
    expect("outputSchema", Object.keys(outputSchema.properties), Object.keys(properties));
    expect("required", outputSchema.required.toSorted(), required.toSorted());
    const result = await session.call("test_structured_content", { city: "Oslo" });
    expect("structuredContent", result.structuredContent, facts.structured);
    expect("mirror", JSON.parse(textOf(result)), facts.structured);
  },

  async followALink(session) {
    const [link] = (await session.call("test_resource_link")).content;
    expect("link", [link.type, link.uri], ["resource_link", facts.static_text_uri]);
    const [text] = await session.read(link.uri);
    expect("text", text.text, facts.static_text);
  },

  async log(session, host) {
    await session.setLevel("debug");
    textOf(await session.call("test_tool_with_logging"));
    await waitFor("log messages", () => host.logged().length === facts.logged.length);
    expect("logged", host.logged(), facts.logged);
    await session.setLevel("error");
    textOf(await session.call("test_tool_with_logging"));
    await settle(session);
    expect("logged below the level", host.logged().length, facts.logged.length);
    await session.setLevel("debug");
  },

  async reportProgress(session) {
    const hasMessages = has(session.protocolVersion, "progress_messages");
    const expected = facts.progress.map(([progress, total, message]) => [
      progress,
      total,
      hasMessages ? message : undefined,
    ]);
    // These SDKs lose reports that arrive together with the answer (typescript-sdk#2580): always
    // the last one, and on a busy machine earlier ones, too. Then the tool is called again.
    for (let left = PROGRESS_CALLS_MAX; left > 0; left -= 1) {
      const found = [];
      const onprogress = ({ progress, total, message }) => found.push([progress, total, message]);
      textOf(await session.call("test_tool_with_progress", {}, { onprogress }));
      if (found.length < 2 && left > 1) continue;
      expect("progress", found, expected.slice(0, Math.max(found.length, 2)));
      return;
    }
  },

  async cancel(session) {
    let found = 0;
    const controller = new AbortController();
    const onprogress = () => {
      found += 1;
      if (found === 2) controller.abort("no longer needed");
    };
    const options = { onprogress, signal: controller.signal };
    const call = session.call("test_slow", { seconds: 5 }, options);
    expect("cancelled", await call.catch(() => "cancelled"), "cancelled");
    await settle(session);
    const after = found;
    await sleep(QUIET_MS);
    expect("reports after the cancellation", found - after, 0);
    await expectServerReceived(session, "test_slow was stopped");
  },

  async sample(session, host) {
    host.model = answering("Blue.");
    const answer = textOf(await session.call("test_sampling", { prompt: "Which colour?" }));
    expect("the model's answer", answer, `${facts.model_answer}Blue.`);
    const question = { role: "user", content: { type: "text", text: "Which colour?" } };
    expect("question", host.sampled.at(-1).messages, [question]);
    expect("maxTokens", host.sampled.at(-1).maxTokens, facts.max_tokens);
    host.model = rejecting;
    const rejected = session.call("test_sampling", { prompt: "?" });
    expect("rejected", (await rejected.catch(() => ({ isError: true }))).isError, true);
  },

  async sampleWithProgress(session, host) {
    host.model = reporting;
    const before = host.logged().length;
    const call = session.call("test_sampling_with_progress", { prompt: "How far?" });
    expect("the model's answer", textOf(await call), `${facts.model_answer}At last.`);
    await waitFor("logged reports", () => host.logged().length === before + 3);
    const expected = [1, 2, 3].map((progress) => ({ progress, total: 3 }));
    expect("reports", host.logged().slice(before), expected);
  },

  async cancelSampling(session, host) {
    let isCancelled = false;
    host.model = async ({ signal }) => {
      await sleep(1000, undefined, { signal }).catch(() => undefined);
      isCancelled = signal.aborted;
      return "Too late.";
    };
    textOf(await session.call("test_cancelled_sampling"));
    await waitFor("the model was cancelled", () => isCancelled);
    await session.ping();
  },

  async sampleWithTools(session, host) {
    host.model = answering("It is cold.");
    const before = host.sampled.length;
    const answer = textOf(await session.call("test_sampling_with_tools"));
    expect("the model's answer", answer, `${facts.model_answer}It is cold.`);
    const [first, second] = host.sampled.slice(before);
    expect("tools", first.tools.map(({ name }) => name), [facts.weather_tool.name]);
    const outcome = [second.messages.at(-1).content].flat()[0];
    expect("the tool's result", outcome.content[0].text, facts.weather);
  },

  async listRoots(session, host) {
    for (const now of [host.roots, ["file:///work/three"]]) {
      host.roots = now;
      if (has(session.protocolVersion, "sessions")) await session.rootsChanged();
      expect("roots", textOf(await session.call("test_list_roots")).split("\n"), now);
    }
  },

  async answerPing(session) {
    textOf(await session.call("test_ping"));
  },

  async elicit(session, host) {
    for (const answer of [
      { action: "accept", content: facts.form },
      { action: "decline" },
      { action: "cancel" },
    ]) {
      host.user = answer;
      const result = await session.call("test_elicitation", { message: "Who are you?" });
      expect("the user's answer", userAnswerIn(result), answer);
      const { message, requestedSchema } = host.elicited.at(-1);
      expect("message", message, "Who are you?");
      expect("form", Object.keys(requestedSchema.properties), Object.keys(facts.form));
    }
  },

  async elicitWithDefaults(session, host) {
    const content = { ...facts.defaults, name: "Ada", score: 90, status: "pending" };
    host.user = { action: "accept", content };
    const answer = userAnswerIn(await session.call("test_elicitation_sep1034_defaults"));
    expect("the user's answer", answer.content, content);
    const form = host.elicited.at(-1).requestedSchema.properties;
    for (const [name, value] of Object.entries(facts.defaults)) {
      expect(`the default of ${name}`, form[name].default, value);
    }
    expect("statuses", form.status.enum, facts.statuses);
  },

  async elicitChoices(session, host) {
    host.user = { action: "accept", content: facts.chosen };
    const answer = userAnswerIn(await session.call("test_elicitation_sep1330_enums"));
    expect("the user's answer", answer.content, facts.chosen);
    const form = host.elicited.at(-1).requestedSchema.properties;
    expect("one name", form.untitledSingle.enum, facts.options);
    expect("names", form.untitledMulti.items.enum, facts.options);
    expect("one title", titlesOf(form.titledSingle.oneOf), facts.titled_options);
    expect("titles", titlesOf(form.titledMulti.items.anyOf), facts.titled_options);
  },

  async elicitByUrl(session, host) {
    host.user = { action: "accept" };
    const answer = userAnswerIn(await session.call("test_elicitation_url"));
    expect("the user's answer", answer, { action: "accept" });
    const { mode, url, elicitationId } = host.elicited.at(-1);
    expect("question", [mode, url], ["url", facts.url]);
    if (has(session.protocolVersion, "url_errors")) {
      const completed = "notifications/elicitation/complete";
      await waitFor("completed", () => host.count(completed) === 1);
      const { params } = host.notifications.find(({ method }) => method === completed);
      expect("completed", params.elicitationId, elicitationId);
    }
  },

  async requireAUrl(session) {
    await expectError("a URL", session.call("test_url_required"), facts.url_required);
  },

  async answerSeveral(session, host) {
    host.user = { action: "accept", content: { name: "Ada" } };
    host.model = answering("Hello");
    const answer = await session.call("test_input_required_result_multiple_inputs");
    expect("answers", textOf(answer), ["Hello", "Ada:", ...host.roots].join(" "));
  },

  async answerInTurn(session, host) {
    host.user = { action: "accept", content: { name: "Ada", color: "green" } };
    const before = host.elicited.length;
    const answer = textOf(await session.call("test_input_required_result_multi_round"));
    expect("answers", answer, "Ada likes green");
    expect("questions", host.elicited.length - before, 2);
  },

  async answerAPrompt(session, host) {
    host.user = { action: "accept", content: { context: "the sea" } };
    const [message] = await session.getPrompt(facts.asking_prompt);
    expect("text", message.content.text, "Context: the sea");
  },

  async answerAResource(session, host) {
    host.user = { action: "accept", content: { context: "the sea" } };
    const [contents] = await session.read(facts.asking_uri);
    expect("text", contents.text, "Context: the sea");
  },

  async readResources(session) {
    const listed = (await session.list("resources")).map(({ uri }) => uri);
    for (const uri of [facts.static_text_uri, facts.static_binary_uri, facts.watched_uri]) {
      expect(`has ${uri}`, listed.includes(uri), true);
    }
    const templates = await session.list("resourceTemplates");
    expect("templates", templates.map(({ uriTemplate }) => uriTemplate), [facts.template]);
    const [text] = await session.read(facts.static_text_uri);
    expect("text", [text.uri, text.text], [facts.static_text_uri, facts.static_text]);
    const [binary] = await session.read(facts.static_binary_uri);
    expectImage(binary, binary.blob);
    const [data] = await session.read(facts.template.replace("{id}", "123"));
    const expected = JSON.stringify(facts.template_data).replaceAll("{id}", "123");
    expect("data", JSON.parse(data.text), JSON.parse(expected));
    const codes = [facts.invalid_params];
    if (has(session.protocolVersion, "sessions")) codes.push(facts.resource_not_found);
    await expectError("no resource", session.read("test://nothing"), ...codes);
  },

  async watchAResource(session, host) {
    const uri = facts.watched_uri;
    const updated = "notifications/resources/updated";
    await session.subscription(uri, async () => {
      textOf(await session.call("test_update_watched_resource"));
      await waitFor("update", () => host.count(updated) === 1);
      expect("update", host.notifications.find(({ method }) => method === updated).params.uri, uri);
    });
    textOf(await session.call("test_update_watched_resource"));
    await settle(session);
    await sleep(QUIET_MS);
    expect("updates after the subscription", host.count(updated), 1);
  },

  async noticeListChanges(session, host) {
    await session.listChanges(async () => {
      for (const [tool, kind, extra] of [
        ["test_trigger_tool_change", "tools", facts.extra_tool],
        ["test_trigger_prompt_change", "prompts", facts.extra_prompt],
        ["test_trigger_resource_change", "resources", facts.extra_resource_uri],
      ]) {
        const changed = `notifications/${kind}/list_changed`;
        textOf(await session.call(tool));
        await waitFor(changed, () => host.count(changed) === 1);
        const names = (await session.list(kind)).map(({ uri, name }) => uri ?? name);
        expect(`${extra} has come`, names.includes(extra), true);
      }
    });
  },

  async getPrompts(session) {
    const getPrompt = (...given) => session.getPrompt(...given);
    const listed = await session.list("prompts");
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
    await expectError("no prompt", getPrompt("no_prompt"), facts.invalid_params);
    const alone = getPrompt("test_prompt_with_arguments", { arg1: "alone" });
    await expectError("no argument", alone, facts.invalid_params);
  },

  async complete(session) {
    const prompt = { type: "ref/prompt", name: "test_prompt_with_arguments" };
    const argument = { name: "arg1", value: "par" };
    const words = ["paris", "park", "party"];
    expect("words", await session.complete({ ref: prompt, argument }), words);
    const template = { type: "ref/resource", uri: facts.template };
    const ids = ["99", ...Array.from({ length: 10 }, (_, digit) => `99${digit}`)];
    const id = { name: "id", value: "99" };
    expect("ids", await session.complete({ ref: template, argument: id }), ids);
  },

  async completeInContext(session) {
    const ref = { type: "ref/prompt", name: "test_prompt_with_arguments" };
    const argument = { name: "arg2", value: "par" };
    const context = { arguments: { arg1: "park" } };
    const words = await session.complete({ ref, argument, context });
    expect("words beside another", words, ["paris", "party"]);
  },

  async checkReceivedNotifications(session, host) {
    if (has(session.protocolVersion, "sessions")) {
      for (const method of ["initialized", "progress", "roots/list_changed"]) {
        await expectServerReceived(session, `notifications/${method}`);
      }
    }
    expect("errors", host.errors, []);
  },
};

/** The features of the protocol version that steps need. */
const needs = {
  callAudioTool: "audio",
  callStructuredTool: "structure",
  followALink: "links",
  sampleWithProgress: "sessions",
  cancelSampling: "sessions",
  sampleWithTools: "model_tools",
  answerPing: "sessions",
  elicit: "elicitation",
  elicitWithDefaults: "choices",
  elicitChoices: "choices",
  elicitByUrl: "urls",
  requireAUrl: "url_errors",
  answerSeveral: "elicitation",
  answerInTurn: "elicitation",
  answerAPrompt: "rounds",
  answerAResource: "rounds",
  completeInContext: "completion_context",
};

/** Run all steps that the protocol version supports, and print how many checks were made. */
export async function run(session, host, protocolVersion) {
  const alarm = setTimeout(() => {
    console.error("the scenario took too long");
    process.exit(1);
  }, SCENARIO_MS);
  expect("protocol version", session.protocolVersion, protocolVersion);
  for (const [name, step] of Object.entries(steps)) {
    if (name in needs && !has(protocolVersion, needs[name])) continue;
    await step(session, host).catch((error) => {
      error.message = `${name}: ${error.message}`;
      throw error;
    });
  }
  clearTimeout(alarm);
  console.log(`${checks} checks`);
}

/** Call one tool, and print the negotiated protocol version. */
export async function greet(session) {
  expect("text", textOf(await session.call("test_simple_text")), facts.simple_text);
  console.log(`at ${session.protocolVersion}`);
}

/** Return the capabilities of a client that has every feature. */
export function capabilitiesAt(protocolVersion) {
  return {
    roots: { listChanged: true },
    sampling: has(protocolVersion, "model_tools") ? { tools: {} } : {},
    ...(has(protocolVersion, "elicitation") && {
      elicitation: has(protocolVersion, "urls") ? { form: {}, url: {} } : {},
    }),
  };
}
