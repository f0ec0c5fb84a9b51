// Lines over time, drawn by ourselves in SVG.
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { clock } from '../format';
import { niceTicks, timeTicks } from './ticks';

export interface Series {
  name: string;
  /** 1 to 4: the colour and the pattern of the line. */
  tone: 1 | 2 | 3 | 4;
  values: (number | null)[];
  fill?: boolean;
}

interface Props {
  label: string;
  /** Milliseconds since 1970, ascending, one for each value. */
  times: number[];
  series: Series[];
  format: (value: number) => string;
  height?: number;
  /** The scale reaches at least this far. */
  atLeast?: number;
}

const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;

export function Chart({ label, times, series, format, height = 168, atLeast = 0 }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(560);
  const [at, setAt] = useState<number | null>(null);
  const id = useId();
  useEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => entry && setWidth(Math.max(220, Math.round(entry.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const first = times[0] ?? 0;
  const span = Math.max(1, (times.at(-1) ?? 0) - first);
  const highest = Math.max(atLeast, ...series.flatMap((one) => one.values.map((v) => v ?? 0)));
  const ticks = niceTicks(highest);
  const top = ticks.at(-1) || 1;
  const x = (i: number) => LEFT + (((times[i] ?? first) - first) / span) * (width - LEFT - RIGHT);
  const y = (v: number) => TOP + (1 - v / top) * (height - TOP - BOTTOM);
  const latest = series.map((one) => `${one.name} ${format(one.values.at(-1) ?? 0)}`).join(', ');

  const seek = (clientX: number) => {
    const left = box.current?.getBoundingClientRect().left ?? 0;
    const share = (clientX - left - LEFT) / Math.max(1, width - LEFT - RIGHT);
    setAt(nearest(times, first + share * span));
  };

  return (
    <figure class="chart" aria-labelledby={id}>
      <figcaption id={id} class="sr">{`${label}, from ${clock(first)} to ${clock(first + span)}. Now: ${latest}.`}</figcaption>
      <div ref={box} class="chart-box" onPointerMove={(e) => seek(e.clientX)} onPointerLeave={() => setAt(null)}>
        <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true" focusable="false">
          {ticks.map((tick) => (
            <g key={tick}>
              <line class="rule" x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} />
              <text class="tick" x={LEFT - 8} y={y(tick) + 3.5} text-anchor="end">{format(tick)}</text>
            </g>
          ))}
          {timeTicks(first, span, width).map((t) => (
            <text key={t} class="tick" text-anchor="middle" y={height - 6}
              x={LEFT + ((t - first) / span) * (width - LEFT - RIGHT)}>{clock(t).slice(0, span > 3 * 3_600_000 ? 5 : 8)}</text>
          ))}
          {series.map((one) => (
            <g key={one.name} class={`s${one.tone}`}>
              {one.fill && <path class="area" d={path(one.values, x, y, y(0))} />}
              <path class="line" d={path(one.values, x, y)} />
            </g>
          ))}
          {at != null && (
            <g>
              <line class="cursor" x1={x(at)} x2={x(at)} y1={TOP} y2={height - BOTTOM} />
              {series.map((one) => one.values[at] != null && (
                <circle key={one.name} class={`s${one.tone} point`} cx={x(at)} cy={y(one.values[at])} r="3" />
              ))}
            </g>
          )}
        </svg>
        {times.length === 0 && <p class="chart-none">No figures yet</p>}
      </div>
      <ul class="legend" aria-hidden="true">
        {series.map((one) => (
          <li key={one.name}>
            <svg width="16" height="8" class={`s${one.tone}`}><path class="line" d="M0 4h16" /></svg>
            {one.name}
            <b>{valueAt(one, at, format)}</b>
          </li>
        ))}
        <li class="when">{at == null ? 'now' : clock(times[at] ?? 0)}</li>
      </ul>
    </figure>
  );
}

/** A line alone, beside a figure. */
export function Spark({ values, tone = 1 }: { values: (number | null)[]; tone?: 1 | 2 | 3 | 4 }) {
  const highest = Math.max(1e-9, ...values.map((v) => v ?? 0));
  const last = Math.max(1, values.length - 1);
  const x = (i: number) => (i / last) * 200;
  const y = (v: number) => 30 - (v / highest) * 27;
  return (
    <svg class={`spark s${tone}`} viewBox="0 0 200 32" preserveAspectRatio="none" aria-hidden="true" focusable="false">
      {values.length > 1 && <path class="area" d={path(values, x, y, 32)} />}
      {values.length > 1 && <path class="line" d={path(values, x, y)} vector-effect="non-scaling-stroke" />}
    </svg>
  );
}

function valueAt(one: Series, at: number | null, format: (v: number) => string): string {
  const value = at == null ? one.values.at(-1) : one.values[at];
  return value == null ? '–' : format(value);
}

/** A path through the values, with gaps where there is none; down to `base` and closed if given. */
function path(values: (number | null)[], x: (i: number) => number, y: (v: number) => number, base?: number): string {
  let d = '';
  let start = -1;
  const end = (i: number) => {
    if (base != null && start >= 0) d += `L${f(x(i))} ${f(base)}L${f(x(start))} ${f(base)}Z`;
    start = -1;
  };
  values.forEach((v, i) => {
    if (v == null) {
      end(i - 1);
      return;
    }
    d += `${start < 0 ? 'M' : 'L'}${f(x(i))} ${f(y(v))}`;
    if (start < 0) start = i;
  });
  end(values.length - 1);
  return d;
}

function f(n: number): string {
  return n.toFixed(1);
}

function nearest(times: number[], t: number): number | null {
  if (!times.length) return null;
  let [low, high] = [0, times.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] ?? 0) < t) low = middle + 1;
    else high = middle;
  }
  return low > 0 && t - (times[low - 1] ?? 0) < (times[low] ?? 0) - t ? low - 1 : low;
}
