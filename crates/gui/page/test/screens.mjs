// Pictures of each view for the documentation.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { until } from './harness.mjs';
import { show, VIEWS } from './views.test.mjs';

const PHONE = [390, 844];
/** So that charts have something to show. */
const WARM_UP_S = 70;

const NAMES = ['overview', 'map', 'services', 'service', 'routes', 'certificates', 'pods', null, 'trace', 'events', 'overrides'];

export async function takeScreens(world, directory) {
  const { browser, base, token, backends } = world;
  console.log(`waiting ${WARM_UP_S} s for figures`);
  await new Promise((go) => setTimeout(go, WARM_UP_S * 1000));
  const taken = [];
  const shoot = async (page, name) => {
    await page.waitForTimeout(1200);
    const path = join(directory, `${name}.png`);
    await page.screenshot({ path });
    taken.push(path);
    console.log(path);
  };
  const page = await browser.page({ base, token, size: [1280, 800] });
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
  for (const [i, view] of VIEWS.entries()) {
    if (!NAMES[i]) continue;
    await show(page, view);
    await shoot(page, NAMES[i]);
  }
  await page.close();
  const dark = await browser.page({ base, token, size: [1280, 800], dark: true });
  for (const i of [0, 1]) {
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
