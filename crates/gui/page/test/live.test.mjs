// What changes by itself: each view follows the manifests, the charts grow, a stream that ends is followed by another.
import { rmSync } from 'node:fs';
import { createServer, connect } from 'node:net';
import { join } from 'node:path';
import { assert, equal, test, until } from './harness.mjs';
import { ingress, put, secret, service, slice } from './cluster.mjs';
import { show, VIEWS } from './views.test.mjs';
import { HOSTS } from './world.mjs';

const FRESH_HOST = 'fresh.example.com';

/** Marks the page: whoever loads it again loses the mark. */
const mark = (page) => page.evaluate(() => (window.same = true));
const kept = async (page, what) => assert(await page.evaluate(() => window.same === true), `${what} was loaded again`);

test('every view follows the manifests without a reload', async ({ open, manifests }) => {
  const [overview, map, routes, certificates, pods] = [await open(), await open(), await open(), await open(), await open()];
  const pages = Object.entries({ overview, map, routes, 'routes/certificates': certificates, pods });
  for (const [name, page] of pages) {
    await show(page, VIEWS.find(([place]) => place === name));
    await mark(page);
  }
  const services = async () => Number((await overview.locator('.view-head').innerText()).match(/(\d+) services/)[1]);
  const before = await services();
  const counted = async () => (await overview.locator('.nav-list a', { hasText: 'Routes' }).locator('.count').innerText());
  const routesBefore = Number(await counted());
  const file = 'zz-follow.yaml';
  try {
    put(manifests, file, service('shop', 'follow', '10.96.0.95') + slice('shop', 'follow', [])
      + ingress('shop', 'follow', FRESH_HOST, [['/follow', 'follow']], { tls: 'follow-tls' }) + secret('shop', 'follow-tls', FRESH_HOST, 5)
      + 'apiVersion: v1\nkind: Node\nmetadata: { name: loom-z }\nspec: { podCIDR: 10.244.77.0/24, podCIDRs: [10.244.77.0/24] }\nstatus: { addresses: [{ type: InternalIP, address: 192.0.2.77 }] }\n---\n');
    await until('the overview counts one more service', async () => (await services()) === before + 1);
    await until('and one more route', async () => Number(await counted()) === routesBefore + 1);
    const attention = overview.locator('.attention li', { hasText: 'shop/follow' });
    await overview.getByRole('button', { name: 'Show all' }).click({ timeout: 1000 }).catch(() => undefined);
    await attention.first().waitFor();
    await map.locator('.vertex.k-host', { hasText: FRESH_HOST }).waitFor();
    await map.locator('.vertex.k-service', { hasText: 'follow' }).waitFor();
    await routes.getByRole('region', { name: 'Routes' }).locator('tr', { hasText: `${FRESH_HOST}/follow` }).waitFor();
    await certificates.locator('tr', { hasText: 'shop/follow-tls' }).getByText('Ends soon').waitFor();
    await pods.locator('tr', { hasText: 'loom-z' }).first().waitFor();
    // Somebody serves it now: nothing is wrong with it any longer, and the map has the endpoint.
    put(manifests, file, service('shop', 'follow', '10.96.0.95') + slice('shop', 'follow', [{ address: '10.244.2.95' }]) + ingress('shop', 'follow', FRESH_HOST, [['/follow', 'follow']]));
    await overview.locator('.attention li', { hasText: 'shop/follow' }).filter({ hasText: 'service' }).waitFor({ state: 'detached' });
    await map.locator('.vertex.k-endpoint', { hasText: 'follow-1' }).waitFor();
    await certificates.locator('tr', { hasText: 'shop/follow-tls' }).waitFor({ state: 'detached' });
  } finally {
    rmSync(join(manifests, file), { force: true });
  }
  await until('the overview counts as before', async () => (await services()) === before);
  await map.locator('.vertex.k-host', { hasText: FRESH_HOST }).waitFor({ state: 'detached' });
  await routes.locator('tr', { hasText: FRESH_HOST }).waitFor({ state: 'detached' });
  await pods.locator('tr', { hasText: 'loom-z' }).waitFor({ state: 'detached' });
  for (const [name, page] of pages) await kept(page, name);
});

test('charts and table grow while the page is open, also those since the start', async ({ open }) => {
  const page = await open();
  await page.open('overview');
  const line = () => page.getByRole('region', { name: 'Requests', exact: true }).locator('path.line').first().getAttribute('d');
  for (const span of ['Last minutes', 'Since start']) {
    await page.getByRole('button', { name: span }).click();
    const points = async () => ((await line()) ?? '').split('L').length;
    const [first, many] = [await line(), await points()];
    await until(`the chart of ${span} moves`, async () => (await line()) !== first);
    await until(`it has more points`, async () => (await points()) > many);
  }
  await page.getByRole('button', { name: 'Table' }).click();
  const top = page.getByRole('region', { name: 'Figures over time' }).locator('tbody tr').first();
  const before = await top.innerText();
  await until('the table has a newer row', async () => (await top.innerText()) !== before);
});

test('a service that goes away is not shown any longer, and another one’s figures never stand under its name', async ({ open, manifests, backends }) => {
  put(manifests, 'going.yaml', service('shop', 'going', '10.96.0.94') + slice('shop', 'going', [{ address: '10.244.2.94' }]));
  const page = await open();
  try {
    await show(page, ['services/shop/going', 'going', '10.244.2.94']);
    await page.getByText('Ready', { exact: true }).waitFor();
  } finally {
    rmSync(join(manifests, 'going.yaml'));
  }
  await page.getByText('could not be loaded').waitFor();
  equal(await page.getByText('10.244.2.94').count(), 0, 'its endpoint');
  equal(await page.getByRole('button', { name: 'Add backend' }).count(), 0, 'buttons for it');
  // From one that is there to the one that is not, and back.
  const { address } = backends.get('shop/orders')[0];
  await page.evaluate(() => (location.hash = '#/services/shop/orders'));
  await page.getByRole('button', { name: `Drain ${address}` }).waitFor();
  await page.evaluate(() => (location.hash = '#/services/shop/going'));
  await page.locator('h1', { hasText: 'going' }).waitFor();
  equal(await page.getByText(address).count(), 0, 'the other one’s endpoint, at once');
  await page.getByText('could not be loaded').waitFor();
  equal(await page.getByRole('button', { name: /^Drain/ }).count(), 0, 'buttons of the other one');
  await page.goBack();
  await page.getByRole('button', { name: `Drain ${address}` }).waitFor();
}, { allow: [/404/] });

test('a stream that ends is followed by another, and nobody is alarmed', async ({ open, ports }) => {
  // A proxy in between that hangs up, as the agent itself does with a connection that is an hour old.
  const sockets = new Set();
  const proxy = createServer((near) => {
    const far = connect(ports.admin, '127.0.0.1');
    for (const [one, other] of [[near, far], [far, near]]) {
      sockets.add(one);
      one.pipe(other).on('error', () => undefined);
      one.on('error', () => other.destroy()).on('close', () => {
        other.destroy();
        sockets.delete(one);
      });
    }
  });
  await new Promise((listening) => proxy.listen(0, '127.0.0.1', listening));
  try {
    const page = await open({ base: `http://127.0.0.1:${proxy.address().port}/` });
    let streams = 0;
    page.on('request', (request) => request.url().includes('/events/stream') && (streams += 1));
    await page.open('overview');
    await page.locator('.view-head .live', { hasText: 'Live' }).waitFor();
    await page.evaluate(() => {
      window.alarms = 0;
      new MutationObserver(() => {
        if (document.querySelector('.banner, .live.is-lost')) window.alarms += 1;
      }).observe(document.body, { childList: true, subtree: true, attributes: true });
    });
    for (let turn = 0; turn < 2; turn += 1) {
      // Only streams that have lasted are followed at once: one that never holds is a fault.
      await page.waitForTimeout(6000);
      const before = streams;
      for (const socket of sockets) socket.destroy();
      await until('there is another stream', () => streams > before);
      const chart = page.locator('figure.chart path.line').first();
      const line = await chart.getAttribute('d');
      await until('figures go on', async () => (await chart.getAttribute('d')) !== line);
    }
    equal(await page.evaluate(() => window.alarms), 0, 'alarms');
  } finally {
    proxy.close();
    for (const socket of sockets) socket.destroy();
  }
}, { allow: [/ERR_/, /Failed to fetch/] });

test('a host or a route of the map opens exactly its routes, also of every host', async ({ open, manifests }) => {
  put(manifests, 'zz-every.yaml', `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: every, namespace: shop }
spec:
  rules:
    - http: { paths: [{ path: /everywhere, pathType: Prefix, backend: { service: { name: frontend, port: { name: http } } } }] }
---
`);
  try {
    const page = await open();
    const rows = page.getByRole('region', { name: 'Routes' }).locator('tbody tr');
    const choose = async (box) => {
      await page.open('map');
      await box.click();
      await page.locator('.map-foot').getByRole('link', { name: 'Open' }).click();
      await page.locator('h1', { hasText: 'Routes' }).waitFor();
      await rows.first().waitFor();
    };
    await choose(page.locator('.vertex.k-route', { hasText: '/api/pay' }));
    equal(await rows.count(), 1, 'routes that the route opens');
    assert((await rows.innerText()).includes(`${HOSTS.shop}/api/pay`), await rows.innerText());
    await choose(page.locator('.vertex.k-host', { hasText: 'every host' }));
    equal(await rows.count(), 1, 'routes that every host opens');
    assert((await rows.innerText()).includes('*/everywhere'), await rows.innerText());
    await choose(page.locator('.vertex.k-host', { hasText: HOSTS.shop }));
    equal(await rows.count(), 5, 'routes of the shop');
    await page.getByRole('button', { name: `Only host ${HOSTS.shop}` }).click();
    await until('all are shown again', async () => (await rows.count()) > 5);
    // A trace leads to its route.
    await page.open(`trace?url=${encodeURIComponent(`http://${HOSTS.shop}/api/pay`)}`);
    await page.locator('.verdict').getByRole('link', { name: '/api/pay' }).click();
    await rows.first().waitFor();
    equal(await rows.count(), 1, 'routes that the trace opens');
  } finally {
    rmSync(join(manifests, 'zz-every.yaml'));
  }
});
