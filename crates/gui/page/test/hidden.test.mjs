// Tabs that nobody sees, many tabs, and an agent that starts again: what is shown is never older than it says.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { equal, test, until } from './harness.mjs';
import { put, service, slice } from './cluster.mjs';
import { endpointRow, confirm } from './manage.test.mjs';
import { show, VIEWS } from './views.test.mjs';

/** More tabs than a browser opens connections to a host. */
const TABS = 8;

/** Overrides how the page sees its tab, for there is no other way to hide one without a screen. */
async function tab(page, hidden) {
  await page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
    Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => (value ? 'hidden' : 'visible') });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
}

/** The streams of a page that are open now. */
function streams(page) {
  const open = new Set();
  const isOne = (request) => request.url().includes('/events/stream');
  page.on('request', (request) => isOne(request) && open.add(request));
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => open.delete(request));
  return open;
}

const live = (page) => page.locator('.view-head .live', { hasText: 'Live' }).waitFor();

/** An override that somebody wrote by hand. */
const manifest = (name, address) => `apiVersion: telaio.dev/v1
kind: Override
metadata: { name: ${name}, namespace: search }
spec: { service: { name: index }, target: { address: ${address} }, action: drain, by: eve@example.com, reason: ${name} }
---
`;

test('a tab that nobody sees has no stream, and whoever looks again sees what happened meanwhile', async ({ open, manifests, backends }) => {
  const [{ address }] = backends.get('search/index');
  const file = 'zz-hidden.yaml';
  const pages = [await open(), await open(), await open()];
  const [overrides, events, services] = pages;
  const opened = pages.map(streams);
  await show(overrides, ['overrides', 'Overrides', 'Nothing is overridden']);
  await show(events, ['events', 'Events', 'In the kernel after']);
  await show(services, ['services', 'Services', '10.96.0.11']);
  for (const page of pages) await live(page);
  for (const page of pages) await tab(page, true);
  await until('no stream is open', () => opened.every((one) => one.size === 0));
  try {
    put(manifests, file, manifest('while-hidden', address) + service('shop', 'hidden', '10.96.0.91') + slice('shop', 'hidden', [{ address: '10.244.2.91' }]));
    const other = await open();
    await other.open('overrides');
    await other.getByText('while-hidden').first().waitFor();
    equal(await overrides.getByText('while-hidden').count(), 0, 'what a hidden tab shows');
    for (const page of pages) await tab(page, false);
    await overrides.getByText('while-hidden').first().waitFor();
    await services.locator('tr', { hasText: 'shop/hidden' }).waitFor();
    await events.locator('tr', { hasText: 'shop/hidden' }).filter({ hasText: 'added' }).first().waitFor();
    for (const page of pages) await live(page);
  } finally {
    rmSync(join(manifests, file), { force: true });
  }
  await overrides.getByText('Nothing is overridden').waitFor();
}, { allow: [/ERR_ABORTED/] });

test(`${TABS} tabs all load, the one that is seen is live, and acts`, async ({ open, backends, token }) => {
  const [{ address }] = backends.get('shop/catalog');
  const pages = [await open()];
  const context = pages[0].context();
  await show(pages[0], VIEWS[0]);
  await live(pages[0]);
  for (let i = 1; i < TABS; i += 1) {
    // A fresh tab hides the one before it.
    await tab(pages.at(-1), true);
    const page = await context.newPage();
    await page.addInitScript((value) => sessionStorage.setItem('telaio-token', value), token);
    await page.goto(`${new URL(pages[0].url()).origin}/#/services/shop/catalog`);
    await endpointRow(page, address).waitFor();
    await live(page);
    pages.push(page);
  }
  const last = pages.at(-1);
  await last.getByRole('button', { name: `Drain ${address}` }).click();
  await confirm(last, 'Drain', { reason: 'many tabs' });
  await endpointRow(last, address).getByText('Drained').waitFor();
  // Back to the third: it is live again, and shows what was done in the last.
  await tab(last, true);
  await tab(pages[2], false);
  await endpointRow(pages[2], address).getByText('Drained').waitFor();
  await live(pages[2]);
  await pages[2].getByRole('button', { name: `Enable ${address}` }).click();
  await confirm(pages[2], 'Enable');
  await endpointRow(pages[2], address).getByText('Ready', { exact: true }).waitFor();
}, { allow: [/ERR_ABORTED/] });

test('after a restart of the agent lists are of now, and its events are not mixed with those before', async ({ open, telaio, manifests, backends, base, token }) => {
  const [{ address }] = backends.get('search/index');
  const file = 'zz-restart.yaml';
  const [overrides, events] = [await open(), await open()];
  await show(overrides, ['overrides', 'Overrides', 'Nothing is overridden']);
  await show(events, ['events', 'Events', 'In the kernel after']);
  put(manifests, 'zz-before.yaml', service('shop', 'before', '10.96.0.90'));
  try {
    await events.locator('tr', { hasText: 'shop/before' }).first().waitFor();
    await telaio.stop();
    for (const page of [overrides, events]) await page.locator('.banner', { hasText: 'The agent does not answer' }).waitFor();
    put(manifests, file, manifest('while-away', address));
    await telaio.start();
    await overrides.getByText('while-away').first().waitFor();
    for (const page of [overrides, events]) await live(page);
    const shown = async () => {
      const answer = await fetch(`${base}api/v1/events?limit=200`, { headers: { Authorization: `Bearer ${token}` } });
      const wanted = (await answer.json()).items.map((one) => one.kind);
      const rows = await events.getByRole('region', { name: 'Events' }).locator('tbody tr').count();
      return rows === wanted.length || (wanted.length === 0 && rows === 0);
    };
    await until('it shows exactly the events of the agent that runs now', shown);
    put(manifests, 'zz-before.yaml', service('shop', 'before', '10.96.0.89'));
    await events.locator('tr', { hasText: 'shop/before' }).filter({ hasText: 'changed' }).first().waitFor();
  } finally {
    rmSync(join(manifests, file), { force: true });
    rmSync(join(manifests, 'zz-before.yaml'), { force: true });
  }
  await overrides.getByText('Nothing is overridden').waitFor();
}, { allow: [/ERR_/, /Failed to fetch/, /401|429|50\d/] });
