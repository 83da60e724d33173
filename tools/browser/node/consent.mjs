// Let a user allow access in a browser: `node consent.mjs` reads the task from standard input.
//
// It prints a line of JSON: what the consent page shows, and whether another page can frame it.

import { text } from "node:stream/consumers";

import { chromium } from "playwright-core";

const { executable, url, framer } = JSON.parse(await text(process.stdin));
const browser = await chromium.launch({ executablePath: executable });

/** Return the text of the consent page in a frame of another page; empty if it is blocked. */
async function framedText() {
  const page = await browser.newPage();
  await page.goto(framer);
  await page.setContent(`<iframe src="${url.replaceAll("&", "&amp;")}"></iframe>`);
  await page.waitForTimeout(500);
  const frame = page.frames().find((each) => each.parentFrame());
  const body = await frame?.textContent("form", { timeout: 500 }).catch(() => "");
  await page.close();
  return body ?? "";
}

const framed = await framedText();
const page = await browser.newPage({ viewport: { width: 640, height: 760 } });
const errors = [];
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
await page.goto(url);
const shown = await page.textContent("body");
const scripts = await page.locator("script").count();
const font = await page.evaluate(() => getComputedStyle(document.body).fontFamily);
await page.getByRole("button", { name: "Allow" }).click();
await page.waitForLoadState();
console.log(JSON.stringify({ framed, shown, scripts, font, errors, reached: page.url() }));
await browser.close();
