// Signing in, the views, and what they show of a running agent.
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { assert, equal, test, until } from './harness.mjs';
import { ask, Instance, put, service, slice } from './cluster.mjs';
import { HOSTS } from './world.mjs';

/** Each view: where it is, its heading, and a text that only a loaded one has. */
export const VIEWS = [
  ['overview', 'Overview', 'In touch'],
  ['map', 'Traffic map', 'frontend'],
  ['services', 'Services', '10.96.0.11'],
  ['services/shop/orders', 'orders', '10.244.2.21'],
  ['routes', 'Routes & certificates', '/api/orders'],
  ['routes/certificates', 'Routes & certificates', 'shop/shop-tls'],
  ['pods', 'Pods', 'loom-b'],
  ['trace', 'Trace', 'Ask about a request'],
  [`trace?url=${encodeURIComponent(`http://${HOSTS.shop}/api/orders`)}`, 'Trace', 'Forwarded'],
  ['events', 'Events', 'In the kernel after'],
  ['overrides', 'Overrides & audit', 'Audit log'],
];

/** Opens a view and waits until it is loaded. */
export async function show(page, [place, title, text]) {
  await page.open(place);
  await page.locator('h1', { hasText: title }).waitFor();
  await page.locator('#main').getByText(text).first().waitFor();
}

const text = (page) => page.locator('#main').innerText();

test('a wrong token is refused, the right one signs in, and signing out forgets it', async ({ open, token, base }) => {
  const page = await open({ token: null, secret: token });
  await page.goto(base);
  await page.getByLabel('Token').fill('not-the-token');
  await page.keyboard.press('Enter');
  await page.getByText('This token is not known here.').waitFor();
  equal(await page.locator('.shell').count(), 0, 'views before signing in');
  await page.getByLabel('Token').fill(token);
  await page.keyboard.press('Enter');
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  const kept = await page.evaluate(() => [location.href, JSON.stringify(localStorage), document.cookie].join(' '));
  assert(!kept.includes(token), 'the token is kept where it outlives the tab');
  await page.reload();
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  await page.getByLabel('Sign out').click();
  await page.getByLabel('Token').waitFor();
  equal(await page.evaluate(() => JSON.stringify(sessionStorage)), '{}', 'what is left in the tab');
}, { allow: [/401/] });

test('each view loads', async ({ open }) => {
  const page = await open();
  for (const view of VIEWS) {
    await show(page, view);
    equal(await page.getByText('could not be loaded').count(), 0, `failures in ${view[0]}`);
    assert((await page.title()).endsWith('· Telaio'), `title of ${view[0]}`);
  }
});

test('the overview counts real requests while it is open', async ({ open, ports }) => {
  const page = await open();
  await page.open('overview');
  const requests = () => page.evaluate(() => [...document.querySelectorAll('.stat')].find((one) => one.textContent.includes('Requests'))?.querySelector('.value')?.textContent ?? '');
  await until('a rate above zero', async () => Number.parseFloat((await requests()).replace(/[^\d.]/g, '')) > 1);
  const first = await page.locator('figure.chart path.line').first().getAttribute('d');
  await until('the chart moves', async () => (await page.locator('figure.chart path.line').first().getAttribute('d')) !== first);
  equal((await ask(ports.http, HOSTS.shop, '/')).status, 200, 'a request');
});

test('a service that a manifest adds appears without a reload, and goes with it', async ({ open, manifests }) => {
  const page = await open();
  await page.open('services');
  await page.getByText('10.96.0.11').waitFor();
  await page.evaluate(() => (window.same = true));
  put(manifests, 'fresh.yaml', service('shop', 'fresh', '10.96.0.99') + slice('shop', 'fresh', [{ address: '10.244.2.99' }]));
  await page.getByRole('link', { name: 'shop/fresh' }).waitFor();
  await page.getByRole('link', { name: 'Events' }).click();
  const row = page.locator('tr', { hasText: 'shop/fresh' }).filter({ hasText: 'Service' }).first();
  await row.waitFor();
  await until('the event says how long it took to the kernel', async () => /\d (µs|ms|s)\b/.test(await row.innerText()));
  rmSync(join(manifests, 'fresh.yaml'));
  await page.getByRole('link', { name: 'Services' }).click();
  await page.getByText('10.96.0.11').waitFor();
  await page.getByRole('link', { name: 'shop/fresh' }).waitFor({ state: 'detached' });
  assert(await page.evaluate(() => window.same), 'the page was loaded again');
});

test('an endpoint that is no longer ready is marked while the page is open', async ({ open, manifests, backends }) => {
  const page = await open();
  await show(page, ['services/search/index', 'index', '10.244.2.51']);
  const all = backends.get('search/index');
  const write = (ready) => put(manifests, 'search-index.yaml', service('search', 'index', '10.96.0.20') + slice('search', 'index', all.map(({ address }, i) => ({ address, ready: ready || i !== 1 }))));
  write(false);
  const row = page.locator('tr', { hasText: '10.244.2.51' });
  await row.getByText('Not ready').waitFor();
  write(true);
  await row.getByText('Ready', { exact: true }).waitFor();
});

test('answers of 500 redden the line to their backend, and are its errors, not the others’', async ({ open, backends }) => {
  const all = backends.get('shop/orders');
  const before = all[2].failShare;
  all[2].failShare = 0.5;
  try {
    const page = await open();
    await page.open('services/shop/orders');
    const errors = (one) => page.getByRole('region', { name: 'Endpoints' }).locator('tr', { hasText: one.address }).locator('.badge.err', { hasText: '%' });
    await errors(all[2]).waitFor();
    equal(await errors(all[0]).count(), 0, 'errors of one that answers well');
    await page.open('services');
    await page.locator('tr', { hasText: 'shop/orders' }).locator('.badge.err', { hasText: '%' }).waitFor();
    await page.open('map');
    const box = page.locator('.vertex.k-endpoint', { hasText: 'orders-3' });
    await box.locator('.figure.bad').waitFor();
    await until('its line is red', async () => (await page.locator('.map-edges path.edge.bad').count()) > 0);
    const colour = (selector) => page.locator(selector).first().evaluate((it) => getComputedStyle(it).stroke);
    assert((await colour('.map-edges path.edge.bad')) !== (await colour('.map-edges path.edge.busy')), 'a red line has the colour of the others');
    await page.open('map?as=list');
    await page.locator('.tree .branch', { hasText: 'orders-3' }).getByText('errors').waitFor();
    // What needs attention leads to exactly what it names.
    const attention = async (kind, words) => {
      await page.open('overview');
      await page.getByRole('button', { name: 'Show all' }).click({ timeout: 1000 }).catch(() => undefined);
      await page.locator('.attention li', { has: page.locator('.kind', { hasText: kind }) }).filter({ hasText: words }).getByRole('link').first().click();
    };
    await attention('endpoint', all[2].address);
    await page.locator('h1', { hasText: 'orders' }).waitFor();
    const named = page.getByRole('region', { name: 'Endpoints' }).locator('tr.is-named');
    await named.waitFor();
    assert((await named.innerText()).includes(all[2].address), `the row that is marked: ${await named.innerText()}`);
    await attention('route', '/api/orders');
    const rows = page.getByRole('region', { name: 'Routes' }).locator('tbody tr');
    await rows.first().waitFor();
    equal(await rows.count(), 1, 'routes that it leads to');
    assert((await rows.innerText()).includes('/api/orders'), await rows.innerText());
  } finally {
    all[2].failShare = before;
  }
});

test('connections that clients hold are counted at the service, its port and its endpoints, until they end', async ({ open }) => {
  const page = await open();
  await page.open('services/shop/catalog');
  const endpoints = page.getByRole('region', { name: 'Endpoints' });
  await endpoints.locator('tbody tr').nth(2).waitFor();
  const column = await endpoints.locator('thead th').evaluateAll((heads) => heads.findIndex((one) => one.textContent.includes('Connections')));
  const counted = async () => (await endpoints.locator(`tbody tr > :nth-child(${column + 1})`).allInnerTexts()).map(Number);
  const sum = async () => (await counted()).reduce((all, one) => all + one, 0);
  const facts = page.locator('dl.fact-grid');
  await until('none is open', async () => (await sum()) === 0);
  const held = [];
  try {
    for (let i = 0; i < 9; i += 1) {
      const socket = connect(80, '10.96.0.13');
      held.push(socket);
      await once(socket, 'connect');
    }
    await until('the endpoints have all of them', async () => (await sum()) === 9);
    await facts.locator('dd', { hasText: /^9 open/ }).waitFor();
    await facts.getByText('http, 9 open').waitFor();
    const list = await open();
    await list.open('services');
    await until('the list counts them', async () => /\t9(\t|$)/m.test(await list.locator('tr', { hasText: 'shop/catalog' }).innerText()));
  } finally {
    for (const socket of held) socket.destroy();
  }
  await until('they are gone', async () => (await sum()) === 0);
});

test('the events view grows while it is open', async ({ open, manifests }) => {
  const page = await open();
  await show(page, ['events', 'Events', 'In the kernel after']);
  await page.evaluate(() => (window.same = true));
  put(manifests, 'passing.yaml', service('shop', 'passing', '10.96.0.98') + slice('shop', 'passing', [{ address: '10.244.2.98' }]));
  const row = page.locator('tr', { hasText: 'shop/passing' }).filter({ hasText: 'added' }).filter({ hasText: 'Service' }).first();
  await row.waitFor();
  await until('it says how long until it was in the kernel', async () => /\d (µs|ms|s)\b/.test(await row.innerText()));
  rmSync(join(manifests, 'passing.yaml'));
  await page.locator('tr', { hasText: 'shop/passing' }).filter({ hasText: 'removed' }).first().waitFor();
  assert(await page.evaluate(() => window.same), 'the page was loaded again');
});

test('an instance that the plugin attaches is in the pods view with address, port and service, until it goes', async ({ open, telaio, manifests }) => {
  const page = await open();
  await show(page, ['pods', 'Pods', 'loom-b']);
  const instance = await Instance.start(telaio, 'cart-7f9c', 8097);
  try {
    const row = page.getByRole('region', { name: 'Instances' }).locator('tr', { hasText: instance.id });
    await row.waitFor();
    const said = await row.innerText();
    assert(said.includes(instance.address) && /8097\/tcp → 8080/.test(said), `the row: ${said}`);
    equal(await (await fetch('http://192.0.2.1:8097/')).text(), instance.id, 'what the published port answers');
    put(manifests, 'shop-cart.yaml', service('shop', 'cart', '10.96.0.97') + slice('shop', 'cart', [{ address: instance.address, node: 0 }]));
    await row.getByRole('link', { name: 'cart' }).waitFor();
    await page.getByRole('region', { name: 'Networks' }).getByText('10.244.1.0/24').waitFor();
    const peer = page.getByRole('region', { name: 'Peers' }).locator('tr', { hasText: 'loom-b' });
    const tunnel = await page.locator('section.card', { has: page.getByRole('heading', { name: 'Tunnel' }) }).innerText();
    assert(/vxlan 1[^]*8472\/udp[^]*192\.0\.2\.1[^]*1,450 bytes/.test(tunnel), `the tunnel: ${tunnel}`);
    assert(/192\.0\.2\.2[^]*10\.244\.2\.0\/24[^]*vxlan/.test(await peer.innerText()), `the peer: ${await peer.innerText()}`);
    rmSync(join(manifests, 'shop-cart.yaml'));
    instance.call('DEL');
    await row.waitFor({ state: 'detached' });
  } finally {
    instance.stop();
    rmSync(join(manifests, 'shop-cart.yaml'), { force: true });
  }
});

test('the real rules of a service are shown on demand', async ({ open }) => {
  const page = await open();
  await show(page, VIEWS[3]);
  await page.getByRole('button', { name: 'Show rules' }).click();
  await page.locator('pre.rules', { hasText: '10.96.0.11' }).waitFor();
});

test('a trace is followed step by step, and its link has the question but not the token', async ({ open, token }) => {
  const page = await open();
  await page.open('trace');
  await page.getByLabel('URL', { exact: true }).fill(`http://${HOSTS.shop}/api/orders`);
  await page.getByRole('button', { name: 'Trace', exact: true }).click();
  await page.getByText('Forwarded').waitFor();
  assert((await text(page)).includes('10.244.1.20:8080'), 'the endpoint of the request');
  assert(await page.locator('.steps li').count() > 1, 'steps');
  await page.getByRole('button', { name: 'Copy link' }).click();
  await page.getByText('Link copied').waitFor();
  const link = page.url();
  assert(!link.includes(token) && link.includes('url='), `the link ${link}`);
  const other = await open();
  await other.goto(link);
  await other.getByText('Forwarded').waitFor();
  await other.getByRole('button', { name: 'Packet' }).click();
  await other.getByLabel('From').fill('10.244.1.200');
  await other.getByLabel('To', { exact: true }).fill('10.96.0.11:80');
  await other.getByRole('button', { name: 'Trace', exact: true }).click();
  await other.getByText('To an endpoint').waitFor();
  assert((await text(other)).includes('10.244.2.21:8080'), 'the endpoint of the packet');
  await other.getByLabel('To', { exact: true }).fill('not an address');
  await other.getByRole('button', { name: 'Trace', exact: true }).click();
  await other.locator('.banner').waitFor();
}, { allow: [/400/] });

test('certificates show when they end, and warn before', async ({ open }) => {
  const page = await open();
  await show(page, VIEWS[5]);
  await page.locator('tr', { hasText: 'search/search-tls' }).getByText('Ends soon').waitFor();
  await page.locator('tr', { hasText: 'shop/shop-tls' }).getByText('OK').waitFor();
});

test('the map leads from host to node and opens what is clicked', async ({ open }) => {
  const page = await open();
  await page.open('map');
  for (const kind of ['host', 'route', 'service', 'endpoint', 'node']) await page.locator(`.vertex.k-${kind}`).first().waitFor();
  await until('an edge carries traffic', async () => (await page.locator('.map-edges path.edge.busy').count()) > 0);
  await page.locator('.vertex.k-service').first().focus();
  await page.keyboard.press('ArrowRight');
  await until('the arrow leads to an endpoint', () => page.evaluate(() => document.activeElement?.classList.contains('k-endpoint')));
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('ArrowDown');
  await until('and back, and down', () => page.evaluate(() => document.activeElement?.classList.contains('k-service')));
  await page.getByLabel('Search the map').fill('orders');
  await until('others are gone', async () => (await page.locator('.vertex.k-service').count()) === 1);
  await page.locator('.vertex.k-service').click();
  await page.locator('.map-foot').getByRole('link', { name: 'Open' }).click();
  await page.locator('h1', { hasText: 'orders' }).waitFor();
  await page.open('map?as=list');
  await page.locator('.tree').getByText(HOSTS.shop).first().waitFor();
});

test('a service or a view that is not there says so', async ({ open }) => {
  const page = await open();
  await page.open('services/shop/nothing');
  await page.getByText('could not be loaded').waitFor();
  await page.open('nowhere');
  await page.getByText('There is no such view').waitFor();
}, { allow: [/404/] });
