// One service: where it answers, who serves it, what was decided, and its rules.
import type { ComponentChildren } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import * as asks from '../asks';
import { get, reason } from '../api';
import { bytes, count, duration, plural } from '../format';
import { ActButton } from '../manage';
import { place, to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Asking, Badge, Card, Empty, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { EndpointCounts, EndpointItem, Key, OverrideItem, Page, RouteItem, Rules, ServiceDetail, Target } from '../types';
import { By, decision } from './decided';
import { OverrideList } from './overrides';
import { Errors, millis, Open, Rate, share, sortOpen, sortRate, StateBadge } from './state';
import { portText } from './services';

export function ServiceView() {
  const [namespace = '', name = ''] = place.value.path;
  const path = `services/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const asked = useAsked<ServiceDetail>(path);
  const { value } = asked;
  return (
    <div class="view" key={path}>
      <ViewHead title={name} crumb={<><a href={to('services')}>Services</a> / <a href={to('services', [], { ns: namespace })}>{namespace}</a></>}
        about={value && <Summary service={value} />}>
        <Live />
        {value && <ActButton question={() => asks.addBackend({ namespace, name })}><Icon name="plus" />Add backend</ActButton>}
      </ViewHead>
      <Asking asked={asked} lines={12} card />
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
      <Card title="Where it answers, and how" ruled><Facts service={service} /></Card>
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

function State({ endpoint: e, decisions }: { endpoint: EndpointItem; decisions: OverrideItem[] }) {
  return (
    <span class="two-lines">
      <span class="row tight">{condition(e)}{e.added && <Badge tone="info" icon="plus">Added</Badge>}</span>
      {decisions.map((one) => <span key={one.name} class="small faint weak">{one.action === 'weight' ? `${decision(one)} ` : ''}<By one={one} /></span>)}
      {!decisions.length && !e.used && e.ready && <span class="small faint weak">not used by this node</span>}
    </span>
  );
}

/** What was decided about an endpoint. */
function decisionsOf(service: ServiceDetail, endpoint: EndpointItem): OverrideItem[] {
  return service.overrides.filter((one) => endpoint.overrides.includes(`${one.namespace}/${one.name}`));
}

/** `2 in use of 3 · 1 drained`. */
export function endpointsText({ used, total, drained, terminating }: EndpointCounts, weighted: boolean): string {
  return [
    `${count(used)} in use of ${count(total)}`,
    drained ? `${count(drained)} drained` : '',
    terminating ? `${count(terminating)} leaving` : '',
    weighted ? 'weights differ' : '',
  ].filter(Boolean).join(' · ');
}

function Endpoints({ service, owner }: { service: ServiceDetail; owner: Key }) {
  // Whoever was led here for one of them sees which.
  const named = place.value.query.get('endpoint');
  const serving = service.endpoint_items.filter((e) => !e.drained && !e.removed);
  const heaviest = Math.max(1, ...serving.map((e) => e.weight));
  const weighted = serving.some((e) => e.weight !== serving[0]?.weight);
  const columns = useMemo((): Column<EndpointItem>[] => [
    {
      key: 'address',
      head: 'Endpoint',
      by: (e) => e.address,
      cell: (e) => (
        <span class="two-lines">
          <code>{e.address}<span class="faint">{e.ports.length ? `:${[...new Set(e.ports.map((p) => p.port))].join(',')}` : ''}</span></code>
          {e.pod && <span class="small faint weak break">{e.pod}</span>}
        </span>
      ),
    },
    { key: 'state', head: 'State', cell: (e) => <State endpoint={e} decisions={decisionsOf(service, e)} />, class: 'state' },
    {
      key: 'weight',
      head: 'Weight',
      num: true,
      by: (e) => e.weight,
      cell: (e) => <span class="weight">{weighted && <meter min={0} max={heaviest} value={e.weight} aria-hidden="true" />}{count(e.weight)}</span>,
    },
    { key: 'where', head: 'Node', by: (e) => e.node ?? '', cell: (e) => <span class="two-lines"><span>{e.node ?? '–'}</span><span class="faint small">{[e.zone, e.local ? 'this node' : ''].filter(Boolean).join(' · ')}</span></span>, class: 'nowrap' },
    {
      key: 'rate',
      head: 'Requests',
      num: true,
      by: (e) => sortRate(e.counters),
      cell: (e) => <span class="two-lines"><span><Rate counters={e.counters} /></span>{e.counters && <span class="faint small">{count(e.counters.requests)} so far{e.counters.active ? `, ${count(e.counters.active)} running` : ''}</span>}</span>,
    },
    { key: 'errors', head: 'Errors', num: true, by: (e) => share(e.counters), cell: (e) => <Errors counters={e.counters} /> },
    { key: 'open', head: 'Connections', num: true, by: (e) => sortOpen(e), cell: (e) => <Open connections={e.connections} /> },
    { key: 'p99', head: 'p99', num: true, by: (e) => e.counters?.p99_ms ?? -1, cell: (e) => millis(e.counters?.p99_ms), has: (e) => e.counters?.p99_ms != null },
    { key: 'actions', head: 'Actions', quiet: true, cell: (e) => <EndpointActions endpoint={e} owner={owner} decisions={decisionsOf(service, e)} /> },
  ], [service, heaviest, weighted]);
  return (
    <Card title="Endpoints" note={endpointsText(service.endpoints, weighted)} flush>
      {service.endpoint_items.length
        ? <Table label="Endpoints" columns={columns} rows={service.endpoint_items} id={(e) => e.address + e.added} sort={['address', false]}
            rowClass={(e) => [e.overrides.length ? 'is-overridden' : '', e.used ? '' : 'is-dim', e.address === named ? 'is-named' : ''].filter(Boolean).join(' ') || undefined} />
        : <Empty icon="services" title="Nobody serves this"><p>Connections are refused until an endpoint is ready, or somebody adds a backend.</p></Empty>}
    </Card>
  );
}

/** Of the decisions those that take an endpoint out. */
function takesOut(one: OverrideItem): boolean {
  return one.action === 'drain' || one.action === 'remove' || (one.action === 'weight' && one.weight === 0);
}

/** What can be done depends on what was decided, and about what: an endpoint, its pod, or its whole node. */
function EndpointActions({ endpoint, owner, decisions }: { endpoint: EndpointItem; owner: Key; decisions: OverrideItem[] }) {
  const target: Target = { address: endpoint.address };
  const out = decisions.filter(takesOut);
  const ours = out.filter((one) => one.managed);
  const back = ours.find((one) => one.target && 'address' in one.target) ?? ours[0];
  const { address } = endpoint;
  return (
    <div class="actions">
      {back?.target && <Enable owner={owner} target={back.target} address={address} />}
      {!back && out.length > 0 && <Badge tone="outline" icon="lock">in a manifest</Badge>}
      {!out.length && !endpoint.drained && !endpoint.removed && (
        <ActButton class="tiny" question={() => asks.drain(owner, target)}><Icon name="drain" />Drain<span class="sr"> {address}</span></ActButton>
      )}
      {!endpoint.removed && (
        <>
          <ActButton class="tiny" question={() => asks.weight(owner, target, endpoint.weight || 1, endpoint.drained)}><Icon name="scale" />Weight<span class="sr"> of {address}</span></ActButton>
          <ActButton class="tiny quiet icon" label={`Remove ${address}`} question={() => asks.removeBackend(owner, target)}><Icon name="cross" /></ActButton>
        </>
      )}
    </div>
  );
}

function Enable({ owner, target, address }: { owner: Key; target: Target; address: string }) {
  const whole = 'address' in target ? null : asks.targetText(target);
  return (
    <ActButton class="tiny" question={() => asks.undrain(owner, target)}>
      <Icon name="play" />{whole ? `Enable ${whole}` : 'Enable'}<span class="sr">{whole ? `, with ${address}` : ` ${address}`}</span>
    </ActButton>
  );
}

function Facts({ service }: { service: ServiceDetail }) {
  const list = (texts: string[]) => texts.map((one) => <div key={one}><code>{one}</code></div>);
  const { connections } = service;
  const facts: [string, ComponentChildren][] = [
    ['Type', service.headless ? 'Headless' : service.type],
    ['Cluster address', service.headless ? 'none: headless' : service.cluster_ips.length ? list(service.cluster_ips) : 'none'],
    ['Load balancer', service.load_balancer_ips.length > 0 && list(service.load_balancer_ips)],
    ['External', service.external_ips.length > 0 && list(service.external_ips)],
    ['Leads to', service.external_name && <code>{service.external_name}</code>],
    ['Ports', service.ports.length > 0 && service.ports.map((port) => (
      <div key={`${port.protocol}${port.port}`}>
        <code>{portText(port)} → {port.target}</code> <span class="faint">{[port.name, port.app_protocol, port.connections && `${count(port.connections.open)} open`].filter(Boolean).join(', ')}</span>
      </div>
    ))],
    ['Connections', (
      <>
        {connections ? <>{count(connections.open)} open{connections.other > 0 && <span class="faint">, {count(connections.other)} opening or closing</span>}</> : <span class="faint">not known</span>}
        {service.connections_reason && <div class="small muted">{service.connections_reason}</div>}
      </>
    )],
    ['Counted by the kernel', service.traffic && (
      <>
        {plural(service.traffic.connections, 'connection')}
        <div class="small muted">{bytes(service.traffic.bytes_in)} in {plural(service.traffic.packets_in, 'packet')} to it, {bytes(service.traffic.bytes_out)} in {plural(service.traffic.packets_out, 'packet')} back</div>
      </>
    )],
    ['Only from', service.source_ranges.length > 0 && list(service.source_ranges)],
    ['Health check', service.health_check_node_port && <code>:{service.health_check_node_port}</code>],
    ['Traffic from inside', service.internal_traffic_policy === 'Local' ? 'Local: only endpoints on this node' : 'Cluster: every endpoint'],
    ['Traffic from outside', service.external_traffic_policy === 'Local' ? 'Local: only endpoints on this node, source address kept' : 'Cluster: every endpoint'],
    ['Session affinity', service.session_affinity_s ? `${duration(service.session_affinity_s)} by client address` : 'none'],
    ['Programmed by', service.backend ? <code>{service.backend}</code> : <span class="faint">nothing</span>],
  ];
  return (
    <dl class="fact-grid">
      {facts.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
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
            <a href={to('routes', [], { route: route.id })}><code>{route.host || '*'}{route.path}</code></a>
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
