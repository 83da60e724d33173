// The tour of ../tour.py, for the TypeScript SDKs.

import { facts, has } from "./facts.mjs";
import { chapters, expect, textOf } from "./scenario.mjs";

const SLOW_SECONDS = 1.5;
// The last one is lost, as it arrives together with the answer (typescript-sdk#2580).
const REPORTS_MIN = 15;
const ENDLESS_SECONDS = 60;

const steps = {
  list: chapters.listTools,
  async call(session) {
    expect("text", textOf(await session.call("test_simple_text")), facts.simple_text);
  },
  ask: (session, host) =>
    has(session.protocolVersion, "elicitation")
      ? chapters.elicit(session, host)
      : chapters.sample(session, host),
  progress: chapters.reportProgress,
  async resume(session) {
    const found = [];
    const onprogress = ({ progress }) => found.push(progress);
    textOf(await session.call("test_slow", { seconds: SLOW_SECONDS }, { onprogress }));
    expect("reports", found, [...new Set(found)].sort((a, b) => a - b));
    expect(`${REPORTS_MIN} of ${found}`, found.length >= REPORTS_MIN, true);
  },
};

/** Say at once what came of a step. */
function tell(step, outcome) {
  console.log(`${step}: ${outcome.replace(/\s+/g, " ")}`);
}

/** Take all steps, of which one may fail, and then be stopped. */
export async function take(session, host, protocolVersion) {
  expect("protocol version", session.protocolVersion, protocolVersion);
  for (const [name, step] of Object.entries(steps)) {
    if (name === "resume" && !has(protocolVersion, "sessions")) continue;
    await step(session, host).then(
      () => tell(name, "ok"),
      (error) => tell(name, error.message),
    );
  }
  let isBegun = false;
  const onprogress = () => {
    if (!isBegun) tell("begun", "ok");
    isBegun = true;
  };
  await session.call("test_slow", { seconds: ENDLESS_SECONDS }, { onprogress }).then(
    () => tell("stop", "answered"),
    (error) => tell("stop", error.constructor.name),
  );
}
