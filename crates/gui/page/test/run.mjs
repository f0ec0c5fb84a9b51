// The page's tests in a real browser, against the real agent.
//
//   unshare --net node test/run.mjs --binary PATH [--only TEXT] [--times N] [--failures DIR] [--screens DIR]
//
// It must run in a network namespace of its own. With --screens it takes the pictures of the
// documentation instead of testing; with --times each test runs so often in a row.
import { mkdirSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { prepareNetwork } from './cluster.mjs';
import { Browser, runAll } from './harness.mjs';
import { takeScreens } from './screens.mjs';
import { build } from './world.mjs';
import './unit.test.mjs';
import './views.test.mjs';
import './manage.test.mjs';
import './access.test.mjs';
import './robust.test.mjs';
import './live.test.mjs';
import './hidden.test.mjs';
import './brain.test.mjs';
import './decisions.test.mjs';
import './safety.test.mjs';

const { values: given } = parseArgs({ options: { binary: { type: 'string' }, only: { type: 'string' }, times: { type: 'string', default: '1' }, failures: { type: 'string' }, screens: { type: 'string' } } });
if (!given.binary) throw new Error('--binary PATH is missing');
if (given.failures) mkdirSync(given.failures, { recursive: true });

prepareNetwork();
const shop = await build(given.binary, { perSecond: given.screens ? 160 : 60 });
const browser = await Browser.start();
let failed = 1;
try {
  const { token, readToken } = shop.telaio;
  const world = { ...shop, token, readToken, browser, failures: given.failures };
  if (given.screens) {
    await takeScreens(world, given.screens);
    failed = 0;
  } else {
    const counts = await runAll(world, given.only, Number(given.times));
    failed = counts.failed;
    if (failed) console.log(`the agent's last words:\n${shop.telaio.log.slice(-3000)}`);
    console.log(`${counts.passed} passed, ${counts.failed} failed`);
    if (!counts.passed) failed = 1;
  }
} catch (error) {
  console.log(`${error.stack ?? error}\n0 passed, 1 failed`);
} finally {
  await browser.stop();
  await shop.stop().catch((error) => {
    console.log(`the agent did not end well: ${error}`);
    failed = 1;
  });
}
process.exit(failed ? 1 : 0);
