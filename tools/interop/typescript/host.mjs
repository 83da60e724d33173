// What the user of the client is to the server: roots, a model, answers, and ears.

import { setTimeout as sleep } from "node:timers/promises";

import { Refused, facts } from "./facts.mjs";

const REPORT_MS = 50;

export class Host {
  roots = ["file:///work/one", "file:///work/two"];
  model = says("nothing");
  user = { action: "cancel" };
  asked = [];
  elicited = [];
  heard = [];
  faults = [];

  /** The result of `sampling/createMessage`; `report` sends progress, `signal` is an abortion. */
  async sample(params, { report, signal }) {
    this.asked.push(params);
    const question = [params.messages.at(-1).content].flat()[0];
    if (params.tools && question.type === "text") {
      const use = { content: facts.weather_use, stopReason: "toolUse" };
      return { role: "assistant", model: "interop", ...use };
    }
    const content = { type: "text", text: await this.model({ report, signal }) };
    return { role: "assistant", model: "interop", content };
  }

  /** The result of `elicitation/create`. */
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

  hear(notification) {
    this.heard.push(notification);
  }

  complain({ message }) {
    // A report may have been on its way when its call was cancelled.
    if (!message.includes("progress notification for an unknown token")) this.faults.push(message);
  }

  count(method) {
    return this.heard.filter((notification) => notification.method === method).length;
  }

  logged() {
    return this.heard
      .filter(({ method }) => method === "notifications/message")
      .map(({ params }) => params.data);
  }
}

/** What is heard of the server. */
export const NOTIFICATIONS = [
  "notifications/message",
  "notifications/resources/updated",
  "notifications/tools/list_changed",
  "notifications/prompts/list_changed",
  "notifications/resources/list_changed",
];

// Models.

/** A model that always says the same. */
export function says(text) {
  return async () => text;
}

/** A user who lets no model be asked. */
export async function refuses() {
  throw new Refused(facts.user_rejected, "User rejected sampling request");
}

/** A model that tells how far it is. */
export async function reports({ report }) {
  for (const progress of [1, 2, 3]) {
    await report({ progress, total: 3 });
    // As a server, too, these SDKs lose a report that arrives together with the answer.
    await sleep(REPORT_MS);
  }
  return "At last.";
}
