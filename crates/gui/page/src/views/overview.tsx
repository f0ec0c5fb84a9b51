// How everything is: planes, source, syncs, traffic, and what to look at.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { resync, text } from '../asks';
import { age, ago, bytes, count, duration, percent, plural, rate } from '../format';
import { history, overview } from '../live';
import { ActButton } from '../manage';
import { to } from '../route';
import { Chart, Spark } from '../ui/chart';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Badge, Card, Choice, Empty, Skeleton, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import type { Attention, Overview, PlaneHealth, Sample, SyncHealth } from '../types';
import { StateBadge } from './state';

type Span = 'recent' | 'long';

const PLANE_TITLES: Record<string, string> = { source: 'Source', services: 'Services', pods: 'Pods', ingress: 'Ingress' };

export function OverviewView() {
  const seen = overview.value;
  return (
    <div class="view">
      <ViewHead title="Overview" about={seen && <About seen={seen} />}>
        <Live />
        <ActButton question={resync}><Icon name="refresh" />Re-sync</ActButton>
      </ViewHead>
      {seen ? <Body seen={seen} /> : <Card><Skeleton lines={10} /></Card>}
    </div>
  );
}

function About({ seen }: { seen: Overview }) {
  return <>{seen.healthy ? 'Healthy' : 'Not healthy'} · {plural(seen.counts.services, 'service')}, {plural(seen.counts.endpoints_ready, 'ready endpoint')}, {plural(seen.counts.routes, 'route')}</>;
}

function Body({ seen }: { seen: Overview }) {
  const [span, setSpan] = useState<Span>('recent');
  const past = history.value;
  const samples = past ? past[span] : [];
  return (
    <>
      <section class="grid four" aria-label="Planes">
        {seen.planes.map((plane) => <Plane key={plane.name} plane={plane} seen={seen} />)}
      </section>
      <AttentionList items={seen.attention} />
      {seen.traffic && <Figures seen={seen} recent={past?.recent ?? []} />}
      <div class="row spread">
        <h2>History</h2>
        <Choice label="Time span" value={span} onChange={setSpan} options={[['recent', 'Last minutes'], ['long', 'Since start']]} />
      </div>
      <Charts samples={samples} traffic={seen.traffic != null} />
      <Syncs seen={seen} />
    </>
  );
}

function Plane({ plane, seen }: { plane: PlaneHealth; seen: Overview }) {
  return (
    <div class="card plane">
      <div class="row spread">
        <h2>{PLANE_TITLES[plane.name] ?? plane.name}</h2>
        <StateBadge state={plane.state} />
      </div>
      <p class="muted break">{plane.summary}</p>
      {plane.name === 'source' && (
        <p class="small faint break">{contact(seen)} · revision {seen.source.revision.toLocaleString('en')}</p>
      )}
    </div>
  );
}

function contact({ source }: Overview): string {
  if (!source.connected) return source.age_s == null ? 'Not in touch yet' : `Not in touch, state ${age(source.age_s)} old`;
  return source.age_s != null && source.age_s >= 5 ? `In touch, state ${age(source.age_s)} old` : 'In touch, state current';
}

/** Where to go for a thing that needs a look. */
function link(item: Attention): string | null {
  const { kind, object } = item;
  if (kind === 'service' && object) return to('services', [object.namespace, object.name]);
  if (kind === 'route' || kind === 'certificate') return to('routes', kind === 'certificate' ? ['certificates'] : [], object ? { q: object.name } : {});
  if (kind === 'override') return to('overrides');
  if (kind === 'pods') return to('pods');
  if (kind === 'sync' || kind === 'source') return to('events');
  return null;
}

const ATTENTION_SHOWN = 6;

function AttentionList({ items }: { items: Attention[] }) {
  const [all, setAll] = useState(false);
  if (!items.length) {
    return (
      <section class="card calm" aria-label="What to look at">
        <Badge tone="ok">Nothing needs attention</Badge>
        <span class="muted small">No service without endpoints, no route with warnings, no certificate that ends soon.</span>
      </section>
    );
  }
  const shown = all ? items : items.slice(0, ATTENTION_SHOWN);
  return (
    <Card title="Needs attention" note={count(items.length)} flush>
      <ul class="attention">
        {shown.map((item, i) => {
          const href = link(item);
          return (
            <li key={i}>
              <StateBadge state={item.state} />
              <div class="break">
                {item.object && (href ? <a href={href}><strong>{text(item.object)}</strong></a> : <strong>{text(item.object)}</strong>)}{' '}
                <span class="muted">{item.message}</span>
              </div>
              <span class="faint small kind">{item.kind}</span>
            </li>
          );
        })}
      </ul>
      {items.length > ATTENTION_SHOWN && (
        <div class="more"><button type="button" class="btn quiet" aria-expanded={all} onClick={() => setAll(!all)}>{all ? 'Show fewer' : `Show all ${items.length}`}</button></div>
      )}
    </Card>
  );
}

function Figures({ seen, recent }: { seen: Overview; recent: Sample[] }) {
  const { traffic } = seen;
  if (!traffic) return null;
  const last = recent.at(-1);
  const now = last ?? traffic;
  const errors = now.rate > 0 ? now.error_rate / now.rate : 0;
  const tail = recent.slice(-90);
  return (
    <section class="grid four" aria-label="Traffic now">
      <Stat name="Requests" value={rate(now.rate)} unit="/s" sub={`${count(traffic.requests)} since start · ${plural(traffic.connections, 'connection')}`}>
        <Spark values={tail.map((s) => s.rate)} />
      </Stat>
      <Stat name="Errors" value={percent(errors)} sub={`${count(traffic.errors)} answers 5xx since start`} bad={errors >= 0.01}>
        <Spark tone={3} values={tail.map((s) => s.error_rate)} />
      </Stat>
      <Stat name="Latency p99" value={millis(now.p99_ms ?? traffic.p99_ms)} sub={`p50 ${millis(now.p50_ms ?? traffic.p50_ms)} · p90 ${millis(now.p90_ms ?? traffic.p90_ms)}`}>
        <Spark tone={2} values={tail.map((s) => s.p99_ms)} />
      </Stat>
      <Stat name="Cache hits" value={percent(traffic.cache.hit_share)} sub={traffic.cache.entries == null ? `${count(traffic.cache.hits)} hits` : `${plural(traffic.cache.entries, 'entry', 'entries')}, ${bytes(traffic.cache.bytes)}`}>
        <Spark tone={4} values={tail.map((s) => s.cache_hit_share)} />
      </Stat>
    </section>
  );
}

function Stat({ name, value, unit, sub, bad = false, children }: { name: string; value: string; unit?: string; sub: string; bad?: boolean; children?: ComponentChildren }) {
  return (
    <div class="card stat">
      <div class="name">{name}{bad && <Badge tone="err">high</Badge>}</div>
      <div class="value">{value}{unit && <small>{unit}</small>}</div>
      <div class="sub">{sub}</div>
      {children}
    </div>
  );
}

export function millis(ms: number | null | undefined): string {
  return ms == null ? '–' : duration(ms / 1000);
}

function Charts({ samples, traffic }: { samples: Sample[]; traffic: boolean }) {
  const times = samples.map((s) => s.at_ms);
  return (
    <div class="grid two">
      {traffic && (
        <>
          <Card title="Requests per second">
            <Chart label="Requests per second" times={times} format={rate} atLeast={1} series={[
              { name: 'requests', tone: 1, fill: true, values: samples.map((s) => s.rate) },
              { name: 'errors', tone: 3, values: samples.map((s) => s.error_rate) },
            ]} />
          </Card>
          <Card title="Time to answer">
            <Chart label="Time to answer" times={times} format={millis} atLeast={1} series={[
              { name: 'p50', tone: 1, values: samples.map((s) => s.p50_ms) },
              { name: 'p90', tone: 2, values: samples.map((s) => s.p90_ms) },
              { name: 'p99', tone: 3, values: samples.map((s) => s.p99_ms) },
            ]} />
          </Card>
          <Card title="Open connections and running requests">
            <Chart label="Open connections and running requests" times={times} format={count} atLeast={2} series={[
              { name: 'connections', tone: 1, values: samples.map((s) => s.connections) },
              { name: 'requests', tone: 2, values: samples.map((s) => s.active) },
            ]} />
          </Card>
        </>
      )}
      <Card title="Changes and syncs per second">
        <Chart label="Changes and syncs per second" times={times} format={rate} atLeast={1} series={[
          { name: 'changes', tone: 1, fill: true, values: samples.map((s) => s.change_rate) },
          { name: 'syncs', tone: 2, values: samples.map((s) => s.sync_rate) },
        ]} />
      </Card>
    </div>
  );
}

const SYNC_COLUMNS: Column<SyncHealth>[] = [
  { key: 'plane', head: 'Plane', cell: (s) => PLANE_TITLES[s.plane] ?? s.plane },
  { key: 'backend', head: 'Backend', cell: (s) => (s.backend ? <code>{s.backend}</code> : '–') },
  { key: 'syncs', head: 'Syncs', num: true, cell: (s) => count(s.syncs) },
  { key: 'failures', head: 'Failed', num: true, cell: (s) => (s.failures ? <Badge tone="err">{count(s.failures)}</Badge> : '0') },
  { key: 'changes', head: 'Changes', num: true, cell: (s) => count(s.changes) },
  { key: 'drift', head: 'Drift repairs', num: true, cell: (s) => count(s.drift_repairs) },
  { key: 'duration', head: 'Sync p50 / p99', num: true, cell: (s) => `${millis(s.duration_p50_ms)} / ${millis(s.duration_p99_ms)}` },
  { key: 'programming', head: 'To the kernel p50 / p99', num: true, cell: (s) => `${millis(s.programming_p50_ms)} / ${millis(s.programming_p99_ms)}` },
  { key: 'last', head: 'Last sync', num: true, cell: (s) => ago(s.last_age_s) },
  { key: 'state', head: 'State', cell: (s) => (s.last_error ? <Badge tone="err" title={s.last_error}>{s.last_error.slice(0, 60)}</Badge> : s.pending_age_s != null ? <Badge tone="info">waiting {age(s.pending_age_s)}</Badge> : <Badge tone="ok">in line</Badge>) },
];

function Syncs({ seen }: { seen: Overview }) {
  return (
    <>
      <Card title="Syncs" note="what was programmed, and what had to be repaired" flush>
        {seen.syncs.length ? <Table label="Syncs by plane" columns={SYNC_COLUMNS} rows={seen.syncs} id={(s) => s.plane} /> : <Empty icon="refresh" title="Nothing is programmed here"><p>A brain serves other nodes; it has no rules of its own.</p></Empty>}
      </Card>
      {seen.source.problem_count > 0 && (
        <Card title="Objects that could not be read" note={count(seen.source.problem_count)} ruled>
          <ul class="stack">
            {seen.source.problems.map((problem) => <li key={problem} class="mono small break">{problem}</li>)}
          </ul>
        </Card>
      )}
    </>
  );
}
