// Where everything of the traffic map stands. Pure: the same map gives the same picture.
//
// Columns from left to right: host, route, service (or namespace), endpoint, node. A service and what
// belongs to it is a block of rows; blocks are stacked. Nodes have no row: they stay in sight.
import type { Edge, TrafficMap, Vertex, VertexKind } from '../types';

export interface Placed {
  vertex: Vertex;
  column: number;
  /** The row of its middle. */
  row: number;
}

export interface Layout {
  placed: Map<string, Placed>;
  /** From left to right, those that are there. */
  columns: VertexKind[];
  rows: number;
  edges: Edge[];
  /** Nodes, in order. */
  nodes: Vertex[];
  /** Names that services of several namespaces have: there the namespace is said too. */
  shared: ReadonlySet<string>;
}

/** Before the name of a service whose name others have too. */
export function namespaceBefore(vertex: Vertex, shared: ReadonlySet<string>): string {
  return vertex.kind === 'service' && vertex.namespace && shared.has(vertex.label) ? `${vertex.namespace}/` : '';
}

/** Names that more than one service has. */
function sharedNames(vertices: Vertex[]): ReadonlySet<string> {
  const seen = new Set<string>();
  const shared = new Set<string>();
  for (const { kind, label } of vertices) {
    if (kind !== 'service') continue;
    if (seen.has(label)) shared.add(label);
    seen.add(label);
  }
  return shared;
}

export const MORE = 'more:';
/** Sorts after every host. */
const NO_HOST = '\uffff';
const GAP_ROWS = 0.45;
/** So many endpoints of a service are drawn; the others are one vertex, until somebody opens it. */
export const ENDPOINTS_DRAWN_MAX = 8;

const ORDER: VertexKind[] = ['host', 'route', 'service', 'endpoint', 'node'];

export function columnOf(kind: VertexKind): VertexKind {
  return kind === 'namespace' ? 'service' : kind;
}

export function layOut(whole: TrafficMap, opened: ReadonlySet<string>): Layout {
  const map = gatherEndpoints(whole, opened);
  const byId = new Map(map.vertices.map((one) => [one.id, one]));
  const out = group(map.edges, (edge) => edge.from);
  const into = group(map.edges, (edge) => edge.to);
  const present = new Set(map.vertices.map((one) => columnOf(one.kind)));
  const columns = ORDER.filter((kind) => present.has(kind));
  const placed = new Map<string, Placed>();
  const put = (vertex: Vertex, row: number) => placed.set(vertex.id, { vertex, row, column: columns.indexOf(columnOf(vertex.kind)) });

  let top = 0;
  for (const middle of inOrder(map.vertices, into, byId)) {
    const endpoints = ends(out.get(middle.id), 'to', 'endpoint', byId, placed);
    const routes = ends(into.get(middle.id), 'from', 'route', byId, placed);
    const height = Math.max(1, endpoints.length, routes.length);
    const centre = top + height / 2;
    put(middle, centre);
    stack(endpoints, centre, put);
    stack(routes, centre, put);
    top += height + GAP_ROWS;
  }
  // Routes that lead to no service: redirects and answers of our own.
  for (const vertex of map.vertices) {
    if (placed.has(vertex.id) || (vertex.kind !== 'route' && vertex.kind !== 'endpoint')) continue;
    put(vertex, top + 0.5);
    top += 1;
  }
  top = placeHosts(map.vertices, out, placed, put, top);
  return {
    placed,
    columns,
    rows: Math.max(1, top),
    edges: map.edges,
    shared: sharedNames(map.vertices),
    nodes: map.vertices.filter((one) => one.kind === 'node').sort((a, b) => a.label.localeCompare(b.label, 'en', { numeric: true })),
  };
}

function group(edges: Edge[], key: (edge: Edge) => string): Map<string, Edge[]> {
  const groups = new Map<string, Edge[]>();
  for (const edge of edges) {
    const at = key(edge);
    const had = groups.get(at);
    if (had) had.push(edge);
    else groups.set(at, [edge]);
  }
  return groups;
}

/** Services and namespaces: those that hosts lead to first, by host, then by name. */
function inOrder(vertices: Vertex[], into: Map<string, Edge[]>, byId: Map<string, Vertex>): Vertex[] {
  const hostOf = (id: string, depth: number): string => {
    let best = NO_HOST;
    for (const edge of into.get(id) ?? []) {
      const from = byId.get(edge.from);
      if (!from) continue;
      const found = from.kind === 'host' ? from.label : depth > 0 ? hostOf(from.id, depth - 1) : NO_HOST;
      if (found < best) best = found;
    }
    return best;
  };
  return vertices
    .filter((one) => one.kind === 'service' || one.kind === 'namespace')
    .map((one) => [hostOf(one.id, 2), one.namespace ?? '', one.label, one] as const)
    .sort((a, b) => Number(a[0] === NO_HOST) - Number(b[0] === NO_HOST) || cmp(a[0], b[0]) || cmp(a[1], b[1]) || cmp(a[2], b[2]))
    .map((one) => one[3]);
}

const collator = new Intl.Collator('en', { numeric: true });

function cmp(a: string, b: string): number {
  return collator.compare(a, b);
}

function ends(edges: Edge[] | undefined, side: 'from' | 'to', kind: VertexKind, byId: Map<string, Vertex>, placed: Map<string, Placed>): Vertex[] {
  const found = (edges ?? []).flatMap((edge) => {
    const vertex = byId.get(edge[side]);
    return vertex && vertex.kind === kind && !placed.has(vertex.id) ? [vertex] : [];
  });
  return found.sort((a, b) => Number(a.id.startsWith(MORE)) - Number(b.id.startsWith(MORE)) || cmp(a.label, b.label) || cmp(a.id, b.id));
}

function stack(vertices: Vertex[], centre: number, put: (vertex: Vertex, row: number) => void): void {
  vertices.forEach((vertex, i) => put(vertex, centre + i - (vertices.length - 1) / 2));
}

/** Each host beside the middle of what it leads to, none on another. */
function placeHosts(vertices: Vertex[], out: Map<string, Edge[]>, placed: Map<string, Placed>, put: (vertex: Vertex, row: number) => void, rows: number): number {
  const wishes = vertices.filter((one) => one.kind === 'host').map((host) => {
    const led = (out.get(host.id) ?? []).flatMap((edge) => placed.get(edge.to)?.row ?? []);
    return { host, row: led.length ? led.reduce((a, b) => a + b, 0) / led.length : rows };
  });
  wishes.sort((a, b) => a.row - b.row || cmp(a.host.label, b.host.label));
  let free = 0.5;
  for (const { host, row } of wishes) {
    const at = Math.max(free, row);
    put(host, at);
    free = at + 1;
  }
  return Math.max(rows, free - 0.5);
}

/** Many endpoints of one service become one vertex. */
function gatherEndpoints(map: TrafficMap, opened: ReadonlySet<string>): TrafficMap {
  const kinds = new Map(map.vertices.map((one) => [one.id, one]));
  const bySource = new Map<string, Edge[]>();
  for (const edge of map.edges) {
    if (kinds.get(edge.to)?.kind !== 'endpoint') continue;
    const had = bySource.get(edge.from);
    if (had) had.push(edge);
    else bySource.set(edge.from, [edge]);
  }
  const hidden = new Map<string, string>();
  const vertices: Vertex[] = [];
  for (const [source, edges] of bySource) {
    if (opened.has(source) || edges.length <= ENDPOINTS_DRAWN_MAX) continue;
    // What is wrong, and what carries most, stays.
    const ranked = edges.toSorted((a, b) => urgency(kinds.get(b.to), b) - urgency(kinds.get(a.to), a));
    const rest = ranked.slice(ENDPOINTS_DRAWN_MAX - 1);
    const id = MORE + source;
    for (const edge of rest) hidden.set(edge.to, id);
    vertices.push({
      id,
      kind: 'endpoint',
      label: `${rest.length} more`,
      namespace: null,
      state: 'ok',
      note: 'endpoints',
      overridden: false,
      rate: total(rest, (edge) => edge.rate),
      error_rate: total(rest, (edge) => edge.error_rate),
    });
  }
  if (!hidden.size) return map;
  const merged = new Map<string, Edge>();
  for (const edge of map.edges) {
    const from = hidden.get(edge.from) ?? edge.from;
    const to = hidden.get(edge.to) ?? edge.to;
    const key = `${from}\n${to}`;
    const had = merged.get(key);
    merged.set(key, had
      ? { ...had, rate: add(had.rate, edge.rate), error_rate: add(had.error_rate, edge.error_rate), closed: had.closed && edge.closed }
      : { ...edge, from, to });
  }
  return { ...map, vertices: [...map.vertices.filter((one) => !hidden.has(one.id)), ...vertices], edges: [...merged.values()] };
}

function urgency(vertex: Vertex | undefined, edge: Edge): number {
  const bad = vertex?.overridden || vertex?.state === 'error' || vertex?.state === 'warning' ? 1e9 : 0;
  return bad + (edge.rate ?? 0);
}

function add(a: number | null, b: number | null): number | null {
  return a == null && b == null ? null : (a ?? 0) + (b ?? 0);
}

function total(edges: Edge[], of: (edge: Edge) => number | null): number | null {
  return edges.reduce<number | null>((sum, edge) => add(sum, of(edge)), null);
}

/** The width of an edge: grows with the logarithm of its rate, so that small and large are both seen. */
export function edgeWidth(rate: number | null): number {
  if (!rate || rate <= 0) return 1.25;
  return Math.min(9, 1.5 + 1.9 * Math.log10(1 + rate));
}

/** What can be reached from a vertex, along and against the edges. */
export function related(edges: Edge[], id: string): Set<string> {
  const seen = new Set([id]);
  const out = group(edges, (edge) => edge.from);
  const into = group(edges, (edge) => edge.to);
  const walk = (by: Map<string, Edge[]>, side: 'from' | 'to') => {
    const queue = [id];
    for (let at = queue.pop(); at != null; at = queue.pop()) {
      for (const edge of by.get(at) ?? []) {
        if (seen.has(edge[side])) continue;
        seen.add(edge[side]);
        queue.push(edge[side]);
      }
    }
  };
  walk(out, 'to');
  walk(into, 'from');
  return seen;
}
