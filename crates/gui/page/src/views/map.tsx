// The traffic map: host → route → service → endpoint → node.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { percent, plural, rate } from '../format';
import { Graph } from '../map/graph';
import { layOut, MORE } from '../map/layout';
import { link } from '../map/link';
import { Tree } from '../map/tree';
import { overview } from '../live';
import { amend, go, place, to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Asking, Badge, Card, Choice, Empty, Search, ViewHead } from '../ui/parts';
import { useAsked } from '../use';
import type { TrafficMap, Vertex } from '../types';
import { decisionsOn } from '../map/decisions';
import { Said } from './decided';
import { StateBadge } from './state';

const NARROW_PX = 720;
/** Up to so many services are drawn one by one; more are drawn as namespaces. */
const LIMIT = 200;
const LIMIT_WITHIN = 1000;
const SEARCH_WAIT_MS = 200;

type Shape = 'graph' | 'list';
type Group = 'auto' | 'namespace' | 'none';

export function MapView() {
  const { query } = place.value;
  const ns = query.get('ns') ?? '';
  const group = (query.get('group') ?? 'auto') as Group;
  const shape = (query.get('as') ?? (innerWidth < NARROW_PX ? 'list' : 'graph')) as Shape;
  const [typed, setTyped] = useState(query.get('q') ?? '');
  useEffect(() => {
    const timer = setTimeout(() => typed !== (place.value.query.get('q') ?? '') && amend({ q: typed }), SEARCH_WAIT_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const q = query.get('q') ?? '';
  const whole = ns !== '' || q !== '' || group === 'none';
  const asked = useAsked<TrafficMap>('map', {
    q,
    namespace: ns,
    collapse: whole ? 'none' : group,
    limit: whole ? LIMIT_WITHIN : LIMIT,
  });
  const { value } = asked;
  return (
    <div class="view">
      <ViewHead title="Traffic map" about={value && about(value)} crumb={ns ? <><a href={to('map')}>All namespaces</a> / {ns}</> : undefined}>
        <Live />
      </ViewHead>
      <Card flush>
        <div class="card-head">
          <Search label="Search the map" placeholder="Host, service or address" value={typed} onInput={setTyped} />
          <Namespaces value={ns} map={value} />
          {!ns && !q && <Choice label="Draw" value={group} onChange={(next) => amend({ group: next })} options={[['auto', 'Auto'], ['namespace', 'Namespaces'], ['none', 'Services']]} />}
          <span class="push"><Choice label="Show as" value={shape} onChange={(as) => amend({ as })} options={[['graph', 'Graph'], ['list', 'List']]} /></span>
        </div>
        <Asking asked={asked} lines={14} />
        {value && <Picture map={value} shape={shape} />}
      </Card>
    </div>
  );
}

function about(map: TrafficMap): string {
  const left = map.services_total - map.services_shown;
  const folded = map.vertices.some((one) => one.kind === 'namespace');
  if (folded) return `${plural(map.services_total, 'service')}, drawn as namespaces. Open one, or search.`;
  return `${plural(map.services_shown, 'service')}${left > 0 ? `; ${left} more without traffic are left out` : ''}. Figures are requests per second; wider lines carry more.`;
}

/** Namespaces of all maps so far: a map of one namespace does not name the others. */
const known = new Set<string>();

function Namespaces({ value, map }: { value: string; map: TrafficMap | null }) {
  const all = useMemo(() => {
    for (const one of map?.vertices ?? []) if (one.namespace) known.add(one.namespace);
    if (value) known.add(value);
    return [...known].sort();
  }, [map, value]);
  return (
    <select class="select" aria-label="Namespace" value={value} onChange={(e) => amend({ ns: e.currentTarget.value })}>
      <option value="">All namespaces</option>
      {all.map((one) => <option key={one}>{one}</option>)}
    </select>
  );
}

function Picture({ map, shape }: { map: TrafficMap; shape: Shape }) {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const [chosen, setChosen] = useState<string | null>(null);
  const layout = useMemo(() => layOut(map, opened), [map, opened]);
  if (!map.vertices.length) return <Empty icon="map" title="Nothing to draw"><p>No service fits. Change the search, or the namespace.</p></Empty>;
  if (shape === 'list') return <Tree map={map} />;
  const vertex = chosen ? (layout.placed.get(chosen)?.vertex ?? layout.nodes.find((one) => one.id === chosen) ?? null) : null;
  const all = overview.value?.counts;
  const folded = map.vertices.some((one) => one.kind === 'namespace');
  const counts = folded && all ? { route: all.routes, service: all.services, endpoint: all.endpoints, node: all.nodes } : null;
  const open = (one: Vertex) => {
    const href = link(one);
    if (href) go(href);
  };
  const choose = (id: string | null) => {
    if (id?.startsWith(MORE)) setOpened(new Set([...opened, id.slice(MORE.length)]));
    else setChosen(id);
  };
  return (
    <>
      <Graph layout={layout} counts={counts} chosen={chosen} onChoose={choose} onOpen={open} />
      <div class="map-foot" role="status">{vertex ? <Chosen vertex={vertex} map={map} /> : <Legend />}</div>
    </>
  );
}

function Chosen({ vertex, map }: { vertex: Vertex; map: TrafficMap }) {
  const decisions = decisionsOn(vertex, map);
  const href = link(vertex);
  const share = vertex.rate ? (vertex.error_rate ?? 0) / vertex.rate : 0;
  return (
    <>
      <StateBadge state={vertex.state} />
      <span class="break"><span class="faint">{vertex.kind}</span> <strong>{vertex.namespace && vertex.kind === 'service' ? `${vertex.namespace}/` : ''}{vertex.label}</strong></span>
      {vertex.note && <span class="muted">{vertex.note}</span>}
      <Said items={decisions} />
      {vertex.overridden && !decisions.length && <Badge tone="warn" icon="overrides">overridden</Badge>}
      {vertex.rate != null && <span class="muted">{rate(vertex.rate)} requests/s · {percent(share)} errors</span>}
      {href && <a class="btn tiny push" href={href}>Open<Icon name="right" /></a>}
    </>
  );
}

function Legend() {
  const line = (kind: string, width: number) => <svg width="28" height="10" aria-hidden="true"><g class={`edges ${kind}`}><path class={`edge ${kind}`} stroke-width={width} d="M0 5h28" /></g></svg>;
  return (
    <ul class="map-legend">
      <li>{line('busy', 2)}{line('busy', 5)} requests/s</li>
      <li>{line('bad', 4)} 1 % errors and more</li>
      <li>{line('closed', 1.5)} no new traffic</li>
      <li>{line('still', 1)} not counted, or idle</li>
      <li><span class="mark">◆</span> decided by people</li>
    </ul>
  );
}
