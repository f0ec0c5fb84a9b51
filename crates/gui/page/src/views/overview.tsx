// How everything is: planes, source, syncs, traffic, and what to look at.
import { useState } from 'preact/hooks';
import { resync, text } from '../asks';
import { age, ago, count, plural } from '../format';
import { history, overview } from '../live';
import { ActButton } from '../manage';
import { to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Badge, Card, Choice, Empty, Skeleton, ViewHead } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import type { Attention, Overview, PlaneHealth, SourceHealth, SyncHealth } from '../types';
import { Figures, FigureTable } from './figures';
import { millis, StateBadge } from './state';

type Span = 'recent' | 'long';
type Shape = 'charts' | 'table';

const PLANE_TITLES: Record<string, string> = { source: 'Source', services: 'Services', pods: 'Pods', ingress: 'Ingress' };
const SOURCE_KINDS: Record<string, string> = { kube: 'Kubernetes', dir: 'Manifests', brain: 'A brain' };

export function OverviewView() {
  const seen = overview.value;
  return (
    <div class="view">
      <ViewHead title="Overview" about={seen && <About seen={seen} />}>
        <Live />
        <ActButton here question={resync}><Icon name="refresh" />Re-sync</ActButton>
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
  const [shape, setShape] = useState<Shape>('charts');
  const past = history.value;
  const samples = past ? past[span] : [];
  return (
    <>
      <section class="card planes" aria-label="Planes">
        {seen.planes.map((plane) => <Plane key={plane.name} plane={plane} source={seen.source} />)}
      </section>
      <AttentionList items={seen.attention} />
      <div class="row spread">
        <h2>Figures</h2>
        <span class="row">
          <Choice label="Show figures as" value={shape} onChange={setShape} options={[['charts', 'Charts'], ['table', 'Table']]} />
          <Choice label="Time span" value={span} onChange={setSpan} options={[['recent', 'Last minutes'], ['long', 'Since start']]} />
        </span>
      </div>
      {shape === 'charts' ? <Figures seen={seen} samples={samples} /> : <FigureTable samples={samples} traffic={seen.traffic != null} />}
      <Syncs seen={seen} />
    </>
  );
}

function Plane({ plane, source }: { plane: PlaneHealth; source: SourceHealth }) {
  const isSource = plane.name === 'source';
  return (
    <div class="plane">
      <h2>{PLANE_TITLES[plane.name] ?? plane.name}</h2>
      <StateBadge state={plane.state} />
      <p class="muted break">{isSource ? <>{SOURCE_KINDS[source.kind] ?? source.kind} · <code>{source.spec}</code></> : plane.summary}</p>
      {isSource && source.note && <p class="small muted break">{source.note}</p>}
      {isSource && <p class="small faint break">{plane.state === 'ok' ? currency(source) : `${plane.summary} · ${currency(source)}`}</p>}
    </div>
  );
}

/** How old what we know may be. */
function currency({ connected, age_s, revision }: SourceHealth): string {
  const old = age_s == null ? 'nothing read yet' : age_s < 5 && connected ? 'state current' : `state ${age(age_s)} old`;
  return `${connected ? 'in touch' : 'not in touch'}, ${old}, revision ${revision.toLocaleString('en')}`;
}

/** Where to go for a thing that needs a look. */
function link(item: Attention): string | null {
  const { kind, object, route, endpoint } = item;
  if ((kind === 'service' || kind === 'endpoint') && object) return to('services', [object.namespace, object.name], endpoint ? { endpoint } : {});
  if (kind === 'route' && route) return to('routes', [], { route });
  if (kind === 'route') return to('routes', [], object ? { ingress: text(object) } : { show: 'attention' });
  if (kind === 'certificate') return to('routes', ['certificates']);
  if (kind === 'ingress') return to('routes');
  if (kind === 'override') return to('overrides');
  if (kind === 'pods') return to('pods');
  if (kind === 'sync' || kind === 'source') return to('events');
  return null;
}

const ATTENTION_SHOWN = 4;

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
    <section class="card" aria-label="Needs attention">
      <h2 class="sr">Needs attention: {count(items.length)}</h2>
      <ul class="attention first">
        {shown.map((item, i) => {
          const href = link(item);
          const name = item.object ? text(item.object) : null;
          return (
            <li key={i}>
              <StateBadge state={item.state} />
              <div class="break">
                {name && (href ? <a href={href}><strong>{name}</strong></a> : <strong>{name}</strong>)}{' '}
                <span class="muted">{item.message}</span>{' '}
                {!name && href && <a class="small" href={href}>Look</a>}
              </div>
              <span class="faint small kind">{item.kind}</span>
            </li>
          );
        })}
      </ul>
      {items.length > ATTENTION_SHOWN && (
        <div class="more"><button type="button" class="btn quiet" aria-expanded={all} onClick={() => setAll(!all)}>{all ? 'Show fewer' : `Show all ${items.length}`}</button></div>
      )}
    </section>
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
  { key: 'programming', head: 'To the kernel p50 / p99', num: true, cell: (s) => `${millis(s.programming_p50_ms)} / ${millis(s.programming_p99_ms)}`, has: (s) => s.programming_p50_ms != null },
  { key: 'last', head: 'Last sync', num: true, cell: (s) => ago(s.last_age_s) },
  {
    key: 'state',
    head: 'State',
    cell: (s) => (s.last_error
      ? <span class="two-lines"><Badge tone="err">failed</Badge><span class="small why break">{s.last_error}</span></span>
      : s.pending_age_s != null ? <Badge tone="info" icon="clock">waiting {age(s.pending_age_s)}</Badge> : <Badge tone="ok">in line</Badge>),
  },
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
