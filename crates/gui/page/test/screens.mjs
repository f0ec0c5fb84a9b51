// Pictures of each view for the documentation.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { until } from './harness.mjs';
import { Instance, put, service, slice } from './cluster.mjs';
import { show, VIEWS } from './views.test.mjs';

const PHONE = [390, 844];
const SIZE = [1280, 800];
/** The map is shown whole. */
const MAP_SIZE = [1280, 1030];
/** So that charts have something to show. */
const WARM_UP_S = 70;

const NAMES = ['overview', 'map', 'services', 'service', 'routes', 'certificates', 'pods', null, 'trace', 'events', 'overrides'];

/** Instances on this node, for the view of pods: what a container runtime attached, one with a published port. */
async function populate({ telaio, manifests, backends }) {
  // One fails now and then, and nobody has drained it yet: a red line on the map.
  backends.get('shop/payments')[1].failShare = 0.2;
  const instances = [];
  for (const [i, id] of ['cart-7f9c4b', 'cart-7f9c5d', 'mailer-64d8f2'].entries()) instances.push(await Instance.start(telaio, id, 8097 + i));
  const on = (from, to) => instances.slice(from, to).map(({ address }) => ({ address, node: 0 }));
  put(manifests, 'shop-cart.yaml', service('shop', 'cart', '10.96.0.97') + slice('shop', 'cart', on(0, 2)) + service('shop', 'mailer', '10.96.0.96') + slice('shop', 'mailer', on(2, 3)));
  return instances;
}

/** Somebody else's decision. */
async function pause({ base, token }) {
  const action = { kind: 'pause_route', ingress: { namespace: 'staging', name: 'staging' }, host: null, path: null, retry_after_s: null };
  const answer = await fetch(`${base}api/v1/actions`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ action, dry_run: false, reason: 'moves to new databases', for_s: 28_800 }),
  });
  if (!answer.ok) throw new Error(`no pause: ${await answer.text()}`);
}

export async function takeScreens(world, directory) {
  const instances = await populate(world);
  try {
    await take(world, directory);
  } finally {
    for (const one of instances) one.stop();
  }
}

async function take(world, directory) {
  const { browser, base, token, backends } = world;
  console.log(`waiting ${WARM_UP_S} s for figures`);
  await new Promise((go) => setTimeout(go, WARM_UP_S * 1000));
  const taken = [];
  const shoot = async (page, name) => {
    await page.waitForTimeout(1200);
    // Where this machine keeps what it tests with says nothing to anybody.
    await page.evaluate(() => {
      for (const code of document.querySelectorAll('code')) {
        const words = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
        for (let text = words.nextNode(); text; text = words.nextNode()) text.data = text.data.replace(/\/tmp\/telaio-page-\w+\//, '/etc/telaio/');
      }
    });
    const path = join(directory, `${name}.png`);
    await page.screenshot({ path });
    taken.push(path);
    console.log(path);
  };
  const page = await browser.page({ base, token, size: SIZE });
  // Something decided, for the views that show decisions.
  await page.open('services/shop/orders');
  await page.getByRole('button', { name: `Drain ${backends.get('shop/orders')[2].address}` }).click();
  const dialog = page.locator('dialog');
  await dialog.getByLabel(/Reason/).fill('8 % errors since the last release');
  await until('the preview', () => dialog.getByRole('button', { name: 'Drain', exact: true }).isEnabled());
  await shoot(page, 'drain');
  await dialog.getByRole('button', { name: 'Drain', exact: true }).click();
  await dialog.waitFor({ state: 'detached' });
  await page.getByText('Drained', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Close message' }).click();
  await pause(world);
  for (const [i, view] of VIEWS.entries()) {
    if (!NAMES[i]) continue;
    const [width, height] = NAMES[i] === 'map' ? MAP_SIZE : SIZE;
    await page.setViewportSize({ width, height });
    await show(page, view);
    if (NAMES[i] === 'map') await page.locator('.map-edges path.edge.bad').first().waitFor({ state: 'attached' });
    await shoot(page, NAMES[i]);
  }
  await page.close();
  const dark = await browser.page({ base, token, size: SIZE, dark: true });
  for (const i of [0, 1]) {
    const [width, height] = i ? MAP_SIZE : SIZE;
    await dark.setViewportSize({ width, height });
    await show(dark, VIEWS[i]);
    await shoot(dark, `${NAMES[i]}-dark`);
  }
  await dark.close();
  const phone = await browser.page({ base, token, size: PHONE });
  await show(phone, VIEWS[0]);
  await shoot(phone, 'overview-phone');
  await phone.close();
  // Only now: it keeps this process, and with it the clients, from working.
  for (const path of taken) execFileSync('optipng', ['-quiet', '-o3', '-strip', 'all', path]);
}
