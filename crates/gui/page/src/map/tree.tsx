// The traffic map as a list: the same facts for narrow screens and for those who read instead of look.
import { useMemo, useState } from 'preact/hooks';
import { percent, rate } from '../format';
import { Icon } from '../ui/icons';
import type { Edge, TrafficMap, Vertex } from '../types';
import { Said } from '../views/decided';
import { StateBadge } from '../views/state';
import { decisionsOn } from './decisions';
import { link } from './link';

/** Lists longer than this begin closed. */
const OPEN_MAX = 12;
const DEPTH_MAX = 5;

export function Tree({ map }: { map: TrafficMap }) {
  const { byId, out, roots } = useMemo(() => {
    const known = new Map(map.vertices.map((one) => [one.id, one]));
    const leads = new Map<string, Edge[]>();
    const reached = new Set<string>();
    for (const edge of map.edges) {
      leads.set(edge.from, [...(leads.get(edge.from) ?? []), edge]);
      reached.add(edge.to);
    }
    return { byId: known, out: leads, roots: map.vertices.filter((one) => !reached.has(one.id) && one.kind !== 'node' && one.kind !== 'endpoint') };
  }, [map]);
  return (
    <ul class="tree">
      {roots.map((one) => <Branch key={one.id} map={map} vertex={one} edge={null} byId={byId} out={out} depth={0} open={roots.length <= OPEN_MAX} />)}
    </ul>
  );
}

function Branch({ map, vertex, edge, byId, out, depth, open: first }: { map: TrafficMap; vertex: Vertex; edge: Edge | null; byId: Map<string, Vertex>; out: Map<string, Edge[]>; depth: number; open: boolean }) {
  const [open, setOpen] = useState(first && depth < 3);
  const leads = (out.get(vertex.id) ?? []).filter((one) => byId.has(one.to));
  const below = vertex.kind === 'endpoint' ? [] : leads;
  const node = vertex.kind === 'endpoint' ? leads.map((one) => byId.get(one.to)?.label).join(', ') : '';
  const flow = edge?.rate ?? vertex.rate;
  const errors = edge?.rate ? (edge.error_rate ?? 0) / edge.rate : vertex.rate ? (vertex.error_rate ?? 0) / vertex.rate : 0;
  const href = link(vertex);
  return (
    <li>
      <div class="branch">
        {below.length > 0 && depth < DEPTH_MAX
          ? <button type="button" class="btn quiet icon tiny" aria-expanded={open} aria-label={`What ${vertex.label} leads to`} onClick={() => setOpen(!open)}><Icon name={open ? 'down' : 'right'} /></button>
          : <span class="leaf" aria-hidden="true" />}
        <span class="break">
          <span class="faint small">{vertex.kind} </span>
          {href ? <a href={href}>{vertex.label}</a> : <span>{vertex.label}</span>}
          {node && <span class="faint small"> on {node}</span>}
          {vertex.note && <span class="faint small"> · {vertex.note}</span>}
          {vertex.overridden && <span class="small tree-decided"><Said items={decisionsOn(vertex, map)} /></span>}
        </span>
        <span class="flow">
          {vertex.state !== 'ok' && vertex.state !== 'idle' && <StateBadge state={vertex.state} />}
          {flow != null && <span class="nowrap small">{rate(flow)}/s{errors >= 0.01 ? ` · ${percent(errors)} errors` : ''}</span>}
        </span>
      </div>
      {open && below.length > 0 && depth < DEPTH_MAX && (
        <ul>
          {below.map((one) => {
            const next = byId.get(one.to);
            return next && <Branch key={one.to} map={map} vertex={next} edge={one} byId={byId} out={out} depth={depth + 1} open={first} />;
          })}
        </ul>
      )}
    </li>
  );
}
