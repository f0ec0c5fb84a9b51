// The traffic map as a graph: vertices are buttons, edges are curves below them. Only what is in sight is drawn.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { count, percent, rate } from '../format';
import type { Edge, Vertex } from '../types';
import { byNode, edgeKind, EDGE_KINDS, ERRORS_BAD, follow, type Point } from './curve';
import { edgeWidth, namespaceBefore, related, type Layout } from './layout';
import { spread } from './spread';

const ROW_H = 31;
const NODE_H = 26;
const HEAD_H = 30;
const MARGIN = 260;
const LABEL_TAIL = 6;
/** So many lines to nodes are drawn one by one. */
const BOWS_MAX = 48;
const TITLES: Record<string, string> = { host: 'Host', route: 'Route', service: 'Service', endpoint: 'Endpoint', node: 'Node' };
/** A picture up to so high is shown whole; a higher one scrolls within its pane. */
const WHOLE_H_MAX = 1000;

interface Props {
  layout: Layout;
  /** How many there are of each kind, where vertices stand for many. */
  counts?: Partial<Record<string, number>> | null;
  chosen: string | null;
  onChoose: (id: string | null) => void;
  onOpen: (vertex: Vertex) => void;
}

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

  const [pointed, setPointed] = useState<string | null>(null);
  const about = chosen ?? pointed;
  const lit = useMemo(() => (about && (layout.placed.has(about) || layout.nodes.some((n) => n.id === about)) ? related(layout.edges, about) : null), [layout, about]);
  const { columns, width } = useMemo(() => spread(layout, view.width), [layout, view.width]);
  const height = layout.rows * ROW_H + 24;
  const left = (column: number) => columns[column]?.left ?? 0;
  const boxW = (column: number) => columns[column]?.width ?? 0;
  // Nodes stay in sight: they are placed within what is seen.
  const nodeColumn = layout.columns.indexOf('node');
  const nodeStep = Math.max(NODE_H + 4, (Math.min(view.height - HEAD_H, height) - 24) / Math.max(1, layout.nodes.length));
  const nodeTop = Math.min(view.top, Math.max(0, height - view.height));
  const nodeY = new Map(layout.nodes.map((one, i) => [one.id, nodeTop + 12 + nodeStep * (i + 0.5)]));

  const end = (id: string, right: boolean): Point | null => {
    const at = layout.placed.get(id);
    const column = at?.column ?? nodeColumn;
    const y = at ? 12 + at.row * ROW_H : nodeY.get(id);
    return y == null ? null : { x: left(column) + (right ? boxW(column) : 0), y };
  };
  // A few lines can each be followed by themselves; many are gathered before their node.
  const toNodes = layout.edges.filter((edge) => nodeY.has(edge.to)).length;
  const lanes = toNodes > BOWS_MAX ? byNode(layout.nodes, left(nodeColumn - 1) + boxW(nodeColumn - 1), left(nodeColumn)) : new Map<string, number>();
  const [from, to] = [view.top - MARGIN, view.top + view.height + MARGIN];
  const vertices = [...layout.placed.values()].filter((one) => {
    const y = 12 + one.row * ROW_H;
    return y >= from && y <= to;
  });
  const seen = useEdges(layout, from, to);

  return (
    <div class="map-pane" ref={pane} role="group" aria-label="Traffic map" tabIndex={0} onKeyDown={(e) => step(e, layout)}
      style={{ height: height + HEAD_H <= WHOLE_H_MAX ? `${height + HEAD_H + 2}px` : '' }}>
      <div class="map-inner" style={{ width: `${width}px`, height: `${height + HEAD_H}px` }}>
        <div class="map-heads" aria-hidden="true" style={{ width: `${width}px` }}>
          {layout.columns.map((kind, i) => <span key={kind} style={{ left: `${left(i)}px` }}>{TITLES[kind]}{counts?.[kind] != null && <b>{count(counts[kind])}</b>}</span>)}
        </div>
        <svg class="map-edges" width={width} height={Math.min(height, view.height + 2 * MARGIN)} aria-hidden="true" focusable="false"
          style={{ top: `${HEAD_H + Math.max(0, from)}px` }}
          viewBox={`0 ${Math.max(0, from)} ${width} ${Math.min(height, view.height + 2 * MARGIN)}`}>
          {EDGE_KINDS.flatMap((kind) => [false, true].map((away) => (
            <g key={kind + String(away)} class={`edges ${kind}${away ? ' is-away' : lit ? ' is-lit' : ''}`}>
              {seen.map((edge) => {
                if (edgeKind(edge) !== kind || away !== (lit != null && !(lit.has(edge.from) && lit.has(edge.to)))) return null;
                const [a, b] = [end(edge.from, true), end(edge.to, false)];
                return a && b && <path key={`${edge.from}\n${edge.to}`} class={`edge ${kind}`} stroke-width={edgeWidth(edge.rate)} d={follow(a, b, lanes.get(edge.to))} />;
              })}
            </g>
          )))}
        </svg>
        {vertices.map(({ vertex, column, row }) => (
          <Box key={vertex.id} vertex={vertex} before={namespaceBefore(vertex, layout.shared)} x={left(column)} y={HEAD_H + 12 + row * ROW_H} w={boxW(column)} state={stateOf(vertex.id, chosen, lit)} onChoose={onChoose} onOpen={onOpen} onPoint={setPointed} />
        ))}
        {layout.nodes.map((vertex) => (
          <Box key={vertex.id} vertex={vertex} before={namespaceBefore(vertex, layout.shared)} x={left(nodeColumn)} y={HEAD_H + (nodeY.get(vertex.id) ?? 0)} w={boxW(nodeColumn)} state={stateOf(vertex.id, chosen, lit)} onChoose={onChoose} onOpen={onOpen} onPoint={setPointed} />
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

interface BoxProps {
  vertex: Vertex;
  /** Its namespace, where its name alone would not do. */
  before: string;
  x: number;
  y: number;
  w: number;
  state: string;
  onChoose: (id: string | null) => void;
  onOpen: (vertex: Vertex) => void;
  onPoint: (id: string | null) => void;
}

function Box({ vertex, before, x, y, w, state, onChoose, onOpen, onPoint }: BoxProps) {
  return (
    <button type="button" class={`vertex k-${vertex.kind} st-${vertex.state} ${state}`} data-id={vertex.id}
      style={{ left: `${x}px`, top: `${y - NODE_H / 2}px`, width: `${w}px`, height: `${NODE_H}px` }}
      aria-pressed={state === 'is-chosen'} title={describe(vertex)}
      onPointerEnter={(e) => e.pointerType === 'mouse' && onPoint(vertex.id)} onPointerLeave={() => onPoint(null)}
      onClick={() => onChoose(state === 'is-chosen' ? null : vertex.id)} onDblClick={() => onOpen(vertex)}
      onKeyDown={(e) => {
        if (e.key === 'Escape') onChoose(null);
      }}>
      <span class="shape" aria-hidden="true" />
      <Label vertex={vertex} before={before} />
      {vertex.overridden && <span class="mark" aria-hidden="true">◆</span>}
      <Figure vertex={vertex} />
      <span class="sr">{`, ${describe(vertex)}`}</span>
    </button>
  );
}

/** Names of pods and services differ at their ends: where there is no room the middle is left out. */
function Label({ vertex: { kind, label }, before }: { vertex: Vertex; before: string }) {
  const tail = kind === 'host' || label.length <= LABEL_TAIL + 1 ? 0 : LABEL_TAIL;
  return (
    <span class="label">
      {before && <span class="ns">{before}</span>}
      <span class="head">{label.slice(0, label.length - tail)}</span>
      {tail > 0 && <span class="tail">{label.slice(-tail)}</span>}
    </span>
  );
}

/** Requests a second, and where too many fail, how many; else a word. */
function Figure({ vertex }: { vertex: Vertex }) {
  const share = vertex.rate ? (vertex.error_rate ?? 0) / vertex.rate : 0;
  if (share >= ERRORS_BAD) return <span class="figure">{rate(vertex.rate)} <span class="figure bad">! {percent(share)}</span></span>;
  return <span class="figure">{vertex.rate ? rate(vertex.rate) : shortNote(vertex)}</span>;
}

/** `1/2 ready` is `1/2` in a box: what it counts stands in words where the box is described. */
function shortNote({ kind, note }: Vertex): string {
  return kind === 'service' ? note.replace(/ ready$/, '') : note;
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
