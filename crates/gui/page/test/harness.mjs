// A small test runner: named tests, one after the other, each with a browser context of its own.
//
// Whatever a test does, it also fails when the page logs an error, breaks the content security
// policy, or lets the token into an address.
import { chromium } from 'playwright-core';

export const PATIENCE_MS = 30_000;
/** How long requests may take to come back to an endpoint: one that was slow once is believed to be, by half for every ten seconds. */
export const RETURN_MS = 150_000;
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking'];

const tests = [];

/** A test. `name` is a sentence of the behaviour; `options.allow` are errors that belong to it. */
export function test(name, run, options = {}) {
  tests.push({ name, run, allow: options.allow ?? [] });
}

export function assert(holds, message) {
  if (!holds) throw new Error(message);
}

export function equal(got, wanted, what) {
  assert(got === wanted, `${what}: ${JSON.stringify(got)} instead of ${JSON.stringify(wanted)}`);
}

/** Asks until the answer is truthy, and returns it. */
export async function until(what, ask, patience = PATIENCE_MS) {
  const end = Date.now() + patience;
  let last;
  for (;;) {
    try {
      last = await ask();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`waited ${patience / 1000} s in vain: ${what} (last: ${last instanceof Error ? last.message : JSON.stringify(last)})`);
    await new Promise((go) => setTimeout(go, 50));
  }
}

/** A browser, and pages of it that are watched. */
export class Browser {
  static async start() {
    const mine = new Browser();
    mine.browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
    return mine;
  }

  async stop() {
    await this.browser.close();
  }

  /** A watched page; signed in with `token` where there is one. */
  async page({ base, token, secret = token, size = [1440, 900], dark = false, anyCertificate = false, allow = [], watch = [] }) {
    const context = await this.browser.newContext({ viewport: { width: size[0], height: size[1] }, colorScheme: dark ? 'dark' : 'light', reducedMotion: 'reduce', ignoreHTTPSErrors: anyCertificate });
    await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: new URL(base).origin }).catch(() => undefined);
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    const faults = watch;
    const fault = (text) => {
      if (!allow.some((pattern) => pattern.test(text))) faults.push(text);
    };
    page.on('console', (said) => (said.type() === 'error' || said.type() === 'warning') && fault(`console: ${said.text()}`));
    page.on('pageerror', (error) => fault(`error: ${error.message}`));
    page.on('request', (request) => secret && request.url().includes(secret) && fault(`the token is in ${request.url()}`));
    await page.addInitScript(() => {
      addEventListener('securitypolicyviolation', (e) => console.error(`CSP violation: ${e.violatedDirective} ${e.blockedURI}`));
    });
    if (token) {
      await page.addInitScript((value) => {
        if (!sessionStorage.getItem('signed-out')) sessionStorage.setItem('telaio-token', value);
      }, token);
    }
    page.faults = faults;
    page.open = async (place) => {
      await page.goto(`${base}#/${place}`);
      await page.waitForSelector('.shell h1');
    };
    page.close = () => context.close();
    return page;
  }
}

/** Runs all tests, or those whose name has a text, each so often; how many passed and failed. */
export async function runAll(world, only, times = 1) {
  const chosen = tests.filter((one) => !only || one.name.includes(only)).flatMap((one) => Array(times).fill(one));
  const failed = [];
  for (const { name, run, allow } of chosen) {
    const pages = [];
    const open = async (options = {}) => {
      const page = await world.browser.page({ base: world.base, token: world.token, ...options, allow: [...allow, ...(options.allow ?? [])] });
      pages.push(page);
      return page;
    };
    const start = Date.now();
    let problem = null;
    try {
      await run({ ...world, open });
      const faults = pages.flatMap((page) => page.faults);
      assert(faults.length === 0, `the page complained:\n    ${faults.join('\n    ')}`);
    } catch (error) {
      problem = error;
      for (const [i, page] of pages.entries()) {
        if (world.failures) await page.screenshot({ path: `${world.failures}/${name.replace(/\W+/g, '-')}-${i}.png` }).catch(() => undefined);
      }
    }
    for (const page of pages) await page.close().catch(() => undefined);
    console.log(`${problem ? 'FAIL' : 'ok  '} ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
    if (problem) {
      failed.push(name);
      console.log(`    ${problem.stack ?? problem}`);
    }
  }
  return { passed: chosen.length - failed.length, failed: failed.length };
}
