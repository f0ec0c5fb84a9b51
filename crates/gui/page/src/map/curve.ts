// The lines of the traffic map.
import type { Edge, Vertex } from '../types';

export interface Point { x: number; y: number }

export type EdgeKind = 'still' | 'busy' | 'closed' | 'bad';
/** In the order in which they are drawn: what is wrong lies above. */
export const EDGE_KINDS: EdgeKind[] = ['still', 'busy', 'closed', 'bad'];
/** A share of errors from which on a line is red. */
export const ERRORS_BAD = 0.01;

const CORNER = 9;
const LANE_MAX = 16;

export function edgeKind(edge: Edge): EdgeKind {
  if (edge.closed) return 'closed';
  const share = edge.rate ? (edge.error_rate ?? 0) / edge.rate : 0;
  return share >= ERRORS_BAD ? 'bad' : edge.rate ? 'busy' : 'still';
}

/** Each node has a lane of its own before the column of nodes: what leads there goes by it, so that many lines are one. */
export function byNode(nodes: Vertex[], from: number, to: number): Map<string, number> {
  const step = Math.min(LANE_MAX, (to - from) / (nodes.length + 1));
  const first = (from + to) / 2 - (step * (nodes.length - 1)) / 2;
  return new Map(nodes.map((one, i) => [one.id, first + step * i]));
}

/** A line from one box to another: a bow, or by a lane with rounded corners. */
export function follow(a: Point, b: Point, lane?: number): string {
  const end = b.x - 2;
  const y = b.y - a.y;
  if (lane == null || Math.abs(y) < 2 * CORNER) {
    const bend = Math.max(16, (b.x - a.x) / 2);
    return `M${f(a.x)} ${f(a.y)}C${f(a.x + bend)} ${f(a.y)} ${f(end - bend)} ${f(b.y)} ${f(end)} ${f(b.y)}`;
  }
  const r = Math.sign(y) * CORNER;
  return `M${f(a.x)} ${f(a.y)}H${f(lane - CORNER)}Q${f(lane)} ${f(a.y)} ${f(lane)} ${f(a.y + r)}V${f(b.y - r)}Q${f(lane)} ${f(b.y)} ${f(lane + CORNER)} ${f(b.y)}H${f(end)}`;
}

function f(n: number): string {
  return n.toFixed(1);
}
