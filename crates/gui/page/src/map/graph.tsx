// The traffic map as a graph: vertices are buttons, edges are curves below them. Only what is in sight is drawn.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { count, percent, rate } from '../format';
import type { Edge, Vertex } from '../types';
import { edgeWidth, related, type Layout } from './layout';

const ROW_H = 31;
const NODE_H = 26;
const HEAD_H = 30;
const MARGIN = 260;
const TITLES: Record<string, string> = { host: 'Host', route: 'Route', service: 'Service', endpoint: 'Endpoint', node: 'Node' };
const COLUMN_W_MIN = 168;

interface Props {
  layout: Layout;
  /** How many there are of each kind, where vertices stand for many. */
  counts?: Partial<Record<string, number>> | null;
  chosen: string | null;
  onChoose: (id: string | null) => void;
  onOpen: (vertex: Vertex) => void;
}

interface Point { x: number; y: number }

export function Graph({ layout, counts, chosen, onChoose, onOpen }: Props) {
  const pane = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600, width: 1000 });
  useLayoutEffect(() => {
    const box = pane.current;
    if (!box) return;
    let frame = 0;
    const look = () => {
      frame = 0;
      setView({ top: box.scrollTop, height: box.clientHeight, width: box.clientWidth });
    };
    const later = () => {
      frame ||= requestAnimationFrame(look);
    };
    look();
    box.addEventListener('scroll', later, { passive: true });
    const watch = new ResizeObserver(later);
    watch.observe(box);
    return () => {
      cancelAnimationFrame(frame);
      box.removeEventListener('scroll', later);
      watch.disconnect();
    };
  }, []);
  useEffect(() => {
    if (pane.current) pane.current.scrollTop = 0;
  }, [layout.columns.join()]);

  const lit = useMemo(() => (chosen && (layout.placed.has(chosen) || layout.nodes.some((n) => n.id === chosen)) ? related(layout.edges, chosen) : null), [layout, chosen]);
  const width = Math.max(view.width, layout.columns.length * COLUMN_W_MIN);
  const columnW = width / layout.columns.length;
  const boxW = Math.min(250, columnW - 56);
  const height = layout.rows * ROW_H + 24;
  const left = (column: number) => {
    const last = layout.columns.length - 1;
    return last === 0 ? 12 : 12 + (column / last) * (width - 24 - boxW);
  };
  // Nodes stay in sight: they are placed within what is seen.
  const nodeColumn = layout.columns.indexOf('node');
  const nodeStep = Math.max(NODE_H + 4, (Math.min(view.height - HEAD_H, height) - 24) / Math.max(1, layout.nodes.length));
  const nodeTop = Math.min(view.top, Math.max(0, height - view.height));
  const nodeY = new Map(layout.nodes.map((one, i) => [one.id, nodeTop + 12 + nodeStep * (i + 0.5)]));

  const centre = (id: string): Point | null => {
    const at = layout.placed.get(id);
    if (at) return { x: left(at.column), y: 12 + at.row * ROW_H };
    const y = nodeY.get(id);
    return y == null ? null : { x: left(nodeColumn), y };
  };
  const [from, to] = [view.top - MARGIN, view.top + view.height + MARGIN];
  const vertices = [...layout.placed.values()].filter((one) => {
    const y = 12 + one.row * ROW_H;
    return y >= from && y <= to;
  });
  const seen = useEdges(layout, from, to);

  return (
    <div class="map-pane" ref={pane} role="group" aria-label="Traffic map" tabIndex={0} onKeyDown={(e) => step(e, layout)}>
      <div class="map-inner" style={{ width: `${width}px`, height: `${height + HEAD_H}px` }}>
        <div class="map-heads" aria-hidden="true" style={{ width: `${width}px` }}>
          {layout.columns.map((kind, i) => <span key={kind} style={{ left: `${left(i)}px` }}>{TITLES[kind]}{counts?.[kind] != null && <b>{count(counts[kind])}</b>}</span>)}
        </div>
        <svg class="map-edges" width={width} height={Math.min(height, view.height + 2 * MARGIN)} aria-hidden="true" focusable="false"
          style={{ top: `${HEAD_H + Math.max(0, from)}px` }}
          viewBox={`0 ${Math.max(0, from)} ${width} ${Math.min(height, view.height + 2 * MARGIN)}`}>
          {seen.map((edge) => {
            const [a, b] = [centre(edge.from), centre(edge.to)];
            return a && b && <Curve key={`${edge.from}\n${edge.to}`} edge={edge} a={{ x: a.x + boxW, y: a.y }} b={b} lit={lit ? lit.has(edge.from) && lit.has(edge.to) : null} />;
          })}
        </svg>
        {vertices.map(({ vertex, column, row }) => (
          <Box key={vertex.id} vertex={vertex} x={left(column)} y={HEAD_H + 12 + row * ROW_H} w={boxW} state={stateOf(vertex.id, chosen, lit)} onChoose={onChoose} onOpen={onOpen} />
        ))}
        {layout.nodes.map((vertex) => (
          <Box key={vertex.id} vertex={vertex} x={left(nodeColumn)} y={HEAD_H + (nodeY.get(vertex.id) ?? 0)} w={boxW} state={stateOf(vertex.id, chosen, lit)} onChoose={onChoose} onOpen={onOpen} />
        ))}
      </div>
    </div>
  );
}

/** The edges that cross what is in sight. */
function useEdges(layout: Layout, from: number, to: number): Edge[] {
  return layout.edges.filter((edge) => {
    const a = layout.placed.get(edge.from);
    if (!a) return false;
    const ya = 12 + a.row * ROW_H;
    const b = layout.placed.get(edge.to);
    // An edge to a node, which moves along, is drawn while its other end is in sight.
    if (!b) return ya >= from + MARGIN && ya <= to - MARGIN;
    const yb = 12 + b.row * ROW_H;
    return Math.max(ya, yb) >= from && Math.min(ya, yb) <= to;
  });
}

function stateOf(id: string, chosen: string | null, lit: Set<string> | null): string {
  if (id === chosen) return 'is-chosen';
  return lit && !lit.has(id) ? 'is-away' : '';
}

function Curve({ edge, a, b, lit }: { edge: Edge; a: Point; b: Point; lit: boolean | null }) {
  const bend = Math.max(24, (b.x - a.x) / 2);
  const share = edge.rate ? (edge.error_rate ?? 0) / edge.rate : 0;
  const kind = edge.closed ? 'closed' : share >= 0.01 ? 'bad' : edge.rate ? 'busy' : 'still';
  const fade = lit == null ? '' : lit ? ' is-lit' : ' is-away';
  const end = b.x - 2;
  return (
    <path class={`edge ${kind}${fade}`} stroke-width={edgeWidth(edge.rate)}
      d={`M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + bend).toFixed(1)} ${a.y.toFixed(1)} ${(end - bend).toFixed(1)} ${b.y.toFixed(1)} ${end.toFixed(1)} ${b.y.toFixed(1)}`} />
  );
}

function Box({ vertex, x, y, w, state, onChoose, onOpen }: { vertex: Vertex; x: number; y: number; w: number; state: string; onChoose: (id: string | null) => void; onOpen: (vertex: Vertex) => void }) {
  const share = vertex.rate ? (vertex.error_rate ?? 0) / vertex.rate : 0;
  const bad = share >= 0.01;
  return (
    <button type="button" class={`vertex k-${vertex.kind} st-${vertex.state} ${state}`} data-id={vertex.id}
      style={{ left: `${x}px`, top: `${y - NODE_H / 2}px`, width: `${w}px`, height: `${NODE_H}px` }}
      aria-pressed={state === 'is-chosen'} title={describe(vertex)}
      onClick={() => onChoose(state === 'is-chosen' ? null : vertex.id)} onDblClick={() => onOpen(vertex)}
      onKeyDown={(e) => {
        if (e.key === 'Escape') onChoose(null);
      }}>
      <span class="shape" aria-hidden="true" />
      <span class="label">{vertex.label}</span>
      {vertex.overridden && <span class="mark" aria-hidden="true">◆</span>}
      <span class={bad ? 'figure bad' : 'figure'}>{bad ? `! ${percent(share)}` : vertex.rate ? rate(vertex.rate) : vertex.note}</span>
      <span class="sr">{`, ${describe(vertex)}`}</span>
    </button>
  );
}

/** Arrow keys go along the edges, and up and down within a column. */
function step(event: KeyboardEvent & { currentTarget: HTMLElement }, layout: Layout): void {
  const at = event.target instanceof HTMLElement ? event.target.dataset['id'] : undefined;
  const here = at == null ? null : (event.target as HTMLElement);
  if (at == null || !here || !event.key.startsWith('Arrow')) return;
  const y = (box: Element) => box.getBoundingClientRect().top;
  const boxes = [...event.currentTarget.querySelectorAll<HTMLElement>('.vertex')];
  const along = event.key === 'ArrowRight' || event.key === 'ArrowLeft';
  const wanted = new Set(layout.edges.flatMap((edge) => {
    if (event.key === 'ArrowRight' && edge.from === at) return [edge.to];
    return event.key === 'ArrowLeft' && edge.to === at ? [edge.from] : [];
  }));
  const down = event.key === 'ArrowDown' ? 1 : -1;
  const found = boxes.filter((box) => (along
    ? wanted.has(box.dataset['id'] ?? '')
    : box.style.left === here.style.left && (y(box) - y(here)) * down > 1));
  found.sort((a, b) => Math.abs(y(a) - y(here)) - Math.abs(y(b) - y(here)));
  if (!found[0]) return;
  event.preventDefault();
  found[0].focus();
}

export function describe(vertex: Vertex): string {
  const share = vertex.rate ? (vertex.error_rate ?? 0) / vertex.rate : 0;
  return [
    `${vertex.kind} ${vertex.namespace && vertex.kind === 'service' ? `${vertex.namespace}/` : ''}${vertex.label}`,
    vertex.state === 'ok' || vertex.state === 'idle' ? '' : vertex.state,
    vertex.note,
    vertex.rate == null ? '' : `${rate(vertex.rate)} requests a second`,
    share > 0 ? `${percent(share)} errors` : '',
    vertex.overridden ? 'overridden' : '',
  ].filter(Boolean).join(', ');
}
