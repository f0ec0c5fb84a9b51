// The world that the tests look at: the shop, its backends, its clients, and the agent.
import { mkdtempSync, mkdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as cluster from './cluster.mjs';

/** Markup in words that people may write freely. It must stay text. */
export const MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>';

export const HOSTS = { shop: 'shop.example.com', search: 'search.example.com', staging: 'staging.example.com' };

const SERVICES = [
  ['shop', 'frontend', '10.96.0.10', 4],
  ['shop', 'orders', '10.96.0.11', 3],
  ['shop', 'payments', '10.96.0.12', 2],
  ['shop', 'catalog', '10.96.0.13', 3],
  ['search', 'index', '10.96.0.20', 3],
  ['staging', 'frontend', '10.96.0.30', 1],
];

const ASKS = [
  [HOSTS.shop, '/'], [HOSTS.shop, '/'], [HOSTS.shop, '/'], [HOSTS.shop, '/cached/logo.svg'], [HOSTS.shop, '/api/orders'], [HOSTS.shop, '/'],
  [HOSTS.shop, '/catalog/1'], [HOSTS.search, '/?q=loom'], [HOSTS.shop, '/api/orders'], [HOSTS.shop, '/'], [HOSTS.shop, '/cached/style.css'], [HOSTS.shop, '/api/pay'],
];

export async function build(binary, { ports = { admin: 9900, http: 80, https: 443, metrics: 10249, healthz: 10256 }, perSecond = 60 } = {}) {
  const place = mkdtempSync(join(tmpdir(), 'telaio-page-'));
  const manifests = join(place, 'manifests');
  mkdirSync(manifests);
  const backends = new Map();
  for (const [s, [namespace, name, , count]] of SERVICES.entries()) {
    const mine = [];
    for (let i = 0; i < count; i += 1) mine.push(await cluster.Backend.start(`10.244.${(i % 3) + 1}.${10 + s * 10 + i}`, 8080, `${name}-${i + 1}`));
    backends.set(`${namespace}/${name}`, mine);
  }
  // Some answers of one backend fail: something to see.
  backends.get('shop/orders')[2].failShare = 0.08;
  cluster.put(manifests, 'nodes.yaml', cluster.nodes());
  for (const [namespace, name, address] of SERVICES) {
    const more = name === 'frontend' && namespace === 'shop' ? 'status: { loadBalancer: { ingress: [{ ip: 203.0.113.10 }] } }\n' : '';
    cluster.put(manifests, `${namespace}-${name}.yaml`, cluster.service(namespace, name, address, {
      type: more ? 'LoadBalancer' : 'ClusterIP',
      annotations: name === 'orders' ? { 'example.com/note': MARKUP } : {},
      more,
    }) + cluster.slice(namespace, name, backends.get(`${namespace}/${name}`)));
  }
  cluster.put(manifests, 'shop-mail.yaml', cluster.service('shop', 'mail', '10.96.0.14', { port: 25 }));
  cluster.put(manifests, 'ingress.yaml', [
    cluster.ingress('shop', 'shop', HOSTS.shop, [['/', 'frontend'], ['/api/orders', 'orders'], ['/api/pay', 'payments'], ['/catalog', 'catalog']], {
      tls: 'shop-tls',
      annotations: { 'telaio.dev/ssl-redirect': 'false' },
    }),
    cluster.ingress('shop', 'cached', HOSTS.shop, [['/cached', 'frontend']], { annotations: { 'telaio.dev/cache': 'true' } }),
    cluster.ingress('search', 'search', HOSTS.search, [['/', 'index']], { tls: 'search-tls', annotations: { 'telaio.dev/ssl-redirect': 'false' } }),
    cluster.ingress('staging', 'staging', HOSTS.staging, [['/', 'frontend']]),
  ].join(''));
  cluster.put(manifests, 'secrets.yaml', cluster.secret('shop', 'shop-tls', HOSTS.shop, 81) + cluster.secret('search', 'search-tls', HOSTS.search, 9));
  const telaio = new cluster.Telaio(binary, manifests, join(place, 'state'), ports, ['--cluster-cidr', '10.244.0.0/16'], 'services,pods,ingress');
  await telaio.start();
  const clients = new cluster.Clients(ports.http, ASKS, perSecond);
  const stop = async () => {
    clients.stop();
    await telaio.stop();
    for (const mine of backends.values()) for (const one of mine) one.stop();
    rmSync(place, { recursive: true });
  };
  return { telaio, backends, clients, manifests, ports, base: telaio.base, stop };
}
