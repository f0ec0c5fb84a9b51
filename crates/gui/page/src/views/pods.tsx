// The pods plane: networks, instances, and how other nodes are reached.
import { useState } from 'preact/hooks';
import { text } from '../asks';
import { count, plural } from '../format';
import { to } from '../route';
import { Live } from '../ui/live';
import { Asking, Badge, Card, Empty, Search, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { InstanceItem, NetworkItem, NodeItem, Page, PeerItem, PodsSummary, Tunnel } from '../types';
import { StateBadge, Why } from './state';

const codes = (texts: string[]) => (texts.length ? <code class="break">{texts.join(', ')}</code> : <span class="faint">–</span>);

const INSTANCES: Column<InstanceItem>[] = [
  { key: 'id', head: 'Instance', by: (i) => (i.pod ? text(i.pod) : i.id), cell: (i) => <span class="two-lines">{i.pod ? <span>{text(i.pod)}</span> : null}<code class="small faint weak">{i.id.length > 20 ? `${i.id.slice(0, 12)}…` : i.id}</code></span> },
  { key: 'network', head: 'Network', by: (i) => i.network, cell: (i) => <>{i.network} <span class="faint">{i.interface}</span></> },
  { key: 'addresses', head: 'Addresses', by: (i) => i.addresses[0] ?? '', cell: (i) => codes(i.addresses) },
  { key: 'ports', head: 'Published ports', cell: (i) => codes(i.ports) },
  { key: 'services', head: 'Serves', cell: (i) => (i.services.length ? <span class="row tight">{i.services.map((s) => <a key={text(s)} href={to('services', [s.namespace, s.name])}>{s.name}</a>)}</span> : <span class="faint">–</span>) },
];

const NETWORKS: Column<NetworkItem>[] = [
  { key: 'name', head: 'Network', cell: (n) => n.name },
  { key: 'bridge', head: 'Bridge', cell: (n) => <code>{n.bridge}</code> },
  { key: 'subnets', head: 'Addresses', cell: (n) => codes(n.subnets), class: 'broad' },
  { key: 'instances', head: 'Instances', cell: (n) => count(n.instances) },
];

const PEERS: Column<PeerItem>[] = [
  { key: 'node', head: 'Node', by: (p) => p.node, cell: (p) => p.node },
  { key: 'state', head: 'State', cell: (p) => p.state && <Why state={p.state} text={p.state_text ?? ''} />, has: (p) => p.state != null },
  {
    key: 'addresses',
    head: 'Addresses',
    cell: (p) => {
      const reached = p.public_addresses ?? [];
      const others = p.addresses.filter((one) => !reached.includes(one));
      return reached.length ? <span class="two-lines">{codes(reached)}{others.length > 0 && <span class="small faint weak">also {codes(others)}</span>}</span> : codes(p.addresses);
    },
  },
  { key: 'subnets', head: 'Pod networks', cell: (p) => codes(p.subnets) },
  {
    key: 'mode',
    head: 'Reached by',
    cell: (p) => (
      <span class="two-lines">
        {p.mode ? <Badge tone="info" icon="none">{p.mode}</Badge> : <span class="faint">not known</span>}
        {p.tunnel_mac && <code class="small faint">{p.tunnel_mac}</code>}
      </span>
    ),
  },
];

/** The link by which instances of other nodes are reached. */
function TunnelFacts({ tunnel }: { tunnel: Tunnel }) {
  const facts: [string, string][] = [
    ['Link', `${tunnel.name}, ${tunnel.kind} ${tunnel.vni}`],
    ['Port', `${tunnel.port}/udp`],
    ['Address of this node', tunnel.address ?? 'not known'],
    ['Hardware address', tunnel.mac ?? '–'],
    ['Longest packet', tunnel.mtu == null ? '–' : `${count(tunnel.mtu)} bytes`],
  ];
  return (
    <Card title="Tunnel" ruled tools={<StateBadge state={tunnel.state} />}>
      {tunnel.state_text && <p class="break tunnel-why">{tunnel.state_text}</p>}
      <dl class="fact-grid tunnel">
        {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd><code>{value}</code></dd></div>)}
      </dl>
    </Card>
  );
}

const NODES: Column<NodeItem>[] = [
  { key: 'name', head: 'Node', by: (n) => n.name, cell: (n) => <span class="row tight">{n.name}{n.own && <Badge tone="info" icon="none">this node</Badge>}{n.leaving && <Badge tone="warn">leaving</Badge>}</span> },
  { key: 'zone', head: 'Zone', by: (n) => n.zone ?? '', cell: (n) => n.zone ?? <span class="faint">–</span> },
  { key: 'addresses', head: 'Addresses', cell: (n) => codes(n.addresses) },
  { key: 'cidrs', head: 'Pod networks', cell: (n) => codes(n.pod_cidrs) },
  { key: 'endpoints', head: 'Endpoints', by: (n) => n.endpoints, cell: (n) => count(n.endpoints) },
];

export function PodsView() {
  const [q, setQ] = useState('');
  const summary = useAsked<PodsSummary>('pods');
  const on = summary.value?.enabled ?? false;
  const networks = useAsked<Page<NetworkItem>>(on ? 'networks' : null, {}, { paged: true });
  const instances = useAsked<Page<InstanceItem>>(on ? 'instances' : null, { q }, { paged: true });
  const peers = useAsked<Page<PeerItem>>(on ? 'peers' : null, {}, { paged: true });
  const nodes = useAsked<Page<NodeItem>>('nodes', {}, { paged: true, still: true });
  const seen = summary.value;
  return (
    <div class="view aligned">
      <ViewHead title="Pods" about={seen && (seen.enabled ? `${plural(seen.instances, 'instance')} in ${plural(seen.networks, 'network')}, ${plural(seen.policies, 'network policy', 'network policies')}${seen.cni ? ` · ${seen.cni}` : ''}` : 'Instance networks of this node')}>
        <Live />
      </ViewHead>
      <Asking asked={summary} card />
      {seen && !seen.enabled && (
        <Card flush><Empty icon="pods" title="The pods plane does not run here"><p>Start the agent with <code>--planes services,pods</code> and it gives instances their networks, addresses and published ports.</p></Empty></Card>
      )}
      {seen?.problems.map((problem) => <div key={problem} class="banner warn" role="status">{problem}</div>)}
      {on && (
        <>
          <Card title="Instances on this node" flush tools={<Search label="Search instances" value={q} onInput={setQ} />}>
            <List asked={instances} columns={INSTANCES} label="Instances" id={(i) => i.id + i.network + i.interface} none="No instance hangs on a network of this node" />
          </Card>
          <Card title="Peers" flush><List asked={peers} columns={PEERS} label="Peers" id={(p) => p.node} none="No other node" /></Card>
          {seen?.tunnel && <TunnelFacts tunnel={seen.tunnel} />}
          <Card title="Networks" flush><List asked={networks} columns={NETWORKS} label="Networks" id={(n) => n.name} none="No networks yet" /></Card>
        </>
      )}
      <Card title="Nodes of the cluster" flush><List asked={nodes} columns={NODES} label="Nodes" id={(n) => n.name} none="The source names no nodes" /></Card>
    </div>
  );
}

function List<T>({ asked, columns, label, id, none }: { asked: { value: Page<T> | null; error: string | null; again: () => void }; columns: Column<T>[]; label: string; id: (row: T) => string; none: string }) {
  return (
    <>
      <Asking asked={asked} lines={4} />
      {asked.value && (asked.value.items.length ? <Table label={label} columns={columns} rows={asked.value.items} id={id} /> : <Empty icon="dot" title={none} />)}
    </>
  );
}
