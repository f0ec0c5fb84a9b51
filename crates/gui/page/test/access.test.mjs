// For everybody: axe finds no fault, the keyboard is enough, phones are wide enough, motion can be less.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { assert, equal, test, until } from './harness.mjs';
import { confirm } from './manage.test.mjs';
import { show, VIEWS } from './views.test.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PHONE = [360, 740];

/** Faults that axe calls serious or critical. */
export async function faults(page) {
  // By the debugger, for the page's policy allows no script but its own.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.filter((one) => one.impact === 'serious' || one.impact === 'critical')
    .map((one) => `${one.id} (${one.impact}): ${one.nodes.slice(0, 3).map((node) => `${node.target.join(' ')} ${node.failureSummary ?? ''}`).join('; ')}`);
}

for (const dark of [false, true]) {
  test(`axe finds nothing serious in any view, ${dark ? 'dark' : 'light'}`, async ({ open, base, backends, readToken }) => {
    const problems = [];
    const page = await open({ dark });
    for (const view of VIEWS) {
      await show(page, view);
      problems.push(...(await faults(page)).map((text) => `${view[0]}: ${text}`));
    }
    await page.open('services/shop/orders');
    await page.getByRole('button', { name: /^Drain/ }).first().click();
    await page.locator('dialog .impact li').first().waitFor();
    problems.push(...(await faults(page)).map((text) => `dialog: ${text}`));
    await page.keyboard.press('Escape');
    // What only opens when it is asked for.
    const look = async (what) => problems.push(...(await faults(page)).map((text) => `${what}: ${text}`));
    await page.getByRole('button', { name: 'Show rules' }).click();
    await page.locator('pre.rules').waitFor();
    await look('rules');
    await page.getByRole('button', { name: 'Add backend' }).click();
    await page.locator('dialog .impact').waitFor();
    await look('dialog of a backend');
    await page.keyboard.press('Escape');
    await page.open('overview');
    await page.getByRole('button', { name: 'Table', exact: true }).click();
    await page.getByRole('region', { name: 'Figures over time' }).waitFor();
    await look('figures as a table');
    await page.open('map?as=list');
    await page.locator('.tree').getByText('orders').first().waitFor();
    await look('the map as a list');
    await page.open('map');
    await page.locator('.vertex.k-service').first().click();
    await page.locator('.map-foot').getByRole('link', { name: 'Open' }).waitFor();
    await look('the map with a choice');
    await page.open('routes');
    await page.getByRole('button', { name: /^Pause(?!d)/ }).first().click();
    await page.locator('dialog .impact li').first().waitFor();
    await look('dialog of a pause');
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Purge cache' }).click();
    await confirm(page, 'Purge', { fill: { 'Host or URL': 'nobody.example.com' } });
    await page.locator('.toast').waitFor();
    await look('toast');
    const { address } = backends.get('shop/catalog')[2];
    await page.open('services/shop/catalog');
    await page.getByRole('button', { name: `Drain ${address}` }).click();
    await confirm(page, 'Drain');
    await page.locator('.toast').getByRole('button', { name: 'Undo' }).click();
    await page.locator('dialog .impact li').first().waitFor();
    await look('dialog of undoing');
    await confirm(page, 'Undo');
    const reader = await open({ dark, token: readToken });
    for (const view of [VIEWS[0], VIEWS[3], VIEWS[4]]) {
      await show(reader, view);
      problems.push(...(await faults(reader)).map((text) => `${view[0]}, read only: ${text}`));
    }
    const phone = await open({ dark, size: PHONE });
    for (const view of VIEWS) {
      await show(phone, view);
      problems.push(...(await faults(phone)).map((text) => `${view[0]} on a phone: ${text}`));
    }
    const outside = await open({ dark, token: null });
    await outside.goto(base);
    await outside.getByLabel('Token').waitFor();
    problems.push(...(await faults(outside)).map((text) => `sign-in: ${text}`));
    assert(!problems.length, problems.join('\n    '));
  });
}

test('the keyboard alone signs in, finds a service, and drains and enables a backend', async ({ open, token, base, backends }) => {
  const page = await open({ token: null, secret: token });
  const press = async (key, times = 1) => {
    for (let i = 0; i < times; i += 1) await page.keyboard.press(key);
  };
  const focused = () => page.evaluate(() => {
    const at = document.activeElement;
    return at && ['A', 'BUTTON', 'H1'].includes(at.tagName) ? `${at.tagName} ${at.getAttribute('aria-label') ?? ''} ${at.textContent ?? ''}` : '';
  });
  const tabTo = (words) => until(`the focus is on ${words}`, async () => {
    if ((await focused()).includes(words)) return true;
    await press('Tab');
    return false;
  });
  await page.goto(base);
  await page.getByLabel('Token').waitFor();
  await page.keyboard.type(token);
  await press('Enter');
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  // The first stop is the link over the navigation.
  await page.reload();
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  await press('Tab');
  assert((await focused()).includes('Skip to the content'), `first stop: ${await focused()}`);
  await press('Enter');
  equal(await page.evaluate(() => document.activeElement?.id), 'main', 'where the link leads');
  await page.reload();
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  await tabTo('Services');
  await press('Enter');
  await page.locator('h1', { hasText: 'Services' }).waitFor();
  await until('the heading has the focus', async () => (await focused()).startsWith('H1'));
  await page.getByRole('link', { name: 'shop/orders' }).waitFor();
  await tabTo('shop/orders');
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  equal(outline, 'solid', 'the outline of what has the focus');
  await press('Enter');
  await page.locator('h1', { hasText: 'orders' }).waitFor();
  const { address } = backends.get('shop/orders')[0];
  await page.getByRole('button', { name: `Drain ${address}` }).waitFor();
  await tabTo(`Drain ${address}`);
  await press('Enter');
  await page.locator('dialog').waitFor();
  await press('Escape');
  await page.locator('dialog').waitFor({ state: 'detached' });
  await until('the focus comes back', async () => {
    const at = await page.evaluate(() => `${document.activeElement?.outerHTML.slice(0, 200)} ${document.activeElement?.textContent}`);
    assert((await focused()).includes(`Drain ${address}`), `it is on ${at}`);
    return true;
  }, 5000);
  await press('Enter');
  await page.locator('dialog .impact li').first().waitFor();
  // Once around: from the last stop to the first again.
  const stops = [];
  for (let i = 0; i < 24 && (await focused()).trim() !== 'BUTTON  Drain'; i += 1) {
    await press('Tab');
    stops.push(await page.evaluate(() => {
      const at = document.activeElement;
      return at === document.body || document.querySelector('dialog').contains(at) ? '' : at.outerHTML.slice(0, 120);
    }));
  }
  equal(stops.filter(Boolean).join(), '', 'where the focus was outside of the dialog');
  equal((await focused()).trim(), 'BUTTON  Drain', 'the last stop');
  await press('Enter');
  await page.getByRole('region', { name: 'Endpoints' }).locator('tr', { hasText: address }).getByText('Drained').waitFor();
  await tabTo(`Enable ${address}`);
  await press('Enter');
  await page.locator('dialog .impact').waitFor();
  await until('the button is there', () => page.locator('dialog').getByRole('button', { name: 'Enable' }).isEnabled());
  await until('the focus is on the button', async () => {
    await press('Tab');
    return (await focused()).trim() === 'BUTTON  Enable';
  });
  await press('Enter');
  await page.getByRole('region', { name: 'Endpoints' }).locator('tr', { hasText: address }).getByText('Ready', { exact: true }).waitFor();
});

test('on a phone no view scrolls sideways, and the menu opens and closes', async ({ open }) => {
  const page = await open({ size: PHONE });
  for (const view of VIEWS) {
    await show(page, view);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert(over <= 0, `${view[0]} is ${over} px too wide`);
  }
  const menu = page.getByRole('button', { name: 'Menu' });
  await menu.click();
  await page.getByRole('link', { name: 'Routes' }).click();
  await page.locator('h1', { hasText: 'Routes' }).waitFor();
  await until('the menu closes after a choice', async () => (await menu.getAttribute('aria-expanded')) === 'false');
});

test('on a wide screen the views use the room', async ({ open }) => {
  const page = await open({ size: [2200, 1200] });
  await show(page, VIEWS[0]);
  const width = await page.evaluate(() => document.querySelector('.view').getBoundingClientRect().width);
  assert(width > 1400, `the view is ${width} px wide`);
});

test('colours follow the system until the person chooses', async ({ open }) => {
  const page = await open({ dark: true });
  await page.open('overview');
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  equal(await theme(), 'dark', 'at first');
  await page.getByRole('button', { name: 'Light colours' }).click();
  equal(await theme(), 'light', 'after the choice');
  await page.reload();
  await page.locator('h1', { hasText: 'Overview' }).waitFor();
  equal(await theme(), 'light', 'after a reload');
});
