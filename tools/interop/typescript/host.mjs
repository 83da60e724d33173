// The client's host: its roots, its model, its user's answers, and what it received.

import { setTimeout as sleep } from "node:timers/promises";

import { Rejected, facts } from "./facts.mjs";

const REPORT_MS = 50;

export class Host {
  roots = ["file:///work/one", "file:///work/two"];
  model = answering("nothing");
  user = { action: "cancel" };
  sampled = [];
  elicited = [];
  notifications = [];
  errors = [];

  /** Return the result of `sampling/createMessage`; `report` sends progress, `signal` cancels. */
  async sample(params, { report, signal }) {
    this.sampled.push(params);
    const question = [params.messages.at(-1).content].flat()[0];
    if (params.tools && question.type === "text") {
      const use = { content: facts.weather_use, stopReason: "toolUse" };
      return { role: "assistant", model: "interop", ...use };
    }
    const content = { type: "text", text: await this.model({ report, signal }) };
    return { role: "assistant", model: "interop", content };
  }

  /** Return the result of `elicitation/create`. */
  async elicit(params) {
    this.elicited.push(params);
    const { action, content } = this.user;
    if (content === undefined) return { action };
    const wanted = Object.keys(params.requestedSchema.properties);
    return { action, content: Object.fromEntries(wanted.map((name) => [name, content[name]])) };
  }

  listRoots() {
    return { roots: this.roots.map((uri) => ({ uri })) };
  }

  receive(notification) {
    this.notifications.push(notification);
  }

  addError({ message }) {
    // A report may arrive after its call was cancelled.
    if (!message.includes("progress notification for an unknown token")) this.errors.push(message);
  }

  count(method) {
    return this.notifications.filter((notification) => notification.method === method).length;
  }

  logged() {
    return this.notifications
      .filter(({ method }) => method === "notifications/message")
      .map(({ params }) => params.data);
  }
}

/** The notifications that a client receives. */
export const NOTIFICATIONS = [
  "notifications/message",
  "notifications/resources/updated",
  "notifications/tools/list_changed",
  "notifications/prompts/list_changed",
  "notifications/resources/list_changed",
];

// Models.

/** Return a model that always gives the same answer. */
export function answering(text) {
  return async () => text;
}

/** A model whose user rejects every request. */
export async function rejecting() {
  throw new Rejected(facts.user_rejected, "User rejected sampling request");
}

/** A model that reports progress. */
export async function reporting({ report }) {
  for (const progress of [1, 2, 3]) {
    await report({ progress, total: 3 });
    // These SDKs lose a report that arrives together with the answer, as servers, too.
    await sleep(REPORT_MS);
  }
  return "At last.";
}
