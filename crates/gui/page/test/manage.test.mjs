// Acting: each action asks once, says what it touches, works on real traffic, and can be undone.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { RETURN_MS, assert, equal, test, until } from './harness.mjs';
import { ask, Backend } from './cluster.mjs';
import { show, VIEWS } from './views.test.mjs';
import { HOSTS, MARKUP } from './world.mjs';

const ORDERS = 'services/shop/orders';

/** Requests that each backend answered while `during` ran and some more were sent. */
export async function share(backends, ports, host, path, requests = 60) {
  const before = backends.map((one) => one.hits);
  for (let i = 0; i < requests; i += 1) await ask(ports.http, host, path);
  return backends.map((one, i) => one.hits - before[i]);
}

/** The row of an endpoint on its service's page. */
export function endpointRow(page, address) {
  return page.getByRole('region', { name: 'Endpoints' }).locator('tr', { hasText: address });
}

/** Fills in the dialog that is open, and confirms. */
export async function confirm(page, verb, { reason = '', fill = {}, span = null } = {}) {
  const dialog = page.locator('dialog');
  await dialog.waitFor();
  for (const [label, value] of Object.entries(fill)) await dialog.getByLabel(label).fill(value);
  if (span) await dialog.getByRole('radio', { name: span }).check();
  if (reason) await dialog.getByLabel(/Reason/).fill(reason);
  await dialog.getByText('What it touches').waitFor();
  const button = dialog.getByRole('button', { name: verb, exact: true });
  await until('the preview is there', () => button.isEnabled());
  const said = await dialog.locator('.impact').innerText();
  await button.click();
  await dialog.waitFor({ state: 'detached' });
  return said;
}

test('draining a backend moves its traffic, and undo brings it back', async ({ open, backends, ports }) => {
  const all = backends.get('shop/orders');
  const target = all[1];
  const page = await open();
  await page.open(ORDERS);
  const row = endpointRow(page, target.address);
  await until('before, it gets requests', async () => (await share(all, ports, HOSTS.shop, '/api/orders'))[1] > 0, RETURN_MS);
  await row.getByRole('button', { name: `Drain ${target.address}` }).click();
  const said = await confirm(page, 'Drain', { reason: 'disk is full', span: '8 hours' });
  assert(said.includes(target.address), `the dialog says what it touches: ${said}`);
  await row.getByText('Drained').waitFor();
  await until('no request goes there any more', async () => (await share(all, ports, HOSTS.shop, '/api/orders'))[1] === 0);
  const moved = await share(all, ports, HOSTS.shop, '/api/orders');
  assert(moved[0] + moved[2] >= 60 && moved[1] === 0, `the others get them: ${moved}`);
  await page.getByRole('heading', { name: 'Decided by people' }).waitFor();
  const decided = await page.locator('section.card', { hasText: 'Decided by people' }).innerText();
  assert(decided.includes('disk is full') && /(7 h \d\d|8 h 00) min left/.test(decided), `who, why and until when: ${decided}`);
  await page.locator('.toast').getByRole('button', { name: 'Undo' }).click();
  await confirm(page, 'Undo');
  await row.getByText('Ready', { exact: true }).waitFor();
  await until('requests go there again', async () => (await share(all, ports, HOSTS.shop, '/api/orders'))[1] > 0, RETURN_MS);
  await page.open('overrides');
  await page.getByText('Nothing is overridden').waitFor();
  await page.locator('tr', { hasText: 'disk is full' }).first().waitFor();
});

test('a weight moves traffic in proportion', async ({ open, backends, ports }) => {
  const all = backends.get('search/index');
  const page = await open();
  await page.open('services/search/index');
  const row = endpointRow(page, all[0].address);
  await row.getByRole('button', { name: `Weight of ${all[0].address}` }).click();
  const dialog = page.locator('dialog');
  await dialog.getByLabel('Weight').fill('many');
  await dialog.getByText('The weight is a whole number').waitFor();
  equal(await dialog.getByRole('button', { name: 'Set weight' }).isEnabled(), false, 'a weight that is none can be set');
  await confirm(page, 'Set weight', { fill: { Weight: '18' } });
  await until('most requests go there', async () => {
    const hits = await share(all, ports, HOSTS.search, '/', 100);
    return hits[0] > hits[1] + hits[2];
  });
  const weight = () => row.locator('.weight').innerText();
  await until('the page shows the weight', async () => (await weight()) === '18');
  await page.locator('.toast').getByRole('button', { name: 'Undo' }).click();
  await confirm(page, 'Undo');
  await until('its weight is 1 again', async () => (await weight()) === '1');
});

test('a backend added by hand serves, and removing it takes it away', async ({ open, backends, ports }) => {
  const extra = await Backend.start('10.244.2.200', 8080, 'extra');
  const page = await open();
  await page.open('services/staging/frontend');
  await page.getByRole('button', { name: 'Add backend' }).click();
  await confirm(page, 'Add backend', { fill: { Address: extra.address, Port: '8080', Node: 'loom-b' } });
  await endpointRow(page, extra.address).getByText('Added').waitFor();
  await endpointRow(page, extra.address).getByText('loom-b').waitFor();
  await until('it gets requests', async () => (await share([extra], ports, HOSTS.staging, '/', 10))[0] > 0, RETURN_MS);
  await page.locator('.toast').getByRole('button', { name: 'Undo' }).click();
  await confirm(page, 'Undo');
  await endpointRow(page, extra.address).waitFor({ state: 'detached' });
  await until('it gets none', async () => (await share([extra], ports, HOSTS.staging, '/', 10))[0] === 0);
  assert(backends.get('staging/frontend')[0].hits > 0, 'the first one still serves');
  extra.stop();
});

test('removing a backend by hand takes its traffic away, and enabling it brings it back', async ({ open, backends, ports }) => {
  const all = backends.get('shop/catalog');
  const target = all[0];
  const page = await open();
  await page.open('services/shop/catalog');
  const row = endpointRow(page, target.address);
  await until('before, it gets requests', async () => (await share(all, ports, HOSTS.shop, '/catalog/1', 30))[0] > 0, RETURN_MS);
  await row.getByRole('button', { name: `Remove ${target.address}` }).click();
  await confirm(page, 'Remove', { reason: 'wrong machine' });
  await row.getByText('Removed').waitFor();
  await until('no request goes there any more', async () => (await share(all, ports, HOSTS.shop, '/catalog/1', 30))[0] === 0);
  const moved = await share(all, ports, HOSTS.shop, '/catalog/1', 30);
  assert(moved[0] === 0 && moved[1] + moved[2] >= 30, `the others get them: ${moved}`);
  await row.getByRole('button', { name: `Enable ${target.address}` }).click();
  await confirm(page, 'Enable');
  await row.getByText('Ready', { exact: true }).waitFor();
  await until('requests go there again', async () => (await share(all, ports, HOSTS.shop, '/catalog/1', 30))[0] > 0, RETURN_MS);
});

test('a decision that ends by itself says until when, and then is gone', async ({ open, backends, ports, base, token }) => {
  const all = backends.get('shop/payments');
  const target = all[0];
  const page = await open();
  await page.open('services/shop/payments');
  const row = endpointRow(page, target.address);
  await row.getByText('Ready', { exact: true }).waitFor();
  // By somebody else, for seconds, which the dialog does not offer.
  const made = await fetch(`${base}api/v1/actions`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ action: { kind: 'drain', service: { namespace: 'shop', name: 'payments' }, target: { address: target.address } }, dry_run: false, reason: 'only briefly', for_s: 8 }),
  });
  equal(made.status, 200, 'the action');
  await row.getByText('Drained').waitFor();
  const decided = page.getByRole('region', { name: 'Decided by people' });
  await until('it says until when', async () => /[1-8](\.\d)? s left/.test(await decided.innerText()));
  equal((await share(all, ports, HOSTS.shop, '/api/pay', 20))[0], 0, 'requests while it is drained');
  await row.getByText('Ready', { exact: true }).waitFor();
  await decided.waitFor({ state: 'detached' });
  await until('requests go there again', async () => (await share(all, ports, HOSTS.shop, '/api/pay', 20))[0] > 0, RETURN_MS);
  await page.open('overrides');
  await page.getByText('Nothing is overridden').waitFor();
  await page.locator('tr', { hasText: 'ended by itself' }).first().waitFor();
});

test('a paused route answers 503 until it is resumed', async ({ open, ports }) => {
  const page = await open();
  await page.open('routes');
  const row = page.locator('tr', { hasText: '/api/pay' });
  await row.getByRole('button', { name: /^Pause/ }).click();
  await confirm(page, 'Pause', { reason: 'migration' });
  await row.getByText('Paused').waitFor();
  const answer = await until('a maintenance answer', async () => {
    const got = await ask(ports.http, HOSTS.shop, '/api/pay');
    return got.status === 503 && got;
  });
  assert(answer.headers['retry-after'], 'it says when to come back');
  assert(/maintenance/i.test(answer.text), `the maintenance page: ${answer.text}`);
  equal((await ask(ports.http, HOSTS.shop, '/api/orders')).status < 503, true, 'another route is served');
  await row.getByRole('button', { name: /^Resume/ }).click();
  await confirm(page, 'Resume');
  await until('it is served again', async () => (await ask(ports.http, HOSTS.shop, '/api/pay')).status === 200);
  await row.getByText('Paused').waitFor({ state: 'detached' });
});

test('purging a host makes the cache ask again', async ({ open, ports }) => {
  const once = async () => (await ask(ports.http, HOSTS.shop, '/cached/purge-me')).headers['cache-status'] ?? '';
  await once();
  await until('the cache has it', async () => (await once()).includes('hit'));
  const page = await open();
  await page.open('routes');
  // How much of what was asked came from the cache.
  const routes = page.getByRole('region', { name: 'Routes' });
  const column = await until('there is a column for it', async () => (await routes.locator('thead th').allInnerTexts()).indexOf('Cached') + 1);
  const cached = routes.locator('tr', { hasText: `${HOSTS.shop}/cached` }).locator(`:nth-child(${column})`);
  await until('it says a share', async () => /^[1-9]\d*(\.\d+)? %$/.test((await cached.first().innerText()).trim()));
  equal((await routes.locator('tr', { hasText: '/api/pay' }).locator(`:nth-child(${column})`).first().innerText()).trim(), '–', 'the share of a route without a cache');
  await page.getByRole('button', { name: 'Purge cache' }).click();
  await confirm(page, 'Purge', { fill: { 'Host or URL': HOSTS.shop } });
  await page.locator('.toast').waitFor();
  assert(!(await once()).includes('hit'), 'it is still in the cache');
});

test('purging what begins so, or one URL, leaves the rest in the cache', async ({ open, ports }) => {
  const once = async (path) => ((await ask(ports.http, HOSTS.shop, path)).headers['cache-status'] ?? '').includes('hit');
  const [a, b, other] = ['/cached/pictures/a', '/cached/pictures/b', '/cached/other'];
  const fill = async () => {
    for (const path of [a, b, other]) await until(`the cache has ${path}`, () => once(path));
  };
  const page = await open();
  await page.open('routes');
  const purge = async (kind, what) => {
    await page.getByRole('button', { name: 'Purge cache' }).click();
    await page.locator('dialog').getByRole('radio', { name: kind }).check();
    await confirm(page, 'Purge', { fill: { 'Host or URL': `http://${HOSTS.shop}${what}` } });
    await page.locator('.toast').getByRole('button', { name: 'Close message' }).first().click();
  };
  await fill();
  await purge('one URL', a);
  equal(await once(a), false, 'the URL is still in the cache');
  equal(await once(b), true, 'its neighbour is in the cache');
  await fill();
  await purge('URLs that begin so', '/cached/pictures/');
  equal([await once(a), await once(b)].join(), 'false,false', 'what begins so is still in the cache');
  equal(await once(other), true, 'the other is in the cache');
});

test('the command line purges a host and a URL', async ({ telaio, ports }) => {
  const hit = async (path) => ((await ask(ports.http, HOSTS.shop, path)).headers['cache-status'] ?? '').includes('hit');
  const [one, other] = ['/cached/by-command', '/cached/beside'];
  const fill = async () => {
    for (const path of [one, other]) await until(`the cache has ${path}`, () => hit(path));
  };
  const purge = (...args) => execFileSync(telaio.binary, ['purge', ...args, '--yes', '--admin-listen', `127.0.0.1:${ports.admin}`, '--token-file', join(telaio.state, 'test-admin.token')], { encoding: 'utf8' });
  await fill();
  purge('--url', `http://${HOSTS.shop}${one}`);
  equal(await hit(one), false, 'the URL is still in the cache');
  equal(await hit(other), true, 'its neighbour is in the cache');
  await fill();
  purge('--host', HOSTS.shop);
  equal([await hit(one), await hit(other)].join(), 'false,false', 'what is still in the cache of the host');
});

test('re-syncing mends what somebody broke by hand', async ({ open }) => {
  const nft = (...args) => execFileSync('nft', args, { encoding: 'utf8' });
  const page = await open();
  await page.open('overview');
  nft('delete', 'table', 'ip', 'telaio');
  await page.getByRole('button', { name: 'Re-sync' }).click();
  await confirm(page, 'Re-sync', { reason: 'somebody broke it' });
  await until('the rules are there again', () => nft('list', 'table', 'ip', 'telaio').includes('10.96.0.11'));
});

test('re-syncing runs from the overview, counts there, and lands in the audit log', async ({ open }) => {
  const page = await open();
  await page.open('overview');
  const row = page.getByRole('region', { name: 'Syncs by plane' }).locator('tr', { hasText: 'Services' });
  const syncs = async () => Number((await row.locator('td').nth(1).innerText()).replace(/\D/g, ''));
  await row.waitFor();
  const before = await syncs();
  await page.getByRole('button', { name: 'Re-sync' }).click();
  await confirm(page, 'Re-sync', { reason: 'just to be sure' });
  await until('the table counts one more sync', async () => (await syncs()) > before);
  await page.open('overrides');
  await page.locator('tr', { hasText: 'just to be sure' }).waitFor();
});

test('markup in annotations and reasons stays text', async ({ open, backends }) => {
  const address = backends.get('shop/orders')[0].address;
  const page = await open();
  await page.open(ORDERS);
  await page.getByText(MARKUP, { exact: true }).waitFor();
  await page.getByRole('button', { name: `Drain ${address}` }).click();
  await confirm(page, 'Drain', { reason: MARKUP });
  await page.locator('tr', { hasText: MARKUP }).first().waitFor();
  for (const place of ['overrides', 'events', 'overview', 'map']) {
    await page.open(place);
    await page.waitForTimeout(300);
  }
  await page.open('overrides');
  await page.locator('tr', { hasText: MARKUP }).first().waitFor();
  equal(await page.evaluate(() => window.pwned), undefined, 'markup ran');
  equal(await page.locator('img').count(), 0, 'images that nobody drew');
  await page.getByRole('button', { name: /^Take back/ }).first().click();
  await confirm(page, 'Take back');
  await page.getByText('Nothing is overridden').waitFor();
});

test('a token that may only look has no buttons that act, and is refused', async ({ open, readToken, base, backends }) => {
  const page = await open({ token: readToken });
  for (const view of VIEWS) {
    await show(page, view);
    const acting = await page.getByRole('button', { name: /^(Drain|Enable|Weight of|Remove|Add backend|Pause(?!d)|Resume|Purge|Re-sync|Undo|Take back)/ }).count();
    equal(acting, 0, `buttons that act in ${view[0]}`);
  }
  await page.locator('.nav').getByText('Read only').waitFor();
  for (const dryRun of [true, false]) {
    const action = { kind: 'drain', service: { namespace: 'shop', name: 'orders' }, target: { address: backends.get('shop/orders')[0].address } };
    const answer = await fetch(`${base}api/v1/actions`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${readToken}`, 'Content-Type': 'application/json' },
      body: JSON.stringify({ action, dry_run: dryRun, reason: '', for_s: null }),
    });
    if (!dryRun) equal(answer.status, 403, 'the answer to an action');
  }
  await page.open('overrides');
  await page.getByText('Nothing is overridden').waitFor();
});
