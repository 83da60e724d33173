// Drives a browser: `node drive.mjs`, with what to do on standard input; prints a line for each visit.

import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

import { chromium } from "playwright-core";

const LOOK_MILLISECONDS = 10;
const LOOKS_MAX = 100;

const { executable, args, pages, pictures, atOnce, visits } = JSON.parse(await text(process.stdin));

/** Let one page make its visits, one after the other. */
async function come(address, visits) {
  const page = await browser.newPage({ viewport: { width: 800, height: 560 } });
  if (visits[0].isPlanted) await plant(page, new URL(address));
  await page.goto(address);
  const [statuses, protocols] = await watch(page);
  for (const { name, task } of visits) {
    statuses.length = protocols.length = 0;
    const outcome = await page.evaluate((given) => globalThis.visit(given), task);
    if (outcome.said !== "answered") await until(() => statuses.some((status) => status >= 400));
    const shown = await page.textContent("output");
    if (pictures) await page.screenshot({ path: `${pictures}/${name}.png` });
    console.log(JSON.stringify({ ...outcome, name, shown, statuses, protocols }));
  }
  await page.close();
}

/** Show pages of ours at an address where there are none: a name has changed what it stands for. */
async function plant(page, { origin }) {
  const isPage = (url) => url.origin === origin && url.pathname.startsWith("/page/");
  await page.route(isPage, async (route) => {
    const url = route.request().url().replace(origin, pages);
    await route.fulfill({ response: await route.fetch({ url }) });
  });
}

/** The statuses of whatever is answered from now on, of what the page cannot read too; and over what. */
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

/** Of a handshake that has failed the browser tells the status in its own words. */
function statusesIn(message) {
  if (message.startsWith("HTTP Authentication failed")) return [401];
  return (/(?<=Unexpected response code: )\d+/.exec(message) ?? []).map(Number);
}

/** Return when it is so, or does not come to be: the browser tells of a status when it likes. */
async function until(isSo) {
  for (let looks = 0; !isSo() && looks < LOOKS_MAX; looks++) await sleep(LOOK_MILLISECONDS);
}

const browser = await chromium.launch({ executablePath: executable, args });
const ahead = Map.groupBy(visits, (visit) => visit.page).entries();
async function comeAgain() {
  for (const [address, ofPage] of ahead) await come(address, ofPage);
}
await Promise.all(Array.from({ length: atOnce }, comeAgain));
await browser.close();
