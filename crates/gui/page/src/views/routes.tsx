// Routes of the ingress, and the certificates of their hosts.
import { useMemo } from 'preact/hooks';
import * as asks from '../asks';
import { count, day, duration, percent, plural } from '../format';
import { overview } from '../live';
import { ActButton } from '../manage';
import { amend, place, to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Badge, Card, Choice, Empty, Failed, Search, Skeleton, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { CertificateItem, Page, RouteItem } from '../types';
import { millis } from './overview';
import { Until } from './overrides';
import { Errors, Rate, sortRate, StateBadge } from './state';

type Tab = 'routes' | 'certificates';
type Filter = 'all' | 'attention' | 'paused';

export function RoutesView() {
  const { path, query } = place.value;
  const tab: Tab = path[0] === 'certificates' ? 'certificates' : 'routes';
  const counts = overview.value?.counts;
  return (
    <div class="view">
      <ViewHead title="Routes & certificates" about={counts && `${plural(counts.routes, 'route')}, ${plural(counts.certificates, 'certificate')}${counts.certificates_expiring ? `, ${counts.certificates_expiring} of them ending soon` : ''}`}>
        <Live />
        <ActButton question={() => asks.purge('host', query.get('host') ?? '')}><Icon name="broom" />Purge cache</ActButton>
      </ViewHead>
      <nav class="tabs" aria-label="Routes or certificates">
        <a href={to('routes')} aria-current={tab === 'routes' ? 'page' : undefined}>Routes</a>
        <a href={to('routes', ['certificates'])} aria-current={tab === 'certificates' ? 'page' : undefined}>
          Certificates{counts?.certificates_expiring ? <Badge tone="warn">{counts.certificates_expiring}</Badge> : null}
        </a>
      </nav>
      {tab === 'routes' ? <Routes /> : <Certificates />}
    </div>
  );
}

function Backends({ route }: { route: RouteItem }) {
  if (route.action !== 'forward' && !route.backends.length) return <span class="muted break">{route.action_text || route.action}</span>;
  const all = route.backends.reduce((sum, one) => sum + one.weight, 0);
  return (
    <span class="two-lines">
      {route.backends.map((one) => (
        <span key={asks.text(one.service) + one.port + String(one.canary)}>
          <a href={to('services', [one.service.namespace, one.service.name])}>{one.service.name}</a>
          <span class="faint">:{one.port} · {one.ready}/{one.total}{route.backends.length > 1 && all > 0 ? ` · ${percent(one.weight / all)}` : ''}{one.canary ? ' · canary' : ''}</span>
        </span>
      ))}
    </span>
  );
}

function RouteActions({ route }: { route: RouteItem }) {
  const paused = route.paused;
  const [ingress, host, path] = [route.ingress, route.host, route.path];
  return (
    <div class="actions">
      {paused
        ? <ActButton class="tiny" question={() => asks.resume(paused.ingress ?? ingress, paused.host, paused.path)}><Icon name="play" />Resume<span class="sr"> {host}{path}</span></ActButton>
        : <ActButton class="tiny" question={() => asks.pause(ingress, host, path)}><Icon name="pause" />Pause<span class="sr"> {host}{path}</span></ActButton>}
      {route.features.some((one) => one.includes('cache')) && (
        <ActButton class="tiny" question={() => asks.purge('host', host)}><Icon name="broom" />Purge<span class="sr"> {host}</span></ActButton>
      )}
      <a class="btn tiny quiet" href={to('trace', [], { url: `http${route.certificate ? 's' : ''}://${host.replace('*', 'any') || 'localhost'}${path}` })}><Icon name="trace" /><span class="sr">Trace {host}{path}</span></a>
    </div>
  );
}

const COLUMNS: Column<RouteItem>[] = [
  {
    key: 'host',
    head: 'Host and path',
    by: (r) => `${r.host}${r.path}`,
    cell: (r) => (
      <span class="two-lines">
        <span class="break"><code>{r.host || '*'}<b>{r.path}</b></code></span>
        <span class="faint small weak">{[r.path_type, ...r.matches].join(' · ')} · {asks.text(r.ingress)}</span>
      </span>
    ),
    class: 'address',
  },
  {
    key: 'state',
    head: 'State',
    by: (r) => ['error', 'warning', 'ok', 'idle'].indexOf(r.state),
    cell: (r) => (r.paused
      ? <span class="two-lines"><Badge tone="warn" icon="pause">Paused</Badge><span class="small faint"><Until ms={r.paused.until_ms} />{r.paused.by && ` · ${r.paused.by}`}</span></span>
      : <StateBadge state={r.state} />),
  },
  { key: 'backends', head: 'Leads to', cell: (r) => <Backends route={r} />, class: 'nowrap' },
  { key: 'features', head: 'On the way', cell: (r) => <span class="row tight">{r.certificate && <Badge tone="outline" icon="lock">TLS</Badge>}{r.features.map((one) => <Badge key={one} tone="outline">{one}</Badge>)}</span>, class: 'features' },
  { key: 'rate', head: 'Requests', num: true, by: (r) => sortRate(r.counters), cell: (r) => <Rate counters={r.counters} /> },
  { key: 'errors', head: 'Errors', num: true, by: (r) => r.counters?.error_rate ?? -1, cell: (r) => <Errors counters={r.counters} /> },
  { key: 'p99', head: 'p99', num: true, by: (r) => r.counters?.p99_ms ?? -1, cell: (r) => millis(r.counters?.p99_ms) },
  { key: 'cache', head: 'Cache hits', num: true, by: (r) => r.counters?.cache_hit_share ?? -1, cell: (r) => percent(r.counters?.cache_hit_share) },
  { key: 'actions', head: 'Actions', quiet: true, cell: (r) => <RouteActions route={r} /> },
];

function Routes() {
  const { query } = place.value;
  const q = (query.get('q') ?? '').toLowerCase();
  const filter = (query.get('show') ?? 'all') as Filter;
  const { value, error, again } = useAsked<Page<RouteItem>>('routes', {}, { paged: true });
  const rows = useMemo(() => (value?.items ?? []).filter((r) => {
    if (filter === 'attention' && r.state !== 'warning' && r.state !== 'error') return false;
    if (filter === 'paused' && !r.paused) return false;
    return !q || [r.host + r.path, asks.text(r.ingress), ...r.backends.map((b) => asks.text(b.service))].some((one) => one.toLowerCase().includes(q));
  }), [value, q, filter]);
  const warnings = rows.flatMap((r) => r.warnings.map((w) => ({ ...w, route: r })));
  return (
    <>
      {warnings.length > 0 && (
        <Card title="Warnings" note={count(warnings.length)} flush>
          <ul class="attention">
            {warnings.slice(0, 50).map((w, i) => (
              <li key={i}>
                <Badge tone="warn">{w.reason}</Badge>
                <div class="break"><code>{w.route.host || '*'}{w.route.path}</code> <span class="muted">{w.message}</span></div>
                <span class="faint small kind">{asks.text(w.route.ingress)}</span>
              </li>
            ))}
          </ul>
        </Card>
      )}
      <Card flush>
        <div class="card-head">
          <Search label="Search routes" placeholder="Host, path, Ingress or service" value={query.get('q') ?? ''} onInput={(text) => amend({ q: text })} />
          <Choice label="Show" value={filter} onChange={(show) => amend({ show })} options={[['all', 'All'], ['attention', 'Needs attention'], ['paused', 'Paused']]} />
          <span class="note push" role="status">{value && rows.length !== value.total ? `${count(rows.length)} of ${count(value.total)}` : ''}</span>
        </div>
        {error && <Failed error={error} retry={again} />}
        {!error && !value && <div class="card-body"><Skeleton lines={10} /></div>}
        {value && (rows.length
          ? <Table label="Routes" columns={COLUMNS} rows={rows} id={(r) => r.id} rowClass={(r) => (r.paused ? 'is-overridden' : undefined)} sort={['host', false]} />
          : <Empty icon="routes" title={value.total ? 'No route fits' : 'No routes'}><p>{value.total ? 'Change the search or the filters.' : 'Without the ingress plane, or without an Ingress of our class, there is nothing to route.'}</p></Empty>)}
      </Card>
    </>
  );
}

function Expiry({ item }: { item: CertificateItem }) {
  if (item.expires_in_s == null || item.not_after_ms == null) return <Badge tone="err">cannot be read</Badge>;
  const left = item.expires_in_s;
  const words = left < 0 ? `ended ${duration(-left)} ago` : `in ${duration(left)}`;
  return (
    <span class="two-lines">
      <span class="nowrap">{day(item.not_after_ms)}</span>
      {item.state === 'ok' || item.state === 'idle' ? <span class="small faint">{words}</span> : <Badge tone={left < 0 ? 'err' : 'warn'}>{words}</Badge>}
    </span>
  );
}

const CERTIFICATES: Column<CertificateItem>[] = [
  {
    key: 'id',
    head: 'Certificate',
    by: (c) => c.id,
    cell: (c) => <span class="two-lines"><span class="row tight"><span class="break">{c.id}</span>{c.default && <Badge tone="outline">default</Badge>}</span><span class="faint small weak break">{c.issuer}</span></span>,
  },
  { key: 'state', head: 'State', cell: (c) => <StateBadge state={c.state} title={c.state_text} /> },
  { key: 'expires', head: 'Ends', by: (c) => c.expires_in_s ?? -1e12, cell: (c) => <Expiry item={c} /> },
  { key: 'hosts', head: 'Used for', cell: (c) => (c.hosts.length ? <code class="break">{c.hosts.join(', ')}</code> : <span class="faint">no host</span>) },
  { key: 'names', head: 'Names in it', cell: (c) => <code class="break">{c.names.join(', ') || '–'}</code> },
];

function Certificates() {
  const { value, error, again } = useAsked<Page<CertificateItem>>('certificates', {}, { paged: true, still: true });
  return (
    <Card flush>
      {error && <Failed error={error} retry={again} />}
      {!error && !value && <div class="card-body"><Skeleton lines={6} /></div>}
      {value && (value.items.length
        ? <Table label="Certificates" columns={CERTIFICATES} rows={value.items} id={(c) => c.id} sort={['expires', false]} />
        : <Empty icon="lock" title="No certificates"><p>A Secret of type kubernetes.io/tls that an Ingress names appears here, with the day on which it ends.</p></Empty>)}
    </Card>
  );
}
