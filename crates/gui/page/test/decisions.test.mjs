// What people decided: the page says so wherever it counts, and offers what can be done then, and only that.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { RETURN_MS, assert, equal, test, until } from './harness.mjs';
import { Backend, put } from './cluster.mjs';
import { confirm, endpointRow, share } from './manage.test.mjs';
import { HOSTS } from './world.mjs';

/** Names of the buttons in a row. */
const buttons = async (row) => (await row.getByRole('button').allInnerTexts()).map((one) => one.replace(/\s+/g, ' ').trim());

async function acts(base, token, action, more = {}) {
  const answer = await fetch(`${base}api/v1/actions`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ action, dry_run: false, reason: 'a test', for_s: null, ...more }),
  });
  equal(answer.status, 200, `the answer to ${action.kind}: ${await answer.clone().text()}`);
  return answer.json();
}

async function takesBack(base, token, id) {
  await fetch(`${base}api/v1/actions/${id}/undo`, { method: 'POST', headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }, body: '{}' });
}

test('a backend that was added by hand can be drained, and one with a weight too', async ({ open, backends, ports, base, token }) => {
  const all = backends.get('staging/frontend');
  const extra = await Backend.start('10.244.2.201', 8080, 'extra');
  const key = { namespace: 'staging', name: 'frontend' };
  const added = await acts(base, token, { kind: 'add_backend', service: key, address: extra.address, port: 8080, node: null, weight: null });
  const weighted = await acts(base, token, { kind: 'weight', service: key, target: { address: all[0].address }, weight: 3 });
  const page = await open();
  await page.open('services/staging/frontend');
  const row = endpointRow(page, extra.address);
  await row.getByText('Added').waitFor();
  await until('it gets requests', async () => (await share([extra], ports, HOSTS.staging, '/', 12))[0] > 0, RETURN_MS);
  for (const one of [row, endpointRow(page, all[0].address)]) {
    const names = await buttons(one);
    assert(names.some((name) => name.startsWith('Drain')) && !names.some((name) => name.startsWith('Enable')), `buttons: ${names}`);
  }
  await row.getByRole('button', { name: /^Drain/ }).click();
  await confirm(page, 'Drain');
  await row.getByText('Drained').waitFor();
  await until('it gets none', async () => (await share([extra], ports, HOSTS.staging, '/', 12))[0] === 0);
  await row.getByRole('button', { name: /^Enable/ }).click();
  await confirm(page, 'Enable');
  await until('it gets requests again', async () => (await share([extra], ports, HOSTS.staging, '/', 12))[0] > 0, RETURN_MS);
  await row.getByRole('button', { name: /^Drain/ }).waitFor();
  const other = endpointRow(page, all[0].address);
  await other.getByRole('button', { name: /^Drain/ }).click();
  await confirm(page, 'Drain');
  await other.getByText('Drained').waitFor();
  await until('the weighted one gets none', async () => (await share(all, ports, HOSTS.staging, '/', 12))[0] === 0);
  // The weight is asked anew: a drained endpoint's 0 is no suggestion.
  await other.getByRole('button', { name: /^Weight/ }).click();
  equal(await page.locator('dialog').getByLabel('Weight').inputValue(), '1', 'the weight that is suggested');
  await page.keyboard.press('Escape');
  await other.getByRole('button', { name: /^Enable/ }).click();
  await confirm(page, 'Enable');
  await other.getByText('Ready', { exact: true }).waitFor();
  await until('it gets requests again', async () => (await share(all, ports, HOSTS.staging, '/', 12))[0] > 0, RETURN_MS);
  await takesBack(base, token, weighted.id);
  await takesBack(base, token, added.id);
  await row.waitFor({ state: 'detached' });
  extra.stop();
});

test('what is drained with its node is enabled with its node', async ({ open, backends, ports, base, token }) => {
  const all = backends.get('shop/frontend');
  const key = { namespace: 'shop', name: 'frontend' };
  // The first and the fourth run on loom-a.
  await acts(base, token, { kind: 'drain', service: key, target: { node: 'loom-a' } });
  const page = await open();
  await page.open('services/shop/frontend');
  const row = endpointRow(page, all[0].address);
  await row.getByText('Drained').waitFor();
  await endpointRow(page, all[3].address).getByText('Drained').waitFor();
  await row.getByRole('button', { name: /^Enable node loom-a/ }).click();
  const said = await confirm(page, 'Enable');
  assert(said.includes(all[0].address) && said.includes(all[3].address), `both are named: ${said}`);
  for (const one of [0, 3]) await endpointRow(page, all[one].address).getByText('Ready', { exact: true }).waitFor();
  await until('both get requests', async () => {
    const hits = await share(all, ports, HOSTS.shop, '/', 40);
    return hits[0] > 0 && hits[3] > 0;
  });
});

test('a decision says by whom and until when in every view that shows its object, and one in a manifest has no button', async ({ open, backends, manifests }) => {
  const [first] = backends.get('search/index');
  const until_ = new Date(Date.now() + 5 * 3600e3).toISOString();
  const file = 'zz-decided.yaml';
  put(manifests, file, `apiVersion: telaio.dev/v1
kind: Override
metadata: { name: maintenance, namespace: search }
spec: { service: { name: index }, target: { address: ${first.address} }, action: drain, by: ana@example.com, reason: new disk, until: "${until_}" }
---
apiVersion: telaio.dev/v1
kind: Override
metadata: { name: closed, namespace: staging }
spec: { ingress: { name: staging }, action: pause, by: ben@example.com, reason: migration, until: "${until_}" }
---
`);
  const says = (text, who) => text.includes(who) && /4 h \d\d min left/.test(text);
  try {
    const page = await open();
    await page.open('services');
    const line = page.locator('tr', { hasText: 'search/index' });
    await line.getByText('drained').first().waitFor();
    await until('the list says who', async () => says(await line.innerText(), 'ana@example.com'));
    await page.open('services/search/index');
    const row = endpointRow(page, first.address);
    await until('the endpoint says who', async () => says(await row.innerText(), 'ana@example.com'));
    equal((await buttons(row)).filter((name) => /^(Drain|Enable)/.test(name)).length, 0, 'buttons that would be refused');
    await row.getByText('in a manifest').first().waitFor();
    await page.open('map');
    for (const box of [page.locator('.vertex.k-service', { hasText: 'index' }), page.locator('.vertex.k-endpoint', { hasText: 'index-1' })]) {
      // By keyboard: what stands below the map needs no pointer.
      await box.focus();
      await page.keyboard.press('Enter');
      await until('the map says who', async () => says(await page.locator('.map-foot').innerText(), 'ana@example.com'));
      await page.keyboard.press('Escape');
    }
    await page.locator('.vertex.k-route[title*="overridden"]').click();
    await until('of a route too', async () => says(await page.locator('.map-foot').innerText(), 'ben@example.com'));
    await page.open('map?as=list');
    await until('the list of the map says who', async () => says(await page.locator('.tree').innerText(), 'ana@example.com'));
    await page.open('routes?show=paused');
    const route = page.getByRole('region', { name: 'Routes' }).locator('tr', { hasText: HOSTS.staging });
    await until('the route says who', async () => says(await route.innerText(), 'ben@example.com'));
    equal((await buttons(route)).filter((name) => /^(Pause|Resume)/.test(name)).length, 0, 'buttons that would be refused');
    await page.open(`trace?url=${encodeURIComponent(`http://${HOSTS.staging}/`)}`);
    await until('the trace says who', async () => says(await page.locator('.verdict').innerText(), 'ben@example.com'));
    await page.open('events');
    const event = page.locator('tr', { hasText: 'Override' }).filter({ hasText: first.address });
    await event.first().waitFor();
    await event.first().getByRole('link').first().click();
    await page.locator('h1', { hasText: 'Overrides' }).waitFor();
  } finally {
    rmSync(join(manifests, file));
  }
  const page = await open();
  await page.open('overrides');
  await page.getByText('Nothing is overridden').waitFor();
});

test('undo asks first, from the message and from the audit log', async ({ open, backends }) => {
  const { address } = backends.get('shop/catalog')[1];
  const page = await open();
  await page.open('services/shop/catalog');
  const row = endpointRow(page, address);
  await row.getByRole('button', { name: `Drain ${address}` }).click();
  await confirm(page, 'Drain', { reason: 'asks first' });
  await row.getByText('Drained').waitFor();
  await page.locator('.toast').getByRole('button', { name: 'Undo' }).click();
  const dialog = page.locator('dialog');
  await dialog.getByText('taken back').waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await row.getByText('Drained').waitFor();
  await page.open('overrides');
  await page.getByRole('region', { name: 'Audit log' }).locator('tr', { hasText: 'asks first' }).getByRole('button', { name: /^Undo/ }).click();
  const said = await confirm(page, 'Undo', { reason: 'it was a test' });
  assert(said.includes('taken back'), `what it touches: ${said}`);
  await page.getByText('Nothing is overridden').waitFor();
  await page.getByRole('region', { name: 'Audit log' }).locator('tr', { hasText: 'it was a test' }).first().waitFor();
});
