// The checks of ../mount_checks.py, for the TypeScript SDKs.

import { facts, has } from "./facts.mjs";
import { steps, expect, textOf } from "./scenario.mjs";

const SLOW_SECONDS = 1.5;
// The SDK loses the last one, which arrives together with the answer (typescript-sdk#2580).
const REPORTS_MIN = 15;
const ENDLESS_SECONDS = 60;

const checks = {
  list: steps.listTools,
  async call(session) {
    expect("text", textOf(await session.call("test_simple_text")), facts.simple_text);
  },
  ask: (session, host) =>
    has(session.protocolVersion, "elicitation")
      ? steps.elicit(session, host)
      : steps.sample(session, host),
  progress: steps.reportProgress,
  async resume(session) {
    const found = [];
    const onprogress = ({ progress }) => found.push(progress);
    textOf(await session.call("test_slow", { seconds: SLOW_SECONDS }, { onprogress }));
    expect("reports", found, [...new Set(found)].sort((a, b) => a - b));
    expect(`${REPORTS_MIN} of ${found}`, found.length >= REPORTS_MIN, true);
  },
};

function printStep(step, outcome) {
  console.log(`${step}: ${outcome.replace(/\s+/g, " ")}`);
}

/** Run all steps, going on after failures, then call until the server stops. */
export async function runMountChecks(session, host, protocolVersion) {
  expect("protocol version", session.protocolVersion, protocolVersion);
  for (const [name, step] of Object.entries(checks)) {
    if (name === "resume" && !has(protocolVersion, "sessions")) continue;
    await step(session, host).then(
      () => printStep(name, "ok"),
      (error) => printStep(name, error.message),
    );
  }
  let isBegun = false;
  const onprogress = () => {
    if (!isBegun) printStep("begun", "ok");
    isBegun = true;
  };
  await session.call("test_slow", { seconds: ENDLESS_SECONDS }, { onprogress }).then(
    () => printStep("stop", "answered"),
    (error) => printStep("stop", error.constructor.name),
  );
}
