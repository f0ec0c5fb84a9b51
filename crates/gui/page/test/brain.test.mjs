// A node below a brain: what was decided there is shown, what is decided there has no buttons, and what is the node's own has.
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { equal, test, until } from './harness.mjs';
import { Backend, ask, ingress, nodes, put, service, slice, Telaio } from './cluster.mjs';
import { confirm, endpointRow } from './manage.test.mjs';

const HOST = 'woven.example.com';
const PORTS = { admin: 9993, http: 8093, https: 8496, metrics: 10352, healthz: 10359 };
const API = '127.0.0.1:12093';

/** A certificate for both sides, and what verifies it: nodes that terminate TLS prove who they are. */
function certificate(place) {
  const at = (name) => join(place, name);
  const openssl = (...args) => execFileSync('openssl', args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const key = (name) => ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', at(`${name}.key`)];
  openssl('req', '-x509', ...key('ca'), '-out', at('ca.pem'), '-days', '2', '-subj', '/CN=the test');
  openssl('req', '-new', ...key('both'), '-out', at('both.csr'), '-subj', '/O=telaio:ingress/CN=loom-a');
  writeFileSync(at('names'), 'subjectAltName=DNS:loom-a,IP:127.0.0.1\n');
  openssl('x509', '-req', '-in', at('both.csr'), '-CA', at('ca.pem'), '-CAkey', at('ca.key'), '-CAcreateserial', '-out', at('both.pem'), '-days', '2', '-extfile', at('names'));
  return ['--tls-cert', at('both.pem'), '--tls-key', at('both.key'), '--tls-ca', at('ca.pem')];
}

/** Runs a brain beside the test. */
async function brain(binary, place, tls) {
  const child = spawn(binary, ['brain', '--source', 'dir:manifests', '--state-dir', join(place, 'brain'), '--api-listen', API, '--admin-listen', '127.0.0.1:9994',
    '--metrics-bind-address', '127.0.0.1:10353', '--healthz-bind-address', '127.0.0.1:10360', ...tls], { stdio: 'ignore', cwd: place });
  const ended = new Promise((done) => child.once('exit', done));
  await until('the brain is healthy', async () => (await fetch('http://127.0.0.1:10360/healthz')).ok);
  return async () => {
    child.kill('SIGTERM');
    await ended;
  };
}

test('below a brain overrides are shown and not decided, and the node’s own cache and rules are purged and synced', async ({ open, telaio }) => {
  const place = mkdtempSync(join(tmpdir(), 'telaio-brain-'));
  const manifests = join(place, 'manifests');
  for (const name of ['manifests', 'brain']) mkdirSync(join(place, name));
  const backends = [await Backend.start('10.244.3.201', 8080, 'woven-1'), await Backend.start('10.244.3.202', 8080, 'woven-2')];
  put(manifests, 'all.yaml', nodes() + service('shop', 'woven', '10.96.0.88') + slice('shop', 'woven', backends)
    + ingress('shop', 'woven', HOST, [['/', 'woven']], { annotations: { 'telaio.dev/cache': 'true' } }));
  put(manifests, 'decided.yaml', `apiVersion: telaio.dev/v1
kind: Override
metadata: { name: at-the-brain, namespace: shop }
spec: { service: { name: woven }, target: { address: ${backends[0].address} }, action: drain, by: ana@example.com, reason: decided above }
`);
  const tls = certificate(place);
  const node = new Telaio(telaio.binary, manifests, join(place, 'state'), PORTS, ['--backend', 'view', '--classless-ingresses', ...tls]);
  node.source = `brain:https://${API}`;
  let stop = null;
  try {
    stop = await brain(telaio.binary, place, tls);
    await node.start();
    const page = await open({ base: node.base, token: node.token });
    await page.open('services/shop/woven');
    const row = endpointRow(page, backends[0].address);
    await row.getByText('Drained').waitFor();
    await row.getByText('by ana@example.com').waitFor();
    equal(await page.getByRole('button', { name: /^(Drain|Enable|Weight of|Remove|Add backend)/ }).count(), 0, 'buttons that would be refused');
    await page.locator('.nav').getByText('Purge and re-sync only').waitFor();
    await page.open('overrides');
    await page.locator('tr', { hasText: 'decided above' }).waitFor();
    equal(await page.getByRole('button', { name: /^Take back/ }).count(), 0, 'buttons that would be refused');
    const hit = async () => ((await ask(PORTS.http, HOST, '/cached/it')).headers['cache-status'] ?? '').includes('hit');
    await until('the cache has it', hit);
    await page.open('routes');
    await page.locator('tr', { hasText: HOST }).getByRole('button', { name: `Purge ${HOST}` }).click();
    await confirm(page, 'Purge', { fill: { 'Host or URL': HOST } });
    await page.locator('.toast').waitFor();
    equal(await hit(), false, 'it is still in the cache');
    equal(await page.getByRole('button', { name: /^Pause(?!d)/ }).count(), 0, 'buttons that would be refused');
    await page.open('overview');
    await page.getByRole('button', { name: 'Re-sync' }).click();
    await confirm(page, 'Re-sync', { reason: 'below the brain' });
    await page.open('overrides');
    await page.locator('tr', { hasText: 'below the brain' }).getByText('done').waitFor();
    // Before the agent ends, which it would complain of.
    await page.close();
  } finally {
    await node.stop().catch(() => undefined);
    await stop?.();
    for (const one of backends) one.stop();
    rmSync(place, { recursive: true });
  }
});
