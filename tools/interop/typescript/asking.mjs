// The tools of the "everything" server that ask the client, see ../asking.py.
//
// They ask by `ask`: in a session the questions are requests of the server; where there is none,
// the handler ends with what it wants to know, and runs again when that is answered.

import { Refused, facts, has } from "./facts.mjs";

const PATIENCE_MS = 300;
const ELICITATION_ID = "sign-in-1";

/** A failure that the tool's result tells. */
export class ToolFailed extends Error {}

/** A handler cannot go on without the answers to these; `answers` are those that it has. */
export class NeedsAnswers extends Error {
  constructor(questions, answers) {
    super("needs answers");
    Object.assign(this, { questions, answers });
  }
}

/** Asks by requests, one after the other. */
export const askByRequests = (request) => async (questions) => {
  const answers = {};
  for (const [key, question] of Object.entries(questions)) answers[key] = await request(question);
  return answers;
};

/** Asks by results; `answers` are those that have come. */
export const askByResults = (answers) => async (questions) => {
  const open = Object.entries(questions).filter(([key]) => !(key in answers));
  if (open.length > 0) throw new NeedsAnswers(Object.fromEntries(open), answers);
  return answers;
};

// Questions.

const text = (text) => ({ type: "text", text });

const toModel = (prompt, more = {}) => ({
  method: "sampling/createMessage",
  params: {
    messages: [{ role: "user", content: text(prompt) }],
    maxTokens: facts.max_tokens,
    ...more,
  },
});

const toUser = (message, properties) => ({
  method: "elicitation/create",
  params: {
    message,
    requestedSchema: { type: "object", properties, required: Object.keys(properties) },
  },
});

const forRoots = { method: "roots/list" };

const string = { type: "string" };
const titled = facts.titled_options.map(([value, title]) => ({ const: value, title }));

const defaults = {
  name: string,
  age: { type: "integer" },
  score: { type: "number" },
  status: { type: "string", enum: facts.statuses },
  verified: { type: "boolean" },
};
for (const name of Object.keys(defaults)) {
  defaults[name] = { ...defaults[name], default: facts.defaults[name] };
}

const choices = {
  untitledSingle: { type: "string", enum: facts.options },
  titledSingle: { type: "string", oneOf: titled },
  legacyEnum: { type: "string", ...facts.named_options },
  untitledMulti: { type: "array", items: { type: "string", enum: facts.options } },
  titledMulti: { type: "array", items: { anyOf: titled } },
};

const page = { mode: "url", message: "Sign in.", url: facts.url };

// Answers.

const one = async (caller, question) => (await caller.ask({ answer: question })).answer;
const block = (content) => (Array.isArray(content) ? content[0] : content);
const modelSaid = ({ content }) => [text(facts.model_said + block(content).text)];
const userSaid = ({ action, content = null }) => [
  text(facts.user_said + JSON.stringify({ action, content })),
];

/** The text of a prompt, or of a resource, that asks. */
export async function contextOf(caller) {
  const question = toUser("What context should the prompt use?", { context: string });
  const { user_context } = await caller.ask({ user_context: question });
  return `Context: ${user_context.content.context}`;
}

export const askingTools = {
  test_sampling: async ({ prompt }, caller) => modelSaid(await one(caller, toModel(prompt))),
  async test_sampling_with_progress({ prompt }, caller) {
    const onprogress = ({ progress, total }) => {
      this.heard.push("notifications/progress");
      caller.log("info", { progress, total });
    };
    return modelSaid(await caller.request(toModel(prompt), { onprogress }));
  },
  test_cancelled_sampling: async (_, caller) => {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    await caller.request(toModel("Take your time."), { signal }).catch(() => undefined);
    if (!signal.aborted) throw new ToolFailed("the model answered before anybody gave up");
    return [text("gave up")];
  },
  test_sampling_with_tools: async (_, caller) => {
    const prompt = "How warm is it in Oslo?";
    const tools = { tools: [facts.weather_tool] };
    const { first } = await caller.ask({
      first: toModel(prompt, { ...tools, toolChoice: { mode: "auto" } }),
    });
    const use = block(first.content);
    const outcome = { type: "tool_result", toolUseId: use.id, content: [text(facts.weather)] };
    const question = toModel(prompt, tools);
    question.params.messages.push(
      { role: "assistant", content: use },
      { role: "user", content: outcome },
    );
    return modelSaid((await caller.ask({ second: question })).second);
  },
  test_list_roots: async (_, caller) => {
    const { roots } = await one(caller, forRoots);
    return [text(roots.map(({ uri }) => uri).join("\n"))];
  },
  test_ping: async (_, caller) => {
    await caller.request({ method: "ping" });
    return [text("pong")];
  },
  test_elicitation: async ({ message }, caller) => {
    const fields = Object.fromEntries(Object.keys(facts.form).map((name) => [name, string]));
    return userSaid(await one(caller, toUser(message, fields)));
  },
  test_elicitation_sep1034_defaults: async (_, caller) =>
    userSaid(await one(caller, toUser("Who are you?", defaults))),
  test_elicitation_sep1330_enums: async (_, caller) =>
    userSaid(await one(caller, toUser("Choose.", choices))),
  test_elicitation_url: async (_, caller) => {
    const isSession = has(caller.protocolVersion, "url_errors");
    const identity = isSession ? { elicitationId: ELICITATION_ID } : {};
    const params = { ...page, ...identity };
    const answer = await one(caller, { method: "elicitation/create", params });
    if (isSession) await caller.notify("notifications/elicitation/complete", identity);
    return userSaid(answer);
  },
  test_url_required: async () => {
    const elicitations = [{ ...page, elicitationId: ELICITATION_ID }];
    throw new Refused(facts.url_required, "Sign in first", { elicitations });
  },
  test_input_required_result_multiple_inputs: async (_, caller) => {
    const { user_name, greeting, client_roots } = await caller.ask({
      user_name: toUser("What is your name?", { name: string }),
      greeting: toModel("Generate a greeting"),
      client_roots: forRoots,
    });
    const uris = client_roots.roots.map(({ uri }) => uri);
    return [text([block(greeting.content).text, `${user_name.content.name}:`, ...uris].join(" "))];
  },
  test_input_required_result_multi_round: async (_, caller) => {
    const { step1 } = await caller.ask({ step1: toUser("What is your name?", { name: string }) });
    const { step2 } = await caller.ask({
      step2: toUser("Your favourite colour?", { color: string }),
    });
    return [text(`${step1.content.name} likes ${step2.content.color}`)];
  },
};
