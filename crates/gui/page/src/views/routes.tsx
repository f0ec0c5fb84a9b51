// Routes of the ingress, and the certificates of their hosts.
import { useMemo } from 'preact/hooks';
import * as asks from '../asks';
import { count, day, duration, percent, plural } from '../format';
import { overview } from '../live';
import { ActButton } from '../manage';
import { amend, place, to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Asking, Badge, Card, Choice, Empty, Search, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { CertificateItem, Page, RouteItem } from '../types';
import { By } from './decided';
import { Errors, millis, Rate, share, sortRate, StateBadge } from './state';

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
        <ActButton here question={() => asks.purge('host', query.get('host') ?? '')}><Icon name="broom" />Purge cache</ActButton>
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
  const all = route.backends.reduce((sum, one) => sum + one.weight, 0);
  const said = route.action !== 'forward' || !route.backends.length ? route.action_text || route.action : route.action_text;
  return (
    <span class="two-lines">
      {route.backends.map((one) => (
        <span key={asks.text(one.service) + one.port + String(one.canary) + (one.condition ?? '')} class="backend">
          <a href={to('services', [one.service.namespace, one.service.name])}>{one.service.name}</a>
          <span class="faint">:{one.port} · {one.ready}/{one.total}{route.backends.length > 1 && all > 0 ? ` · ${percent(one.weight / all)}` : ''}{one.canary ? ' · canary' : ''}</span>
          {one.condition && <span class="small muted break condition">{one.condition}</span>}
        </span>
      ))}
      {said && <span class="small muted break">{said}</span>}
    </span>
  );
}

function RouteActions({ route }: { route: RouteItem }) {
  const paused = route.paused;
  const [ingress, host, path] = [route.ingress, route.host, route.path];
  return (
    <div class="actions">
      {!paused && <ActButton class="tiny" question={() => asks.pause(ingress, host, path)}><Icon name="pause" />Pause<span class="sr"> {host}{path}</span></ActButton>}
      {paused?.managed && <ActButton class="tiny" question={() => asks.resume(paused.ingress ?? ingress, paused.host, paused.path)}><Icon name="play" />Resume<span class="sr"> {host}{path}</span></ActButton>}
      {paused && !paused.managed && <Badge tone="outline" icon="lock">in a manifest</Badge>}
      {route.features.some((one) => one.includes('cache')) && (
        <ActButton here class="tiny quiet icon" label={`Purge ${host}`} question={() => asks.purge('host', host)}><Icon name="broom" /></ActButton>
      )}
      <a class="btn tiny quiet icon" href={to('trace', [], { url: `http${route.certificate ? 's' : ''}://${host.replace('*', 'any') || 'localhost'}${path}` })} aria-label={`Trace ${host}${path}`} title={`Trace ${host}${path}`}><Icon name="trace" /></a>
    </div>
  );
}

/** What happens on the way. That there is TLS says the lock already. */
function Features({ route }: { route: RouteItem }) {
  const shown = route.features.filter((one) => !(route.certificate && one.toLowerCase() === 'tls'));
  return (
    <span class="row tight">
      {route.certificate && <Badge tone="outline" icon="lock">TLS</Badge>}
      {shown.map((one) => <Badge key={one} tone="outline">{one}</Badge>)}
    </span>
  );
}

const COLUMNS: Column<RouteItem>[] = [
  {
    key: 'host',
    head: 'Host and path',
    by: (r) => `${r.host}${r.path}`,
    cell: (r) => (
      <span class="two-lines">
        <span class="break"><code>{r.host || '*'}<wbr /><b>{r.path.split('/').map((part, i) => (i ? [<wbr key={i} />, `/${part}`] : part))}</b></code></span>
        <span class="faint small weak">{r.path_type} · {asks.text(r.ingress)}</span>
        {r.paused && <span class="small weak paused"><By one={r.paused} /></span>}
        {r.matches.map((one) => <span key={one} class="small weak break">{one}</span>)}
      </span>
    ),
    class: 'address',
  },
  {
    key: 'state',
    head: 'State',
    by: (r) => ['error', 'warning', 'ok', 'idle'].indexOf(r.state),
    cell: (r) => (r.paused ? <Badge tone="warn" icon="pause">Paused</Badge> : <StateBadge state={r.state} />),
  },
  { key: 'backends', head: 'Leads to', cell: (r) => <Backends route={r} />, class: 'leads' },
  { key: 'features', head: 'On the way', cell: (r) => <Features route={r} />, class: 'features', has: (r) => r.features.length > 0 || r.certificate != null },
  { key: 'rate', head: 'Requests', num: true, by: (r) => sortRate(r.counters), cell: (r) => <Rate counters={r.counters} /> },
  { key: 'errors', head: 'Errors', num: true, by: (r) => share(r.counters), cell: (r) => <Errors counters={r.counters} /> },
  { key: 'p99', head: 'p99', num: true, by: (r) => r.counters?.p99_ms ?? -1, cell: (r) => millis(r.counters?.p99_ms), has: (r) => r.counters?.p99_ms != null },
  { key: 'cache', head: 'Cached', num: true, by: (r) => r.counters?.cache_hit_share ?? -1, cell: (r) => percent(r.counters?.cache_hit_share), has: (r) => r.counters?.cache_hit_share != null },
  { key: 'actions', head: 'Actions', quiet: true, cell: (r) => <RouteActions route={r} /> },
];

/** How the list names the host of routes that take requests for every host. */
const EVERY_HOST = '*';

/** What links narrow the list to, exactly: a route, a host, an Ingress. */
function narrowed(query: URLSearchParams): [name: string, words: string, fits: (r: RouteItem) => boolean][] {
  const [route, host, ingress] = ['route', 'host', 'ingress'].map((name) => query.get(name) ?? '');
  return [
    ...(route ? [['route', 'one route', (r: RouteItem) => r.id === route] as const] : []),
    ...(host ? [['host', host === EVERY_HOST ? 'routes for every host' : `host ${host}`, (r: RouteItem) => (r.host || EVERY_HOST) === host] as const] : []),
    ...(ingress ? [['ingress', `Ingress ${ingress}`, (r: RouteItem) => asks.text(r.ingress) === ingress] as const] : []),
  ].map((one) => [...one]);
}

function Routes() {
  const { query } = place.value;
  const q = (query.get('q') ?? '').toLowerCase();
  const filter = (query.get('show') ?? 'all') as Filter;
  const asked = useAsked<Page<RouteItem>>('routes', {}, { paged: true });
  const { value } = asked;
  const only = narrowed(query);
  const rows = useMemo(() => (value?.items ?? []).filter((r) => {
    if (filter === 'attention' && r.state !== 'warning' && r.state !== 'error') return false;
    if (filter === 'paused' && !r.paused) return false;
    if (!only.every(([, , fits]) => fits(r))) return false;
    return !q || [(r.host || '*') + r.path, asks.text(r.ingress), ...r.backends.map((b) => asks.text(b.service))].some((one) => one.toLowerCase().includes(q));
  }), [value, query, filter]);
  const warnings = rows.flatMap((r) => r.warnings.map((w) => ({ ...w, route: r })));
  return (
    <>
      {warnings.length > 0 && (
        <Card title="Warnings" note={count(warnings.length)} flush>
          <ul class="attention">
            {warnings.slice(0, 50).map((w, i) => (
              <li key={i}>
                <Badge tone="warn">{w.reason}</Badge>
                <div class="break"><a href={to('routes', [], { route: w.route.id })}><code>{w.route.host || '*'}{w.route.path}</code></a> <span class="muted">{w.message}</span></div>
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
          {only.map(([name, words]) => (
            <button key={name} type="button" class="btn chip" onClick={() => amend({ [name]: '' })}>Only {words}<Icon name="cross" /><span class="sr">, show all</span></button>
          ))}
          <span class="note push" role="status">{value && rows.length !== value.total ? `${count(rows.length)} of ${count(value.total)}` : ''}</span>
        </div>
        <Asking asked={asked} lines={10} />
        {value && (rows.length
          ? <Table label="Routes" columns={COLUMNS} rows={rows} id={(r) => r.id} rowClass={(r) => (r.paused ? 'is-overridden' : undefined)} sort={['host', false]} />
          : <Empty icon="routes" title={value.total ? 'No route fits' : 'No routes'}><p>{value.total ? 'Change the search or the filters.' : 'Without the ingress plane, or without an Ingress of our class, there is nothing to route.'}</p></Empty>)}
      </Card>
    </>
  );
}

/** Further away than anybody will see: it does not end. */
const NEVER_S = 100 * 365.25 * 86_400;

function Expiry({ item }: { item: CertificateItem }) {
  if (item.expires_in_s == null || item.not_after_ms == null) return <span class="faint">not known</span>;
  const left = item.expires_in_s;
  if (left > NEVER_S) return <span class="faint">never</span>;
  return (
    <span class="two-lines">
      <span class="nowrap">{day(item.not_after_ms)}</span>
      <span class="small faint nowrap">{left < 0 ? `${duration(-left)} ago` : `in ${duration(left)}`}</span>
    </span>
  );
}

/** The certificate that the agent made for itself: clients refuse it, which is better than another host's. */
function isOwn(item: CertificateItem): boolean {
  return item.default && item.id === 'self-signed';
}

function CertificateState({ item }: { item: CertificateItem }) {
  if (isOwn(item)) {
    return <span class="two-lines"><Badge tone="plain" icon="dot">Stand-in</Badge><span class="small faint why">made by the agent; browsers refuse it</span></span>;
  }
  const word = item.expires_in_s == null ? 'Unreadable' : item.expires_in_s < 0 ? 'Ended' : item.state === 'warning' ? 'Ends soon' : null;
  const [tone, shown] = word == null ? [null, ''] : [item.state === 'error' ? 'err' as const : 'warn' as const, word];
  return (
    <span class="two-lines">
      {tone ? <Badge tone={tone}>{shown}</Badge> : <StateBadge state={item.state} />}
      {item.state_text && (!tone || item.expires_in_s == null) && <span class="small faint why">{item.state_text}</span>}
    </span>
  );
}

const CERTIFICATES: Column<CertificateItem>[] = [
  {
    key: 'id',
    head: 'Certificate',
    by: (c) => c.id,
    cell: (c) => <span class="two-lines"><span class="row tight"><span class="break">{isOwn(c) ? 'The agent’s own' : c.id}</span>{c.default && <Badge tone="outline">where no other fits</Badge>}</span><span class="faint small weak break">{c.issuer}</span></span>,
  },
  { key: 'state', head: 'State', by: (c) => ['error', 'warning', 'ok', 'idle'].indexOf(c.state), cell: (c) => <CertificateState item={c} /> },
  { key: 'expires', head: 'Ends', by: (c) => c.expires_in_s ?? -1e12, cell: (c) => <Expiry item={c} /> },
  { key: 'hosts', head: 'Used for', cell: (c) => (c.hosts.length ? <span class="row tight">{c.hosts.map((host) => <a key={host} href={to('routes', [], { host })}><code class="break">{host}</code></a>)}</span> : <span class="faint">{isOwn(c) ? 'hosts without a certificate' : 'no host'}</span>) },
  { key: 'names', head: 'Names in it', cell: (c) => <code class="break">{c.names.join(', ') || '–'}</code> },
];

function Certificates() {
  const asked = useAsked<Page<CertificateItem>>('certificates', {}, { paged: true });
  const { value } = asked;
  return (
    <Card flush>
      <Asking asked={asked} lines={6} />
      {value && (value.items.length
        ? <Table label="Certificates" columns={CERTIFICATES} rows={value.items} id={(c) => c.id} sort={['expires', false]} />
        : <Empty icon="lock" title="No certificates"><p>A Secret of type kubernetes.io/tls that an Ingress names appears here, with the day on which it ends.</p></Empty>)}
    </Card>
  );
}
