// Drive a browser: `node drive.mjs` reads the visits from standard input, and prints a line for each.

import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

import { chromium } from "playwright-core";

const POLL_MS = 10;
const POLLS_MAX = 100;

const { executable, args, pages, atOnce, visits } = JSON.parse(await text(process.stdin));

/** Make all visits of one page, one after the other. */
async function visitPages(address, visits) {
  const page = await browser.newPage({ viewport: { width: 800, height: 560 } });
  if (visits[0].isFulfilled) await fulfillFromPages(page, new URL(address));
  await page.goto(address);
  const [statuses, protocols] = await watch(page);
  for (const { name, task } of visits) {
    statuses.length = protocols.length = 0;
    const outcome = await page.evaluate((given) => globalThis.visit(given), task);
    if (outcome.result !== "answered") await until(() => statuses.some((status) => status >= 400));
    const shown = await page.textContent("output");
    console.log(JSON.stringify({ ...outcome, name, shown, statuses, protocols }));
  }
  await page.close();
}

/** Show our pages at an origin that serves none, as after DNS rebinding. */
async function fulfillFromPages(page, { origin }) {
  const isPage = (url) => url.origin === origin && url.pathname.startsWith("/page/");
  await page.route(isPage, async (route) => {
    const url = route.request().url().replace(origin, pages);
    await route.fulfill({ response: await route.fetch({ url }) });
  });
}

/** Collect the statuses and protocols of all later responses, including those hidden from the page. */
async function watch(page) {
  const statuses = [];
  const protocols = [];
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  session.on("Network.responseReceivedExtraInfo", ({ statusCode }) => statuses.push(statusCode));
  session.on("Network.webSocketFrameError", ({ errorMessage }) => {
    statuses.push(...statusesIn(errorMessage));
  });
  session.on("Network.responseReceived", ({ response }) => protocols.push(response.protocol));
  session.on("Network.webSocketHandshakeResponseReceived", ({ response }) => {
    protocols.push(response.status === 101 ? "http/1.1" : "h2");
  });
  return [statuses, protocols];
}

/** Return the status that the browser's error message of a failed handshake names. */
function statusesIn(message) {
  if (message.startsWith("HTTP Authentication failed")) return [401];
  return (/(?<=Unexpected response code: )\d+/.exec(message) ?? []).map(Number);
}

/** Wait until `isDone` is true, for a second: the browser reports statuses late. */
async function until(isDone) {
  for (let polls = 0; !isDone() && polls < POLLS_MAX; polls++) await sleep(POLL_MS);
}

const browser = await chromium.launch({ executablePath: executable, args });
const queue = Map.groupBy(visits, (visit) => visit.page).entries();
async function visitNext() {
  for (const [address, ofPage] of queue) await visitPages(address, ofPage);
}
await Promise.all(Array.from({ length: atOnce }, visitNext));
await browser.close();
