// A stand-in for the agent, to work on the page without one: `npm run mock`, then open what it prints.
// It speaks /api/v1 with made-up figures. Tests use the real agent.
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

const DIST = fileURLToPath(new URL('../dist/', import.meta.url));
const TOKEN = process.env.TOKEN ?? 'mock';
const PORT = Number(process.env.PORT ?? 5199);
const MANY = Number(process.env.SERVICES ?? 0);
const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2', '.txt': 'text/plain' };

const started = Date.now() - 3 * 3600e3;
const t = () => Date.now();
const wave = (phase, at = t()) => 1 + 0.35 * Math.sin(at / 40_000 + phase) + 0.12 * Math.sin(at / 6_000 + phase * 3);
const counters = (rate, share, p99) => ({
  requests: Math.round(rate * 9000), errors: Math.round(rate * 9000 * share), rate, error_rate: rate * share,
  active: Math.round(rate / 30), p50_ms: p99 / 5, p99_ms: p99, cache_hit_share: null,
});
const NODES = ['loom-a', 'loom-b', 'loom-c'];
/** What people have decided already when the mock starts. */
const decidedAt = Date.now();
const decision = (namespace, name, action, more) => ({
  namespace, name, action, service: null, target: null, weight: null, ingress: null, host: null, path: null, summary: name, by: 'ana@example.com', reason: 'new disk', since_ms: decidedAt - 6e5, until_ms: decidedAt + 54 * 6e4, managed: true, touches: 1, ...more,
});
const overrides = new Map([
  [1, decision('shop', 'set-orders-1', 'drain', { service: { namespace: 'shop', name: 'orders' }, target: { address: '10.244.3.22' }, summary: 'drain 10.244.3.22 of service shop/orders' })],
  [2, decision('search', 'weight-index', 'weight', { service: { namespace: 'search', name: 'index' }, target: { address: '10.244.1.50' }, weight: 5, managed: false, until_ms: null, summary: 'weight 5 for 10.244.1.50 of service search/index' })],
  [3, decision('staging', 'pause-staging', 'pause', { ingress: { namespace: 'staging', name: 'staging' }, by: 'ben', reason: 'migration', summary: 'pause Ingress staging/staging' })],
]);
let audit = [];
let nextId = 4;

function services() {
  const base = [
    ['shop', 'frontend', 420, 0.001, 4, 8080], ['shop', 'orders', 130, 0.034, 3, 8080], ['shop', 'payments', 38, 0, 2, 8080], ['shop', 'catalog', 260, 0, 5, 8080],
    ['search', 'index', 90, 0.002, 12, 8080], ['staging', 'frontend', 3.2, 0, 1, 8080], ['shop', 'mail', null, 0, 0, 25], ['staging', 'orders', 1.1, 0, 1, 8080],
    ['kube-system', 'kube-dns', null, 0, 2, 53], ['monitoring', 'grafana', 4.5, 0, 1, 3000], ['monitoring', 'prometheus', null, 0, 1, 9090],
  ];
  for (let i = 0; i < MANY; i++) base.push([`team-${i % 24}`, `svc-${String(i).padStart(4, '0')}`, i % 9 ? null : (i % 70) / 2, i % 63 ? 0 : 0.05, (i % 4) + 1, 8080]);
  return base.map(([namespace, name, rate, share, n, port], s) => {
    const items = Array.from({ length: n }, (_, i) => {
      const address = `10.244.${1 + (i % 3)}.${(10 + s * 10 + i) % 250}`;
      const o = [...overrides.values()].find((one) => one.service?.name === name && one.service.namespace === namespace && one.target?.address === address);
      const drained = o?.action === 'drain';
      const ready = !(name === 'payments' && i === 1);
      return {
        address, ports: [{ name: 'http', port, internal: true, external: true }], pod: `${name}-6f7d9c-${(s * 7 + i * 13).toString(36)}x`, node: NODES[i % 3], zone: `eu-${i % 2 ? 'b' : 'a'}`,
        local: i % 3 === 0, ready, serving: ready, terminating: name === 'catalog' && i === 4, weight: drained ? 0 : (o?.weight ?? 1), drained, added: false, removed: false,
        used: ready && !drained, overrides: o ? [`${o.namespace}/${o.name}`] : [], counters: rate == null ? null : counters(ready && !drained ? (rate / n) * wave(i + s) : 0, share, 40 + 30 * i), connections: { open: ready ? 3 * i + s : 0, other: 0 },
      };
    });
    const ready = items.filter((e) => e.ready).length;
    const mine = items.some((e) => e.overrides.length);
    return {
      namespace, name, type: name === 'frontend' ? 'LoadBalancer' : name === 'grafana' ? 'NodePort' : 'ClusterIP', headless: false,
      cluster_ips: [`10.96.${s >> 8}.${(10 + s) % 256}`], external_ips: [], load_balancer_ips: name === 'frontend' ? ['203.0.113.10'] : [],
      ports: [{ name: 'http', protocol: name === 'kube-dns' ? 'UDP' : 'TCP', port: port === 8080 ? 80 : port, node_port: name === 'grafana' ? 31300 : null, target: String(port), app_protocol: null }],
      endpoints: { total: n, ready, terminating: items.filter((e) => e.terminating).length, drained: items.filter((e) => e.drained).length, local: items.filter((e) => e.local).length, used: items.filter((e) => e.used).length },
      state: n === 0 ? 'error' : ready < n ? 'warning' : 'ok', state_text: n === 0 ? 'nobody serves it' : ready < n ? `${n - ready} of ${n} endpoints are not ready` : items.some((e) => e.drained) ? '1 drained' : '', overridden: mine,
      counters: rate == null ? null : counters(rate * wave(s), share, 120), connections: { open: 7 * s, other: s }, connections_reason: null,
      internal_traffic_policy: 'Cluster', external_traffic_policy: name === 'frontend' ? 'Local' : 'Cluster', session_affinity_s: name === 'payments' ? 10800 : null, source_ranges: [],
      health_check_node_port: name === 'frontend' ? 30911 : null, external_name: null, labels: { app: name, team: 'shop' }, annotations: { 'example.com/owner': '<img src=x onerror=alert(1)> "shop"' },
      backend: 'nftables', endpoint_items: items, overrides: [...overrides.values()].filter((o) => o.service?.name === name && o.service.namespace === namespace), routes: routesOf(namespace, name),
    };
  });
}
const ROUTES = [
  ['shop.example.com', '/', 'shop', 'frontend', ['tls redirect', 'cache', 'compression']], ['shop.example.com', '/api/orders', 'shop', 'orders', ['rate limit']],
  ['shop.example.com', '/api/pay', 'shop', 'payments', []], ['shop.example.com', '/catalog', 'shop', 'catalog', ['cache']], ['search.example.com', '/', 'search', 'index', []],
  ['staging.example.com', '/', 'staging', 'frontend', ['basic auth']], ['staging.example.com', '/api', 'staging', 'orders', []], ['grafana.example.com', '/', 'monitoring', 'grafana', ['basic auth']], ['mail.example.com', '/', 'shop', 'mail', []],
];
const routesOf = (ns, name) => ROUTES.flatMap((r, i) => (r[2] === ns && r[3] === name ? [`r${i}`] : []));
function routes() {
  const all = services();
  return ROUTES.map(([host, path, ns, name, features], i) => {
    const s = all.find((one) => one.namespace === ns && one.name === name);
    return {
      id: `r${i}`, ingress: { namespace: ns, name: host.split('.')[0] }, host, path, path_type: 'prefix', matches: path === '/api/pay' ? ['method POST', 'header X-Shop: eu'] : [], action: 'forward', action_text: '',
      backends: [{ service: { namespace: ns, name }, port: 'http', weight: 1, ready: s.endpoints.ready, total: s.endpoints.total, canary: false }], features,
      warnings: s.endpoints.total ? [] : [{ reason: 'NoEndpoints', message: 'Nobody serves shop/mail: requests get 503.' }], certificate: host.startsWith('mail') ? null : `${ns}/${host.split('.')[0]}-tls`,
      state: s.endpoints.total ? 'ok' : 'error', paused: [...overrides.values()].find((o) => o.ingress?.name === host.split('.')[0]) ?? null, counters: s.counters && { ...s.counters, cache_hit_share: features.includes('cache') ? 0.83 : null },
    };
  });
}
const CERTS = [['shop/shop-tls', 'shop.example.com', 61], ['search/search-tls', 'search.example.com', 9], ['staging/staging-tls', 'staging.example.com', -2], ['monitoring/grafana-tls', 'grafana.example.com', 84]];
const certificates = () => CERTS.map(([id, host, days]) => ({
  id, hosts: [host], names: [host, `*.${host}`], issuer: "CN=R11, O=Let's Encrypt", not_before_ms: t() - 30 * 864e5, not_after_ms: t() + days * 864e5, expires_in_s: days * 86400,
  state: days < 0 ? 'error' : days < 30 ? 'warning' : 'ok', state_text: days < 0 ? 'it has ended' : days < 30 ? 'ends soon' : '', default: id === 'shop/shop-tls',
}));
function map(q) {
  let all = services();
  if (q.get('namespace')) all = all.filter((s) => s.namespace === q.get('namespace'));
  if (q.get('q')) all = all.filter((s) => `${s.namespace}/${s.name}`.includes(q.get('q')));
  const limit = Number(q.get('limit') ?? 200);
  const fold = q.get('collapse') === 'namespace' || (q.get('collapse') !== 'none' && all.length > limit);
  const total = all.length;
  all = fold ? all : all.slice(0, limit);
  const vertices = new Map();
  const edges = new Map();
  const vertex = (id, kind, label, namespace, state, note, c, overridden = false) => {
    const had = vertices.get(id);
    if (!had) vertices.set(id, { id, kind, label, namespace, state, note, overridden, rate: c ? c.rate : null, error_rate: c ? c.error_rate : null });
    else if (c) { had.rate = (had.rate ?? 0) + c.rate; had.error_rate = (had.error_rate ?? 0) + c.error_rate; }
  };
  const edge = (from, to, c, closed = false) => {
    const key = `${from}>${to}`;
    const had = edges.get(key);
    if (!had) edges.set(key, { from, to, rate: c?.rate ?? null, error_rate: c?.error_rate ?? null, closed });
    else if (c) { had.rate = (had.rate ?? 0) + c.rate; had.error_rate += c.error_rate; }
  };
  for (const r of routes()) {
    const s = all.find((one) => one.namespace === r.backends[0].service.namespace && one.name === r.backends[0].service.name);
    if (!s) continue;
    const target = fold ? `namespace:${s.namespace}` : `service:${s.namespace}/${s.name}`;
    vertex(`host:${r.host}`, 'host', r.host, null, 'ok', '', r.counters);
    vertex(`route:${r.id}`, 'route', r.path, s.namespace, r.state, '', r.counters);
    edge(`host:${r.host}`, `route:${r.id}`, r.counters);
    edge(`route:${r.id}`, target, r.counters);
  }
  for (const s of all) {
    const id = fold ? `namespace:${s.namespace}` : `service:${s.namespace}/${s.name}`;
    vertex(id, fold ? 'namespace' : 'service', fold ? s.namespace : s.name, s.namespace, s.state === 'ok' && !s.counters ? 'idle' : s.state, fold ? `${all.filter((o) => o.namespace === s.namespace).length} services` : `${s.endpoints.ready}/${s.endpoints.total} ready`, s.counters, s.overridden);
    for (const e of s.endpoint_items) {
      const at = `endpoint:${s.namespace}/${s.name}/${e.address}`;
      vertex(`node:${e.node}`, 'node', e.node, null, 'ok', '', e.counters);
      if (fold) { edge(id, `node:${e.node}`, e.counters); continue; }
      vertex(at, 'endpoint', e.address, s.namespace, e.drained ? 'warning' : e.ready ? 'ok' : 'error', e.drained ? 'drained' : e.ready ? '' : 'not ready', e.counters, e.overrides.length > 0);
      edge(id, at, e.counters, !e.used);
      edge(at, `node:${e.node}`, e.counters, !e.used);
    }
  }
  return { at_ms: t(), vertices: [...vertices.values()], edges: [...edges.values()], services_total: total, services_shown: all.length };
}
const sample = (at = t()) => ({
  at_ms: at, rate: 950 * wave(0, at), error_rate: 6 * wave(2, at), p50_ms: 4.2 * wave(1, at), p90_ms: 18 * wave(2, at), p99_ms: 74 * wave(4, at), connections: Math.round(310 * wave(5, at)), active: Math.round(12 * wave(3, at)),
  cache_hit_share: 0.8, sync_rate: Math.max(0, wave(9, at) - 1), sync_failures: 0, change_rate: Math.max(0, 3 * (wave(9, at) - 1)), drift_repairs: 0, source_age_s: 0.4, healthy: true,
});
function overview() {
  const all = services();
  const now = sample();
  return {
    at_ms: t(), version: '0.1.0', command: 'run', pid: 4711, node: 'loom-a', started_ms: started, uptime_s: (t() - started) / 1000, healthy: true,
    planes: [{ name: 'source', state: 'ok', summary: 'Reads dir:/etc/telaio/manifests' }, { name: 'services', state: 'ok', summary: `nftables, ${all.length} services, last sync 3 s ago` }, { name: 'ingress', state: 'warning', summary: '9 routes on :80 and :443, 1 warning' }],
    source: { spec: 'dir:/etc/telaio/manifests', kind: 'dir', connected: true, synced: true, age_s: 0.6, revision: 4821, problem_count: 0, problems: [] },
    counts: { services: all.length, services_without_endpoints: 1, endpoints: 33, endpoints_ready: 32, routes: 9, certificates: 4, certificates_expiring: 2, instances: 14, nodes: 3, overrides: overrides.size, warnings: 1 },
    syncs: [{ plane: 'services', backend: 'nftables', syncs: 412, failures: 0, changes: 1893, drift_repairs: 2, last_age_s: 3.1, pending_age_s: null, duration_p50_ms: 0.8, duration_p99_ms: 4.2, programming_p50_ms: 12, programming_p99_ms: 31, last_error: null }],
    traffic: { ...now, requests: 8_412_331, errors: 21_034, classes: [0, 8_200_000, 150_000, 41_297, 21_034], cache: { hits: 2_100_400, misses: 512_331, hit_share: 0.804, entries: 18_233, bytes: 312e6 }, worker_restarts: 0 },
    attention: [
      { state: 'error', kind: 'certificate', object: { namespace: 'staging', name: 'staging-tls' }, message: 'ended 2 days ago: clients of staging.example.com are refused. Renew it.' },
      { state: 'error', kind: 'service', object: { namespace: 'shop', name: 'mail' }, message: 'has no endpoints: connections are refused.' },
      { state: 'warning', kind: 'service', object: { namespace: 'shop', name: 'orders' }, message: '1 of 3 endpoints is not ready; 3.4 % of its answers are errors.' },
      { state: 'warning', kind: 'certificate', object: { namespace: 'shop', name: 'search-tls' }, message: 'ends in 9 days.' },
    ],
  };
}
const events = Array.from({ length: 60 }, (_, i) => ({
  id: 60 - i, at_ms: t() - i * 47_000, revision: 4821 - i, kind: ['Endpoints', 'Service', 'Ingress', 'Override'][i % 4], object: { namespace: 'shop', name: ['orders', 'frontend', 'shop', 'drain-orders'][i % 4] },
  change: ['changed', 'added', 'changed', 'removed'][i % 4], summary: ['10.244.2.17 is ready', 'ClusterIP 10.96.0.14, 1 port', '2 paths, 1 certificate', 'ended by itself'][i % 4], programmed_ms: i % 4 === 2 ? null : 6 + (i * 7) % 23, programs: i % 4 !== 2,
}));
const page = (items, q) => {
  const offset = Number(q?.get('offset') ?? 0);
  const limit = Number(q?.get('limit') ?? 100);
  const part = items.slice(offset, offset + limit);
  return { items: part, total: items.length, offset, next: offset + limit < items.length ? offset + limit : null, at_ms: t() };
};
const INSTANCES = Array.from({ length: 6 }, (_, i) => ({ id: `${(i * 99_991).toString(16).padStart(12, 'c')}f00d`, pod: { namespace: 'shop', name: `frontend-6f7d9c-${i}` }, network: 'pods', interface: 'eth0', addresses: [`10.244.1.${10 + i}`], ports: i ? [] : ['80/tcp → 8080'], services: [{ namespace: 'shop', name: 'frontend' }] }));
const READS = {
  whoami: () => ({ role: 'admin', name: 'admin', read_only_because: null }), overview, certificates: (q) => page(certificates(), q), services: (q) => page(services(), q), routes: (q) => page(routes(), q), map,
  history: () => ({ started_ms: started, tick_s: 1, long_tick_s: 30, recent: Array.from({ length: 300 }, (_, i) => sample(t() - (300 - i) * 1000)), long: Array.from({ length: 360 }, (_, i) => sample(t() - (360 - i) * 30_000)) }),
  events: () => ({ items: events, next_before: null, oldest_id: 1, newest_id: 60 }), overrides: (q) => page([...overrides.values()], q), audit: (q) => page(audit, q),
  nodes: (q) => page(NODES.map((name, i) => ({ name, own: i === 0, addresses: [`192.0.2.${i + 1}`], pod_cidrs: [`10.244.${i + 1}.0/24`], zone: `eu-${i % 2 ? 'b' : 'a'}`, leaving: false, endpoints: 11 })), q),
  pods: () => ({ enabled: true, networks: 1, instances: 6, peers: 2, policies: 3, cni: 'installed', problems: [], tunnel: { name: 'tl-vxlan', kind: 'vxlan', vni: 1009, port: 4789, address: '192.0.2.1', mtu: 1450, mac: '02:5a:11:0c:7e:01', up: true, state: 'ok', state_text: '' } }), networks: (q) => page([{ name: 'pods', bridge: 'tl-pods', subnets: ['10.244.1.0/24'], instances: 6 }], q),
  instances: (q) => page(INSTANCES, q), peers: (q) => page(NODES.slice(1).map((node, i) => ({ node, addresses: [`192.0.2.${i + 2}`], subnets: [`10.244.${i + 2}.0/24`], mode: 'vxlan', public_addresses: [`192.0.2.${i + 2}`], tunnel_mac: `02:5a:11:0c:7e:0${i + 2}`, state: i ? 'error' : 'ok', state_text: i ? 'its route is missing in the kernel' : '' })), q),
  trace: (q) => (q.get('url')
    ? { kind: 'url', verdict: 'forward', summary: `Goes to shop/orders, to one of 2 endpoints.`, steps: [{ text: 'listener :443, SNI shop.example.com, certificate shop/shop-tls', decides: false }, { text: 'host shop.example.com', decides: false }, { text: 'path prefix /api/orders (Ingress shop/shop)', decides: true }, { text: 'rate limit 50/s by client', decides: false }, { text: 'backend shop/orders:http, round robin', decides: false }], endpoints: ['10.244.1.15:8080', '10.244.2.16:8080'], draining: ['10.244.3.17:8080'], masquerade: false, route: 'shop/shop', status: null, location: null, rewritten: null, warnings: [], command: `telaio trace --url ${q.get('url')}` }
    : { kind: 'packet', verdict: 'dnat', summary: 'Goes to one of 2 endpoints of shop/orders.', steps: [{ text: 'chain prerouting', decides: false }, { text: 'map service-ips 10.96.0.11 . tcp . 80 → way 17', decides: true }, { text: 'chain spread-2', decides: false }], endpoints: ['10.244.1.15:8080', '10.244.2.16:8080'], draining: [], masquerade: true, route: null, status: null, location: null, rewritten: null, warnings: [], command: `telaio trace --from ${q.get('from')} --to ${q.get('to')}` }),
};
function act(request) {
  const { action } = request;
  const what = action.target?.address ?? action.kind;
  const summary = action.kind === 'undrain' || action.kind === 'remove_override' ? `Takes back what was decided about ${what}` : `${action.kind} ${what} of ${action.service?.namespace}/${action.service?.name}`;
  const result = { dry_run: request.dry_run, summary, touches: [{ kind: 'endpoint', object: `${action.service?.name} ${what}`, before: 'weight 1', after: 'drained' }], touches_total: 1, warnings: [], id: null, undoable: true, until_ms: null, override: null, purged: null };
  if (request.dry_run) return result;
  const id = `kf4m-${nextId++}`;
  if (action.kind === 'drain' || action.kind === 'weight') overrides.set(id, { namespace: action.service.namespace, name: `ui-${id}`, action: action.kind, service: action.service, target: action.target, weight: action.weight ?? null, ingress: null, host: null, path: null, summary, by: 'admin', reason: request.reason, since_ms: t(), until_ms: request.for_s ? t() + request.for_s * 1000 : null, managed: true, touches: 1 });
  if (action.kind === 'undrain') for (const [key, o] of overrides) if (o.target?.address === action.target.address) overrides.delete(key);
  if (action.kind === 'remove_override') for (const [key, o] of overrides) if (o.name === action.name.name) overrides.delete(key);
  audit = [{ id, at_ms: t(), who: 'admin', role: 'admin', from: '127.0.0.1', action, summary, reason: request.reason, until_ms: null, outcome: 'done', error: null, undoes: null, undone_by: null, undoable: true }, ...audit];
  tell('override', { count: overrides.size });
  return { ...result, id };
}
const streams = new Set();
function tell(event, data) {
  for (const stream of streams) stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}
setInterval(() => tell('sample', sample()), 1000);

createServer(async (request, response) => {
  const url = new URL(request.url, 'http://x');
  response.setHeader('Content-Security-Policy', CSP);
  if (!url.pathname.startsWith('/api/v1/')) {
    const path = normalize(url.pathname === '/' ? '/index.html' : url.pathname);
    try {
      const body = await readFile(join(DIST, path));
      response.writeHead(200, { 'Content-Type': TYPES[extname(path)] ?? 'application/octet-stream' }).end(body);
    } catch {
      response.writeHead(404).end();
    }
    return;
  }
  const json = (status, body) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  if (request.headers.authorization !== `Bearer ${TOKEN}`) return json(401, { code: 'unauthorized', message: 'The token is not known.' });
  const path = url.pathname.slice('/api/v1/'.length);
  if (path === 'events/stream') {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write(`event: hello\ndata: ${JSON.stringify({ at_ms: t(), role: 'admin', tick_s: 1, newest_id: 60 })}\n\n`);
    streams.add(response);
    request.on('close', () => streams.delete(response));
    return;
  }
  let body = '';
  for await (const piece of request) body += piece;
  if (path === 'actions') return json(200, act(JSON.parse(body)));
  const undo = /^actions\/([\w-]+)\/undo$/.exec(path);
  if (undo) {
    const dry = JSON.parse(body || '{}').dry_run ?? false;
    if (!dry) overrides.delete(undo[1]);
    tell('override', { count: overrides.size });
    return json(200, { dry_run: dry, summary: `Undid #${undo[1]}`, touches: [], touches_total: 0, warnings: [], id: `kf4m-${nextId++}`, undoable: false, until_ms: null, override: null, purged: null });
  }
  const [, namespace, name, rules] = /^services\/([^/]+)\/([^/]+)(\/rules)?$/.exec(path) ?? [];
  if (rules) return json(200, { service: { namespace, name }, backend: 'nftables', origin: 'kernel', text: 'table ip telaio {\n\tmap service-ips {\n\t\telements = { 10.96.0.11 . tcp . 80 : 17 }\n\t}\n}\n', notes: ['Chains that all services share are left out.'] });
  if (name) {
    const found = services().find((s) => s.namespace === namespace && s.name === name);
    return found ? json(200, found) : json(404, { code: 'not_found', message: `There is no service ${namespace}/${name}.` });
  }
  return READS[path] ? json(200, READS[path](url.searchParams)) : json(404, { code: 'not_found', message: path });
}).listen(PORT, '127.0.0.1', () => console.log(`http://127.0.0.1:${PORT}/ token: ${TOKEN}`));
