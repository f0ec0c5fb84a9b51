// One service: where it answers, who serves it, what was decided, and its rules.
import { useMemo, useState } from 'preact/hooks';
import * as asks from '../asks';
import { get, reason } from '../api';
import { count, plural } from '../format';
import { ActButton } from '../manage';
import { place, to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Badge, Card, Empty, Failed, Skeleton, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { EndpointItem, Key, Page, RouteItem, Rules, ServiceDetail } from '../types';
import { millis } from './overview';
import { OverrideList } from './overrides';
import { Errors, Open, Rate, sortOpen, sortRate, StateBadge } from './state';
import { portText } from './services';

export function ServiceView() {
  const [namespace = '', name = ''] = place.value.path;
  const path = `services/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const { value, error, again } = useAsked<ServiceDetail>(path);
  return (
    <div class="view" key={path}>
      <ViewHead title={name} crumb={<><a href={to('services')}>Services</a> / <a href={to('services', [], { ns: namespace })}>{namespace}</a></>}
        about={value && <Summary service={value} />}>
        <Live />
        <ActButton question={() => asks.addBackend({ namespace, name })}><Icon name="plus" />Add backend</ActButton>
      </ViewHead>
      {error && <Card><Failed error={error} retry={again} /></Card>}
      {!error && !value && <Card><Skeleton lines={12} /></Card>}
      {value && <Detail service={value} path={path} />}
    </div>
  );
}

function Summary({ service }: { service: ServiceDetail }) {
  return (
    <span class="row">
      <StateBadge state={service.state} />
      <span>{service.state_text || `${plural(service.endpoints.used, 'endpoint')} in use by this node`}</span>
    </span>
  );
}

function Detail({ service, path }: { service: ServiceDetail; path: string }) {
  const key: Key = { namespace: service.namespace, name: service.name };
  return (
    <>
      {service.overrides.length > 0 && <OverrideList title="Decided by people" items={service.overrides} />}
      <Endpoints service={service} owner={key} />
      <div class="grid two">
        <Card title="Where it answers" ruled><Addresses service={service} /></Card>
        <Card title="How it behaves" ruled><Policies service={service} /></Card>
      </div>
      <Routes ids={service.routes} />
      {service.backend && <RulesCard path={path} backend={service.backend} />}
      <Words service={service} />
    </>
  );
}

function condition(e: EndpointItem) {
  if (e.removed) return <Badge tone="warn" icon="minus">Removed</Badge>;
  if (e.drained) return <Badge tone="warn" icon="drain">Drained</Badge>;
  if (e.terminating) return <Badge tone="plain" icon="clock">{e.serving ? 'Terminating, serving' : 'Terminating'}</Badge>;
  if (e.ready) return <Badge tone="ok">Ready</Badge>;
  return <Badge tone="err">{e.serving ? 'Serving, not ready' : 'Not ready'}</Badge>;
}

function Endpoints({ service, owner }: { service: ServiceDetail; owner: Key }) {
  const heaviest = Math.max(1, ...service.endpoint_items.map((e) => e.weight));
  const weighted = service.endpoint_items.some((e) => e.weight !== 1);
  const columns = useMemo((): Column<EndpointItem>[] => [
    { key: 'address', head: 'Endpoint', by: (e) => e.address, cell: (e) => <code>{e.address}<span class="faint">{e.ports.length ? `:${[...new Set(e.ports.map((p) => p.port))].join(',')}` : ''}</span></code> },
    { key: 'state', head: 'State', cell: (e) => <span class="row tight">{condition(e)}{e.added && <Badge tone="info" icon="plus">Added</Badge>}</span> },
    { key: 'used', head: 'Used here', cell: (e) => (e.used ? <span class="yes"><Icon name="check" />yes</span> : <span class="faint">no</span>) },
    {
      key: 'weight',
      head: 'Weight',
      num: true,
      by: (e) => e.weight,
      cell: (e) => <span class="weight"><meter min={0} max={heaviest} value={e.weight} aria-hidden="true" />{count(e.weight)}</span>,
    },
    { key: 'where', head: 'Pod and node', by: (e) => e.node ?? '', cell: (e) => <span class="two-lines"><span>{e.pod ?? '–'}</span><span class="faint small">{[e.node, e.zone, e.local ? 'this node' : ''].filter(Boolean).join(' · ')}</span></span>, class: 'nowrap' },
    { key: 'rate', head: 'Requests', num: true, by: (e) => sortRate(e.counters), cell: (e) => <Rate counters={e.counters} /> },
    { key: 'total', head: 'Total', num: true, by: (e) => e.counters?.requests ?? -1, cell: (e) => (e.counters ? count(e.counters.requests) : <span class="faint">–</span>) },
    { key: 'errors', head: 'Errors', num: true, cell: (e) => <Errors counters={e.counters} /> },
    { key: 'active', head: 'Active', num: true, cell: (e) => (e.counters?.active == null ? <span class="faint">–</span> : count(e.counters.active)) },
    { key: 'open', head: 'Connections', num: true, by: (e) => sortOpen(e), cell: (e) => <Open connections={e.connections} /> },
    { key: 'p99', head: 'p99', num: true, cell: (e) => millis(e.counters?.p99_ms) },
    { key: 'actions', head: 'Actions', quiet: true, cell: (e) => <EndpointActions endpoint={e} owner={owner} /> },
  ], [owner.namespace, owner.name, heaviest]);
  return (
    <Card title="Endpoints" note={`${service.endpoints.ready} ready of ${service.endpoints.total}${weighted ? ', weighted' : ''}`} flush>
      {service.endpoint_items.length
        ? <Table label="Endpoints" columns={columns} rows={service.endpoint_items} id={(e) => e.address + e.added} sort={['address', false]}
            rowClass={(e) => [e.overrides.length ? 'is-overridden' : '', e.used ? '' : 'is-dim'].filter(Boolean).join(' ') || undefined} />
        : <Empty icon="services" title="Nobody serves this"><p>Connections are refused until an endpoint is ready, or somebody adds a backend.</p></Empty>}
    </Card>
  );
}

function EndpointActions({ endpoint, owner }: { endpoint: EndpointItem; owner: Key }) {
  const target = { address: endpoint.address };
  const decided = endpoint.drained || endpoint.removed || endpoint.overrides.length > 0;
  return (
    <div class="actions">
      {decided
        ? <ActButton class="tiny" question={() => asks.undrain(owner, target)}><Icon name="undo" />Enable<span class="sr"> {endpoint.address}</span></ActButton>
        : <ActButton class="tiny" question={() => asks.drain(owner, target)}><Icon name="drain" />Drain<span class="sr"> {endpoint.address}</span></ActButton>}
      <ActButton class="tiny" question={() => asks.weight(owner, target, endpoint.weight)}><Icon name="scale" />Weight<span class="sr"> of {endpoint.address}</span></ActButton>
      {!endpoint.removed && (
        <ActButton class="tiny quiet" question={() => asks.removeBackend(owner, target)}><Icon name="cross" /><span class="sr">Remove {endpoint.address}</span></ActButton>
      )}
    </div>
  );
}

function Addresses({ service }: { service: ServiceDetail }) {
  const list = (texts: string[]) => (texts.length ? texts.map((one) => <div key={one}><code>{one}</code></div>) : <span class="faint">none</span>);
  return (
    <dl class="facts">
      <dt>Cluster</dt>
      <dd>{service.headless ? 'headless' : list(service.cluster_ips)}</dd>
      {service.load_balancer_ips.length > 0 && <><dt>Load balancer</dt><dd>{list(service.load_balancer_ips)}</dd></>}
      {service.external_ips.length > 0 && <><dt>External</dt><dd>{list(service.external_ips)}</dd></>}
      {service.external_name && <><dt>Leads to</dt><dd><code>{service.external_name}</code></dd></>}
      <dt>Ports</dt>
      <dd>
        {service.ports.map((port) => (
          <div key={`${port.protocol}${port.port}`}>
            <code>{portText(port)} → {port.target}</code> <span class="faint">{[port.name, port.app_protocol, port.connections && `${count(port.connections.open)} open`].filter(Boolean).join(', ')}</span>
          </div>
        ))}
      </dd>
      <dt>Connections</dt>
      <dd>
        {service.connections
          ? <>{count(service.connections.open)} open{service.connections.other > 0 && <span class="faint">, {count(service.connections.other)} opening or closing</span>}</>
          : <span class="faint">not known</span>}
        {service.connections_reason && <div class="small muted">{service.connections_reason}</div>}
      </dd>
      {service.source_ranges.length > 0 && <><dt>Only from</dt><dd>{list(service.source_ranges)}</dd></>}
      {service.health_check_node_port && <><dt>Health check</dt><dd><code>:{service.health_check_node_port}</code></dd></>}
    </dl>
  );
}

function Policies({ service }: { service: ServiceDetail }) {
  return (
    <dl class="facts">
      <dt>Type</dt>
      <dd>{service.headless ? 'Headless' : service.type}</dd>
      <dt>Traffic from inside</dt>
      <dd>{service.internal_traffic_policy === 'Local' ? 'Local: only endpoints on this node' : 'Cluster: every endpoint'}</dd>
      <dt>Traffic from outside</dt>
      <dd>{service.external_traffic_policy === 'Local' ? 'Local: only endpoints on this node, source address kept' : 'Cluster: every endpoint'}</dd>
      <dt>Session affinity</dt>
      <dd>{service.session_affinity_s ? `${plural(service.session_affinity_s, 'second')} by client address` : 'none'}</dd>
      <dt>Programmed by</dt>
      <dd>{service.backend ? <code>{service.backend}</code> : <span class="faint">nothing</span>}</dd>
    </dl>
  );
}

function Routes({ ids }: { ids: string[] }) {
  const wanted = new Set(ids);
  const { value } = useAsked<Page<RouteItem>>(ids.length ? 'routes' : null, {}, { paged: true });
  const routes = value?.items.filter((route) => wanted.has(route.id)) ?? [];
  if (!routes.length) return null;
  return (
    <Card title="Routes that lead here" note={count(routes.length)} ruled>
      <ul class="stack">
        {routes.map((route) => (
          <li key={route.id} class="row">
            <StateBadge state={route.state} />
            <a href={to('routes', [], { q: route.host })}><code>{route.host || '*'}{route.path}</code></a>
            <span class="faint small">{asks.text(route.ingress)}</span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function RulesCard({ path, backend }: { path: string; backend: string }) {
  const [rules, setRules] = useState<Rules | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const read = () => {
    setBusy(true);
    get<Rules>(`${path}/rules`).then((got) => {
      setRules(got);
      setProblem(null);
    }, (error: unknown) => setProblem(reason(error))).finally(() => setBusy(false));
  };
  return (
    <Card title={`Rules in ${backend}`} note={rules ? (rules.origin === 'kernel' ? 'read from the kernel just now' : 'as we program them') : 'only those of this service'}
      tools={<button type="button" class="btn" disabled={busy} onClick={read}><Icon name={rules ? 'refresh' : 'right'} />{rules ? 'Read again' : 'Show rules'}</button>}>
      {(problem || rules) && (
        <div class="stack">
          {problem && <p class="problem">{problem}</p>}
          {rules && <pre class="rules" tabIndex={0} aria-label="Rules">{rules.text.trimEnd() || 'No rules stand for this service.'}</pre>}
          {rules?.notes.map((note) => <p key={note} class="small muted">{note}</p>)}
        </div>
      )}
    </Card>
  );
}

function Words({ service }: { service: ServiceDetail }) {
  const groups = [['Labels', service.labels], ['Annotations', service.annotations]] as const;
  const shown = groups.filter(([, words]) => Object.keys(words).length > 0);
  if (!shown.length) return null;
  return (
    <div class="grid two">
      {shown.map(([title, words]) => (
        <Card key={title} title={title} ruled>
          <dl class="facts words">
            {Object.entries(words).map(([name, value]) => [<dt key={`${name}-n`}><code>{name}</code></dt>, <dd key={`${name}-v`}><code>{value}</code></dd>])}
          </dl>
        </Card>
      ))}
    </div>
  );
}
