// Drives one page of a Chromium by requests on standard input, one JSON object a line:
//   {"selector": null | "css or text selector", "method": "click", "args": [...]}
// A method is one of Playwright's Page, of its Locator where a selector is given, or of its Keyboard where that is
// "keyboard". The answer is a line {"value": ...} or {"error": "..."}. The end of the input closes the browser.

import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [profile, executablePath, timeout] = process.argv.slice(2);
const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  headless: true,
  viewport: { width: 1000, height: 640 },
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(Number(timeout));
page.setDefaultNavigationTimeout(Number(timeout));

for await (const line of createInterface({ input: process.stdin })) {
  const { selector, method, args } = JSON.parse(line);
  let answer;
  try {
    const target = selector === null ? page : selector === "keyboard" ? page.keyboard : page.locator(selector);
    const value = await target[method](...args);
    const plain = ["string", "number", "boolean"].includes(typeof value) || Array.isArray(value);
    answer = { value: plain ? value : null };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await context.close();
