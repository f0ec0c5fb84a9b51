// All services of the node's view.
import { useMemo } from 'preact/hooks';
import { Live } from '../ui/live';
import { count, plural } from '../format';
import { amend, place, to } from '../route';
import { Asking, Card, Choice, Empty, Search, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { Page, Port, ServiceItem } from '../types';
import { about, Marks } from './decided';
import { Errors, millis, Open, Rate, share, sortOpen, sortRate, StateBadge, Why } from './state';

type Filter = 'all' | 'attention' | 'overridden';

export function portText(port: Port): string {
  const proto = port.protocol === 'TCP' ? '' : `/${port.protocol.toLowerCase()}`;
  return `${port.port}${proto}${port.node_port ? `:${port.node_port}` : ''}`;
}

function few(texts: string[], max = 2): string {
  return texts.length <= max ? texts.join(', ') : `${texts.slice(0, max).join(', ')} +${texts.length - max}`;
}

/** The first address, and below it the next or how many more there are: so all rows are of two lines at most. */
function Addresses({ all: [first, ...more] }: { all: string[] }) {
  if (!first) return <span class="faint">–</span>;
  if (!more.length) return <code>{first}</code>;
  return <span class="two-lines"><code>{first}</code><code class="small faint">{more.length === 1 ? more[0] : `and ${more.length} more`}</code></span>;
}

/** How a service is; what people decided about it says more than how many endpoints that touches. */
function Condition({ service: s }: { service: ServiceItem }) {
  const decisions = s.overridden ? about(s) : [];
  if (!decisions.length) return <Why state={s.state} text={s.state_text} />;
  return (
    <span class="two-lines">
      <StateBadge state={s.state} />
      <Marks items={decisions} short />
    </span>
  );
}

const COLUMNS: Column<ServiceItem>[] = [
  {
    key: 'name',
    head: 'Service',
    by: (s) => `${s.namespace}/${s.name}`,
    cell: (s) => (
      <a href={to('services', [s.namespace, s.name])}><span class="faint weak">{s.namespace}/</span>{s.name}</a>
    ),
    class: 'name',
  },
  { key: 'state', head: 'State', by: (s) => ['error', 'warning', 'ok', 'idle'].indexOf(s.state), cell: (s) => <Condition service={s} />, class: 'state' },
  { key: 'type', head: 'Type', by: (s) => s.type, cell: (s) => (s.headless ? 'Headless' : s.type) },
  { key: 'ip', head: 'Addresses', by: (s) => s.cluster_ips[0] ?? '', cell: (s) => <Addresses all={[...s.cluster_ips, ...s.load_balancer_ips, ...s.external_ips]} />, class: 'nowrap' },
  { key: 'ports', head: 'Ports', cell: (s) => <code>{few(s.ports.map(portText), 3) || '–'}</code> },
  {
    key: 'endpoints',
    head: 'In use',
    num: true,
    by: (s) => s.endpoints.used,
    cell: (s) => (
      <span class="two-lines">
        <span>{count(s.endpoints.used)}<span class="faint"> of {count(s.endpoints.total)}</span></span>
        {s.endpoints.terminating > 0 && <span class="small faint">{count(s.endpoints.terminating)} leaving</span>}
      </span>
    ),
  },
  { key: 'rate', head: 'Requests', num: true, by: (s) => sortRate(s.counters), cell: (s) => <Rate counters={s.counters} /> },
  { key: 'errors', head: 'Errors', num: true, by: (s) => share(s.counters), cell: (s) => <Errors counters={s.counters} /> },
  { key: 'open', head: 'Connections', num: true, by: sortOpen, cell: (s) => <Open connections={s.connections} why={s.connections_reason} /> },
  { key: 'p99', head: 'p99', num: true, by: (s) => s.counters?.p99_ms ?? -1, cell: (s) => millis(s.counters?.p99_ms), has: (s) => s.counters?.p99_ms != null },
];

export function ServicesView() {
  const { query } = place.value;
  const q = query.get('q') ?? '';
  const namespace = query.get('ns') ?? '';
  const filter = (query.get('show') ?? 'all') as Filter;
  const asked = useAsked<Page<ServiceItem>>('services', {}, { paged: true });
  const { value } = asked;
  const namespaces = useMemo(() => [...new Set(value?.items.map((s) => s.namespace))].sort(), [value]);
  const rows = useMemo(() => (value?.items ?? []).filter((s) => fits(s, q.toLowerCase(), namespace, filter)), [value, q, namespace, filter]);

  return (
    <div class="view even">
      <ViewHead title="Services" about={value && `${plural(value.total, 'service')} in ${plural(namespaces.length, 'namespace')}`}>
        <Live />
      </ViewHead>
      <Card flush>
        <div class="card-head">
          <Search label="Search services" placeholder="Name, address or port" value={q} onInput={(text) => amend({ q: text })} />
          <select class="select" aria-label="Namespace" value={namespace} onChange={(e) => amend({ ns: e.currentTarget.value })}>
            <option value="">All namespaces</option>
            {namespaces.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
          <Choice label="Show" value={filter} onChange={(show) => amend({ show })}
            options={[['all', 'All'], ['attention', 'Needs attention'], ['overridden', 'Overridden']]} />
          <span class="note push" role="status">{value && rows.length !== value.total ? `${count(rows.length)} of ${count(value.total)}` : ''}</span>
        </div>
        <Asking asked={asked} lines={12} />
        {value && (rows.length
          ? <Table label="Services" columns={COLUMNS} rows={rows} id={(s) => `${s.namespace}/${s.name}`} rowClass={(s) => (s.overridden ? 'is-overridden' : undefined)} sort={['name', false]} />
          : <Empty icon="services" title={value.total ? 'No service fits' : 'No services'}><p>{value.total ? 'Change the search or the filters.' : 'The source has no service for this node. It appears here as soon as it does.'}</p></Empty>)}
      </Card>
    </div>
  );
}

function fits(s: ServiceItem, q: string, namespace: string, filter: Filter): boolean {
  if (namespace && s.namespace !== namespace) return false;
  if (filter === 'attention' && s.state !== 'error' && s.state !== 'warning') return false;
  if (filter === 'overridden' && !s.overridden) return false;
  if (!q) return true;
  const texts = [`${s.namespace}/${s.name}`, s.type, ...s.cluster_ips, ...s.external_ips, ...s.load_balancer_ips];
  return texts.some((text) => text.toLowerCase().includes(q)) || s.ports.some((p) => portText(p).startsWith(q) || p.name.toLowerCase().includes(q));
}
