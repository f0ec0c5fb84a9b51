// A small shop: manifests, real HTTP backends that count, clients that ask, and the real agent.
//
// It runs in a network namespace of its own, so addresses and ports are ours.
import { spawn, execFileSync, spawnSync } from 'node:child_process';
import { createServer, request, Agent } from 'node:http';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { until } from './harness.mjs';

const NODES = ['loom-a', 'loom-b', 'loom-c'];

function ip(...args) {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] });
}

/** Brings the namespace up. Where it already has links we are not in one of our own, and stop. */
export function prepareNetwork() {
  const links = JSON.parse(execFileSync('ip', ['-json', 'link', 'show'], { encoding: 'utf8' })).map((link) => link.ifname);
  const strange = links.filter((name) => !['lo', 'tunl0', 'sit0', 'ip6tnl0', 'gre0', 'gretap0', 'erspan0', 'ip_vti0', 'ip6_vti0', 'ip6gre0'].includes(name));
  if (strange.length) throw new Error(`run this in a network namespace of its own: there are ${strange.join(', ')}`);
  ip('link', 'set', 'lo', 'up');
  // The node's uplink, with nobody at its other end.
  ip('link', 'add', 'up0', 'type', 'veth', 'peer', 'name', 'up1');
  ip('address', 'add', '192.0.2.1/24', 'dev', 'up0');
  for (const name of ['up0', 'up1']) ip('link', 'set', name, 'up');
  ip('route', 'add', 'default', 'via', '192.0.2.254');
}

/** A real HTTP server that counts and can be told to fail. */
export class Backend {
  static async start(address, port, name) {
    const mine = new Backend();
    Object.assign(mine, { address, port, name, hits: 0, failShare: 0, seen: 0 });
    ip('address', 'add', `${address}/32`, 'dev', 'lo');
    mine.server = createServer((incoming, response) => {
      mine.hits += 1;
      mine.seen += mine.failShare;
      const fails = mine.seen >= 1;
      if (fails) mine.seen -= 1;
      const cacheable = incoming.url.startsWith('/cached');
      response.writeHead(fails ? 500 : 200, { 'Content-Type': 'text/plain', 'Cache-Control': cacheable ? 'public, max-age=600' : 'no-store' });
      response.end(`${name}\n`);
    });
    mine.server.keepAliveTimeout = 30_000;
    await new Promise((done, failed) => mine.server.once('error', failed).listen(port, address, done));
    return mine;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

export function service(namespace, name, clusterIp, { type = 'ClusterIP', port = 80, annotations = {}, more = '' } = {}) {
  return `apiVersion: v1
kind: Service
metadata:
  name: ${name}
  namespace: ${namespace}
  labels: { app: ${name}, team: ${namespace} }
  annotations: ${JSON.stringify(annotations)}
spec:
  type: ${type}
  clusterIP: ${clusterIp}
  ports: [{ name: http, port: ${port}, targetPort: 8080 }]
${more}---
`;
}

export function slice(namespace, name, endpoints, port = 8080) {
  const list = endpoints.map(({ address, node, ready = true, terminating = false }, i) => (
    `  - { addresses: [${address}], nodeName: ${NODES[node ?? i % 3]}, zone: ${(node ?? i) % 2 ? 'west' : 'east'}, conditions: { ready: ${ready}, serving: ${ready}, terminating: ${terminating} }, targetRef: { kind: Pod, name: ${name}-${i + 1} } }`
  )).join('\n');
  return `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: ${name}-1
  namespace: ${namespace}
  labels: { kubernetes.io/service-name: ${name} }
addressType: IPv4
ports: [{ name: http, port: ${port} }]
endpoints:
${list || '  []'}
---
`;
}

export function ingress(namespace, name, host, paths, { tls = null, annotations = {} } = {}) {
  const rules = paths.map(([path, target]) => (
    `          - { path: ${path}, pathType: Prefix, backend: { service: { name: ${target}, port: { name: http } } } }`
  )).join('\n');
  return `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: ${name}
  namespace: ${namespace}
  annotations: ${JSON.stringify(annotations)}
spec:
${tls ? `  tls: [{ hosts: [${host}], secretName: ${tls} }]\n` : ''}  rules:
    - host: ${host}
      http:
        paths:
${rules}
---
`;
}

export function nodes() {
  return NODES.map((name, i) => `apiVersion: v1
kind: Node
metadata:
  name: ${name}
  labels: { topology.kubernetes.io/zone: ${i % 2 ? 'west' : 'east'} }
spec: { podCIDR: 10.244.${i + 1}.0/24, podCIDRs: [10.244.${i + 1}.0/24] }
status: { addresses: [{ type: InternalIP, address: 192.0.2.${i + 1} }] }
---
`).join('');
}

/** A certificate of its own for a host, as a Secret. */
export function secret(namespace, name, host, days, organisation = 'Example Trust') {
  const place = mkdtempSync(join(tmpdir(), 'telaio-cert-'));
  const [key, cert] = [join(place, 'key.pem'), join(place, 'cert.pem')];
  try {
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', key, '-out', cert,
      '-days', String(days), '-subj', `/O=${organisation.replaceAll('/', '\\/')}/CN=${host}`, '-addext', `subjectAltName=DNS:${host}`], { stdio: ['ignore', 'ignore', 'pipe'] });
    const coded = (file) => readFileSync(file).toString('base64');
    return `apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: { name: ${name}, namespace: ${namespace} }\ndata:\n  tls.crt: ${coded(cert)}\n  tls.key: ${coded(key)}\n---\n`;
  } finally {
    rmSync(place, { recursive: true });
  }
}

/** Clients that keep asking, at a steady rate. */
export class Clients {
  constructor(port, asks, perSecond) {
    this.connections = new Agent({ keepAlive: true, maxSockets: 16 });
    this.answers = new Map();
    let turn = 0;
    this.timer = setInterval(() => {
      for (let i = 0; i < Math.max(1, Math.round(perSecond / 20)); i += 1) {
        const [host, path] = asks[turn % asks.length];
        turn += 1;
        this.ask(port, host, path);
      }
    }, 50);
  }

  ask(port, host, path) {
    const outgoing = request({ host: '127.0.0.1', port, path, agent: this.connections, headers: { Host: host } }, (response) => {
      this.answers.set(response.statusCode, (this.answers.get(response.statusCode) ?? 0) + 1);
      response.resume();
    });
    outgoing.on('error', () => this.answers.set(0, (this.answers.get(0) ?? 0) + 1));
    outgoing.end();
  }

  stop() {
    clearInterval(this.timer);
    this.connections.destroy();
  }
}

/** Nobody waits longer for one answer: who asks again and again would wait for ever. */
const ANSWER_MS_MAX = 10_000;

/** One request; its status and text. */
export function ask(port, host, path) {
  return new Promise((done, failed) => {
    const outgoing = request({ host: '127.0.0.1', port, path, agent: false, headers: { Host: host }, signal: AbortSignal.timeout(ANSWER_MS_MAX) }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (piece) => (text += piece)).on('end', () => done({ status: response.statusCode, text, headers: response.headers }));
    });
    outgoing.on('error', failed).end();
  });
}

/** The agent, on ports of its own. */
export class Telaio {
  constructor(binary, manifests, state, ports, extra = [], planes = 'services,ingress') {
    Object.assign(this, { binary, manifests, state, ports, extra, planes, source: `dir:${basename(manifests)}`, log: '' });
    mkdirSync(state, { recursive: true });
    const token = (name) => {
      const text = randomBytes(32).toString('hex');
      writeFileSync(join(state, name), text, { mode: 0o600 });
      return text;
    };
    this.token = token('test-admin.token');
    this.readToken = token('test-read.token');
  }

  get base() {
    return `http://127.0.0.1:${this.ports.admin}/`;
  }

  async start() {
    const { admin, http, https, metrics, healthz } = this.ports;
    this.child = spawn(this.binary, [
      'run', '--source', this.source, '--node', 'loom-a', '--planes', this.planes, '--state-dir', this.state,
      '--cni-bin-dir', join(basename(this.state), 'cni-bin'), '--cni-conf-dir', join(basename(this.state), 'cni-conf'),
      '--http-listen', `127.0.0.1:${http}`, '--https-listen', `127.0.0.1:${https}`, '--admin-listen', `127.0.0.1:${admin}`,
      '--metrics-bind-address', `127.0.0.1:${metrics}`, '--healthz-bind-address', `127.0.0.1:${healthz}`,
      '--admin-token-file', join(this.state, 'test-admin.token'), '--admin-read-token-file', join(this.state, 'test-read.token'),
      '--admin-ended-grace', '1s', ...this.extra,
      // Beside its files, so that pictures show no path of this machine.
    ], { stdio: ['ignore', 'pipe', 'pipe'], cwd: dirname(this.manifests) });
    const keep = (piece) => {
      this.log = (this.log + piece).slice(-200_000);
    };
    this.child.stdout.setEncoding('utf8').on('data', keep);
    this.child.stderr.setEncoding('utf8').on('data', keep);
    this.ended = new Promise((done) => this.child.once('exit', done));
    await until('the agent is healthy', async () => {
      if (this.child.exitCode != null) throw new Error(`the agent ended:\n${this.log.slice(-4000)}`);
      return (await fetch(`http://127.0.0.1:${healthz}/healthz`)).ok;
    }).catch((error) => {
      throw new Error(`${error.message}\n${this.log.slice(-4000)}`);
    });
  }

  async stop(signal = 'SIGTERM') {
    this.child.kill(signal);
    await this.ended;
  }
}

/** An instance: a process in a network namespace of its own, attached by the plugin that the agent installed. */
export class Instance {
  static async start(telaio, id, published) {
    const mine = new Instance();
    const serve = `require('node:http').createServer((i, o) => o.end('${id}')).listen(8080, '0.0.0.0')`;
    mine.child = spawn('unshare', ['--net', process.execPath, '-e', serve], { stdio: 'ignore' });
    Object.assign(mine, { telaio, id, published });
    const own = readlinkSync('/proc/self/ns/net');
    await until('the instance has a namespace', () => readlinkSync(`/proc/${mine.child.pid}/ns/net`) !== own);
    mine.address = mine.call('ADD').ips[0].address.split('/')[0];
    return mine;
  }

  /** Calls the plugin as a container runtime does. */
  call(command) {
    const list = JSON.parse(readFileSync(join(this.telaio.state, 'cni-conf/05-telaio.conflist'), 'utf8'));
    const config = { ...list.plugins[0], cniVersion: list.cniVersion, name: list.name };
    config.runtimeConfig = { portMappings: [{ hostPort: this.published, containerPort: 8080, protocol: 'tcp' }] };
    const done = spawnSync(join(this.telaio.state, 'cni-bin/telaio-cni'), {
      input: JSON.stringify(config),
      encoding: 'utf8',
      env: {
        CNI_COMMAND: command, CNI_CONTAINERID: this.id, CNI_NETNS: `/proc/${this.child.pid}/ns/net`, CNI_IFNAME: 'eth0', CNI_PATH: '/opt/cni/bin',
        CNI_ARGS: `IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=${this.id}`,
      },
    });
    if (done.status !== 0) throw new Error(`${command} ${this.id}: ${done.error ?? ''} ${done.stdout}${done.stderr}`);
    return done.stdout ? JSON.parse(done.stdout) : null;
  }

  stop() {
    try {
      this.call('DEL');
    } finally {
      this.child.kill('SIGKILL');
    }
  }
}

/** Writes manifests, each file at once, as `mv` does. */
export function put(directory, file, text) {
  const place = join(directory, file);
  writeFileSync(`${place}.new~`, text);
  execFileSync('mv', [`${place}.new~`, place]);
}
