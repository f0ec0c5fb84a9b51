// Lines over time, drawn by ourselves in SVG. The scale's words stand beside the lines, its times at both ends.
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
  /** How the scale writes a value, where its highest is another: one unit for all. */
  scale?: (value: number, highest: number) => string;
  height?: number;
  /** The scale reaches at least this far. */
  atLeast?: number;
  /** Values are whole: no line of the scale stands between them. */
  whole?: boolean;
}

const TOP = 8;
const BOTTOM = 18;
const EDGE = 1;
/** What a time of day takes, and a letter of the scale. */
const CLOCK_W = 56;
const LETTER_W = 6.1;
/** What a legend takes: a chart without one is so much higher, so that neighbours end alike. */
const LEGEND_H = 17;

export function Chart({ label, times, series, format, scale, height: given = 104, atLeast = 0, whole = false }: Props) {
  const height = series.length > 1 ? given : given + LEGEND_H;
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(280);
  const [at, setAt] = useState<number | null>(null);
  const id = useId();
  useEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => entry && setWidth(Math.max(160, Math.round(entry.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const first = times[0] ?? 0;
  const span = Math.max(1, (times.at(-1) ?? 0) - first);
  const highest = Math.max(atLeast, ...series.flatMap((one) => one.values.map((v) => v ?? 0)));
  const ticks = niceTicks(highest, whole);
  const top = ticks.at(-1) || 1;
  const words = (v: number) => (scale ? scale(v, top) : format(v));
  const left = Math.ceil(Math.max(...ticks.map((tick) => words(tick).length)) * LETTER_W) + 7;
  const room = Math.max(1, width - left - EDGE);
  const xOf = (t: number) => left + ((t - first) / span) * room;
  const x = (i: number) => xOf(times[i] ?? first);
  const y = (v: number) => TOP + (1 - v / top) * (height - TOP - BOTTOM);
  // Both ends say when; between them there are round times, where they have room.
  const between = timeTicks(first, span, room).filter((t) => xOf(t) > left + 1.9 * CLOCK_W && xOf(t) < width - 1.9 * CLOCK_W);
  const time = (t: number) => clock(t).slice(0, span > 3 * 3_600_000 ? 5 : 8);

  const seek = (clientX: number) => {
    const from = box.current?.getBoundingClientRect().left ?? 0;
    setAt(nearest(times, first + ((clientX - from - left) / room) * span));
  };

  return (
    <figure class="chart" aria-labelledby={id}>
      <figcaption id={id} class="sr">{summary(label, times, series, format)}</figcaption>
      <div ref={box} class="chart-box" onPointerMove={(e) => seek(e.clientX)} onPointerLeave={() => setAt(null)}>
        <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true" focusable="false">
          {ticks.map((tick) => (
            <g key={tick}>
              <line class={tick ? 'rule' : 'rule base'} x1={left} x2={width} y1={Math.round(y(tick)) + 0.5} y2={Math.round(y(tick)) + 0.5} />
              <text class="tick" text-anchor="end" x={left - 6} y={y(tick) + 3.5}>{words(tick)}</text>
            </g>
          ))}
          {times.length > 1 && <text class="tick" x={left} y={height - 3}>{time(first)}</text>}
          {between.map((t) => <text key={t} class="tick" text-anchor="middle" x={xOf(t)} y={height - 3}>{time(t)}</text>)}
          {times.length > 1 && <text class="tick" text-anchor="end" x={width - EDGE} y={height - 3}>{time(first + span)}</text>}
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
        {at != null && (
          <ul class="chart-at" aria-hidden="true">
            <li class="when">{clock(times[at] ?? 0)}</li>
            {series.map((one) => (
              <li key={one.name}>
                <svg width="12" height="8" class={`s${one.tone}`}><path class="line" d="M0 4h12" /></svg>
                <b>{one.values[at] == null ? '–' : format(one.values[at])}</b>
              </li>
            ))}
          </ul>
        )}
      </div>
      {series.length > 1 && (
        <ul class="legend" aria-hidden="true">
          {series.map((one) => (
            <li key={one.name}>
              <svg width="12" height="8" class={`s${one.tone}`}><path class="line" d="M0 4h12" /></svg>
              {one.name}
            </li>
          ))}
        </ul>
      )}
    </figure>
  );
}

/** The chart in words: from when to when, and of each line the least, the most and the last. */
function summary(label: string, times: number[], series: Series[], format: (v: number) => string): string {
  if (!times.length) return `${label}: no figures yet.`;
  const lines = series.map((one) => {
    const known = one.values.filter((v): v is number => v != null);
    if (!known.length) return `${one.name}: none`;
    return `${one.name}: now ${format(known.at(-1) ?? 0)}, between ${format(Math.min(...known))} and ${format(Math.max(...known))}`;
  });
  return `${label}, from ${clock(times[0] ?? 0)} to ${clock(times.at(-1) ?? 0)}. ${lines.join('; ')}.`;
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
