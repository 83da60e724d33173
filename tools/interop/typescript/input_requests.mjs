// The tools of the "everything" server that request input from the client; see ../everything.py.
//
// In a session `ask` sends requests. Without sessions the handler ends with an `input_required`
// result, and runs again when the client retries with the answers.

import { Rejected, facts, has } from "./facts.mjs";

const CANCEL_AFTER_MS = 300;
const ELICITATION_ID = "sign-in-1";

/** A tool fails; the result has `isError`. */
export class ToolFailed extends Error {}

/** A handler needs answers to `questions`; `answers` are those that it has already. */
export class InputRequired extends Error {
  constructor(questions, answers) {
    super("input required");
    Object.assign(this, { questions, answers });
  }
}

/** Return an `ask` that sends requests, one after the other. */
export const askByRequests = (request) => async (questions) => {
  const answers = {};
  for (const [key, question] of Object.entries(questions)) answers[key] = await request(question);
  return answers;
};

/** Return an `ask` for `input_required` results; `answers` came with the request. */
export const askByResults = (answers) => async (questions) => {
  const open = Object.entries(questions).filter(([key]) => !(key in answers));
  if (open.length > 0) throw new InputRequired(Object.fromEntries(open), answers);
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

const urlQuestion = { mode: "url", message: "Sign in.", url: facts.url };

// Answers.

const one = async (caller, question) => (await caller.ask({ answer: question })).answer;
const block = (content) => (Array.isArray(content) ? content[0] : content);
const modelAnswer = ({ content }) => [text(facts.model_answer + block(content).text)];
const userAnswer = ({ action, content = null }) => [
  text(facts.user_answer + JSON.stringify({ action, content })),
];

/** Return the text of a prompt or a resource that requests input. */
export async function contextOf(caller) {
  const question = toUser("What context should the prompt use?", { context: string });
  const { user_context } = await caller.ask({ user_context: question });
  return `Context: ${user_context.content.context}`;
}

export const inputTools = {
  test_sampling: async ({ prompt }, caller) => modelAnswer(await one(caller, toModel(prompt))),
  async test_sampling_with_progress({ prompt }, caller) {
    const onprogress = ({ progress, total }) => {
      this.received.push("notifications/progress");
      caller.log("info", { progress, total });
    };
    return modelAnswer(await caller.request(toModel(prompt), { onprogress }));
  },
  test_cancelled_sampling: async (_, caller) => {
    const signal = AbortSignal.timeout(CANCEL_AFTER_MS);
    await caller.request(toModel("Take your time."), { signal }).catch(() => undefined);
    if (!signal.aborted) throw new ToolFailed("the model answered before the cancellation");
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
    return modelAnswer((await caller.ask({ second: question })).second);
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
    return userAnswer(await one(caller, toUser(message, fields)));
  },
  test_elicitation_sep1034_defaults: async (_, caller) =>
    userAnswer(await one(caller, toUser("Who are you?", defaults))),
  test_elicitation_sep1330_enums: async (_, caller) =>
    userAnswer(await one(caller, toUser("Choose.", choices))),
  test_elicitation_url: async (_, caller) => {
    const isSession = has(caller.protocolVersion, "url_errors");
    const identity = isSession ? { elicitationId: ELICITATION_ID } : {};
    const params = { ...urlQuestion, ...identity };
    const answer = await one(caller, { method: "elicitation/create", params });
    if (isSession) await caller.notify("notifications/elicitation/complete", identity);
    return userAnswer(answer);
  },
  test_url_required: async () => {
    const elicitations = [{ ...urlQuestion, elicitationId: ELICITATION_ID }];
    throw new Rejected(facts.url_required, "Sign in first", { elicitations });
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
