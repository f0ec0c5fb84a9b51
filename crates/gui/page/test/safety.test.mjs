// Words that others write stay words, in every view; and the page works by TLS.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { assert, equal, test, until } from './harness.mjs';
import { nodes, put, secret, service, slice, Telaio } from './cluster.mjs';
import { show } from './views.test.mjs';
import { HOSTS, MARKUP } from './world.mjs';

const quoted = JSON.stringify(MARKUP);
/** Markup without what a path cannot have. */
const PATH_MARKUP = '<img/src=x/onerror=window.pwned=3>';
/** As long as a certificate's words may be. */
const SHORT_MARKUP = '<img src=x onerror=window.pwned=4>';
const FILE = 'zz-markup.yaml';

/** What a hostile hand writes wherever words are free. */
function hostile() {
  const evil = service('shop', 'evil', '10.96.0.93', { annotations: { 'example.com/note': MARKUP } });
  const endpoints = slice('shop', 'evil', [{ address: '10.244.2.93' }]).replace('name: evil-1 } }', `name: ${quoted} } }`);
  return `${evil}${endpoints}apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: evil, namespace: shop, annotations: { telaio.dev/rewrite-target: ${quoted}, telaio.dev/canary-weight: ${quoted} } }
spec:
  tls: [{ hosts: [${HOSTS.shop}], secretName: evil-tls }]
  rules:
    - host: ${HOSTS.shop}
      http:
        paths:
          - { path: ${JSON.stringify(`/${PATH_MARKUP}`)}, pathType: Prefix, backend: { service: { name: evil, port: { name: http } } } }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: evil-host, namespace: shop }
spec:
  rules:
    - host: ${quoted}
      http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: evil, port: { name: ${quoted} } } } }] }
---
apiVersion: v1
kind: Service
metadata: { name: evil-port, namespace: shop }
spec: { clusterIP: 10.96.0.92, ports: [{ name: ${quoted}, port: 80 }] }
---
apiVersion: telaio.dev/v1
kind: Override
metadata: { name: evil, namespace: shop }
spec: { service: { name: evil }, target: { address: 10.244.2.93 }, action: weight, weight: 3, by: ${quoted}, reason: ${quoted} }
---
apiVersion: telaio.dev/v1
kind: Override
metadata: { name: evil-pause, namespace: shop }
spec: { ingress: { name: evil }, action: pause, by: ${quoted}, reason: ${quoted} }
---
apiVersion: v1
kind: Service
metadata: { name: evil-problem, namespace: shop }
spec: { clusterIP: "${SHORT_MARKUP}", ports: [{ port: 80 }] }
---
apiVersion: v1
kind: Node
metadata: { name: loom-evil, labels: { topology.kubernetes.io/zone: ${JSON.stringify(SHORT_MARKUP)} } }
spec: { podCIDR: 10.244.78.0/24, podCIDRs: [10.244.78.0/24] }
status: { addresses: [{ type: InternalIP, address: 192.0.2.78 }] }
---
${secret('shop', 'evil-tls', HOSTS.shop, 60, SHORT_MARKUP)}`;
}

/** Where markup has to be read, word for word. */
const PLACES = [
  ['services', 'shop/evil', MARKUP],
  ['services/shop/evil', '10.244.2.93', MARKUP],
  ['map', 'evil', PATH_MARKUP],
  ['map?q=evil', 'evil', MARKUP],
  ['map?as=list', 'evil', PATH_MARKUP],
  ['map?q=evil&as=list', 'evil', MARKUP],
  ['routes', PATH_MARKUP, PATH_MARKUP],
  ['routes?show=paused', PATH_MARKUP, MARKUP],
  ['routes/certificates', 'shop/evil-tls', SHORT_MARKUP],
  ['overview', 'evil-problem', SHORT_MARKUP],
  ['overrides', '10.244.2.93', MARKUP],
  ['events', 'evil', MARKUP],
  [`trace?url=${encodeURIComponent(`http://${HOSTS.shop}/${PATH_MARKUP}`)}`, 'Step by step', PATH_MARKUP],
  ['pods', '192.0.2.78', SHORT_MARKUP],
  ['trace?from=10.244.1.200&to=10.96.0.93:80', 'Step by step', null],
  [`services?q=${encodeURIComponent(MARKUP)}`, 'No service fits', null],
  [`services/${encodeURIComponent(MARKUP)}/${encodeURIComponent(MARKUP)}`, 'could not be loaded', MARKUP],
];

test('markup stays text in every view, whatever it is the name of', async ({ open, manifests }) => {
  put(manifests, FILE, hostile());
  try {
    const page = await open();
    for (const [place, loaded, words] of PLACES) {
      await page.open(place);
      const main = page.locator('#main');
      await main.getByText(loaded).first().waitFor();
      if (place === 'overview') await page.getByRole('button', { name: 'Show all' }).click({ timeout: 1000 }).catch(() => undefined);
      if (words) await until(`${place} says the markup`, async () => (await main.evaluate((it) => it.textContent)).includes(words));
      const made = await page.evaluate(() => [...document.querySelectorAll('body img, body script, body iframe, body [onerror], body [onload]')].map((it) => it.outerHTML.slice(0, 80)));
      equal(made.join(), '', `elements made of words in ${place}`);
      equal(await page.evaluate(() => window.pwned), undefined, `markup ran in ${place}`);
    }
    // The rules of a service, which name its endpoints.
    await page.open('services/shop/evil');
    await page.getByRole('button', { name: 'Show rules' }).click();
    await page.locator('pre.rules').waitFor();
    equal(await page.locator('pre.rules *').count(), 0, 'elements in the rules');
    // What a vertex of the map says when it is chosen.
    await page.open('map?q=evil');
    await page.locator('.vertex.k-endpoint').first().click();
    await until('the map says who decided', async () => (await page.locator('.map-foot').evaluate((it) => it.textContent)).includes(MARKUP));
    equal(await page.locator('body img').count(), 0, 'images of the map');
    // A search that is markup stays in its field.
    await page.getByLabel('Search the map').fill(MARKUP);
    await page.getByText('Nothing to draw').waitFor();
    equal(await page.evaluate(() => window.pwned), undefined, 'markup ran in the end');
  } finally {
    rmSync(join(manifests, FILE));
  }
  const page = await open();
  await page.open('overrides');
  await page.getByText('Nothing is overridden').waitFor();
}, { allow: [/404/] });

test('by TLS the page loads, is live and acts, and plain HTTP gets nothing', async ({ open, telaio }) => {
  const place = mkdtempSync(join(tmpdir(), 'telaio-tls-'));
  const [manifests, cert, key] = ['manifests', 'cert.pem', 'key.pem'].map((name) => join(place, name));
  mkdirSync(manifests);
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', key, '-out', cert, '-days', '2',
    '-subj', '/CN=loom-a', '-addext', 'subjectAltName=IP:127.0.0.1'], { stdio: ['ignore', 'ignore', 'pipe'] });
  put(manifests, 'all.yaml', nodes() + service('shop', 'orders', '10.96.0.11') + slice('shop', 'orders', [{ address: '10.244.1.20' }, { address: '10.244.2.21' }]));
  const ports = { admin: 9991, http: 8091, https: 8494, metrics: 10350, healthz: 10357 };
  const safe = new Telaio(telaio.binary, manifests, join(place, 'state'), ports, ['--backend', 'view', '--admin-tls-cert', cert, '--admin-tls-key', key]);
  try {
    await safe.start();
    const page = await open({ base: `https://127.0.0.1:${ports.admin}/`, token: safe.token, anyCertificate: true });
    await show(page, ['services/shop/orders', 'orders', '10.244.1.20']);
    await page.locator('.view-head .live', { hasText: 'Live' }).waitFor();
    await page.getByRole('button', { name: 'Drain 10.244.1.20' }).click();
    await page.locator('dialog .impact li').first().waitFor();
    await page.locator('dialog').getByRole('button', { name: 'Drain', exact: true }).click();
    await page.getByRole('region', { name: 'Endpoints' }).getByText('Drained').waitFor();
    const secure = await page.evaluate(() => [location.protocol, isSecureContext].join());
    equal(secure, 'https:,true', 'how the page was loaded');
    await page.close();
    const plain = await fetch(`http://127.0.0.1:${ports.admin}/`).then((answer) => answer.status, () => 'no answer');
    assert(plain === 'no answer' || plain >= 400, `plain HTTP got ${plain}`);
  } finally {
    await safe.stop().catch(() => undefined);
    rmSync(place, { recursive: true });
  }
});
