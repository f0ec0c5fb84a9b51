// How wide each column of the traffic map is: as its names need, as far as there is room.
import type { Vertex } from '../types';
import { columnOf, namespaceBefore, type Layout } from './layout';

const BOX_MIN = 104;
const BOX_MAX = 290;
const GAP_MIN = 32;
const EDGE = 12;
/** Before the nodes there are lanes. */
const LANE = 9;
/** Lines there cross: they need room to be told apart. */
const NODE_GAP_MIN = 88;
const CHAR_W = 6.6;
/** State, mark and paddings of a box. */
const FRAME_W = 48;

export interface Place { left: number; width: number }

export function spread(layout: Layout, room: number): { columns: Place[]; width: number } {
  const wished = layout.columns.map(() => BOX_MIN);
  const wish = (vertex: Vertex) => {
    const column = layout.columns.indexOf(columnOf(vertex.kind));
    const failing = vertex.rate && vertex.error_rate ? 6 : 0;
    const figure = (vertex.rate ? 4 + failing : vertex.kind === 'service' ? 4 : vertex.note.length) + (vertex.overridden ? 3 : 0);
    const name = namespaceBefore(vertex, layout.shared).length + vertex.label.length;
    wished[column] = Math.min(BOX_MAX, Math.max(wished[column] ?? 0, FRAME_W + (name + figure) * CHAR_W));
  };
  for (const { vertex } of layout.placed.values()) wish(vertex);
  layout.nodes.forEach(wish);
  const gaps = layout.columns.slice(1).map((kind) => (kind === 'node' ? Math.max(NODE_GAP_MIN, LANE * (layout.nodes.length + 2)) : GAP_MIN));
  const free = room - 2 * EDGE - sum(gaps);
  // What is missing is taken from the widest; what is left over goes between them.
  const widths = sum(wished) > free ? narrowed(wished, free) : wished;
  const over = Math.max(0, free - sum(widths)) / Math.max(1, gaps.length);
  let left = EDGE;
  const columns = widths.map((width, i) => {
    const place = { left, width };
    left += width + (gaps[i] ?? 0) + (i < gaps.length ? over : 0);
    return place;
  });
  return { columns, width: Math.max(room, left + EDGE) };
}

/** Widths with a sum of `room`, by cutting the widest first; never below what a box needs. */
function narrowed(wished: number[], room: number): number[] {
  let [low, high] = [BOX_MIN, BOX_MAX];
  for (let i = 0; i < 20; i += 1) {
    const middle = (low + high) / 2;
    if (sum(wished.map((one) => Math.min(one, middle))) > room) high = middle;
    else low = middle;
  }
  return wished.map((one) => Math.floor(Math.min(one, low)));
}

function sum(all: number[]): number {
  return all.reduce((a, b) => a + b, 0);
}
