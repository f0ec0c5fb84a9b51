// The figures of the overview: each with how it was, as a chart, or all of them as a table.
import type { ComponentChildren } from 'preact';
import { bytes, clock, count, duration, durationOf, percent, plural, rate } from '../format';
import { Chart, type Series } from '../ui/chart';
import { Badge, Card } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import type { Overview, Sample, Traffic } from '../types';
import { millis } from './state';

/** A share of errors from which on it is called high. */
const ERRORS_HIGH = 0.01;
/** Rows of the table at most: enough to see how it went, few enough to be read. */
const ROWS_MAX = 40;

/** A number on a scale. */
function plain(value: number): string {
  return value < 10 ? String(Number(value.toPrecision(2))) : count(value);
}

function errorShare({ rate: all, error_rate }: { rate: number; error_rate: number }): number {
  return all > 0 ? error_rate / all : 0;
}

/** A figure with its name, and the chart of it. */
function Figure({ name, value, unit, sub, bad = false, children }: { name: string; value: string; unit?: string; sub: string; bad?: boolean; children?: ComponentChildren }) {
  return (
    <section class="card stat" aria-label={name}>
      <h3 class="name">{name}{bad && <Badge tone="err">high</Badge>}</h3>
      <div class="value">{value}{unit && <small>{unit}</small>}</div>
      <div class="sub">{sub}</div>
      {children}
    </section>
  );
}

export function Figures({ seen, samples }: { seen: Overview; samples: Sample[] }) {
  const times = samples.map((s) => s.at_ms);
  const line = (name: string, tone: Series['tone'], of: (s: Sample) => number | null, fill = false): Series => ({ name, tone, values: samples.map(of), fill });
  const { source, syncs } = seen;
  const repairs = syncs.reduce((sum, one) => sum + one.drift_repairs, 0);
  const failures = syncs.reduce((sum, one) => sum + one.failures, 0);
  const last = samples.at(-1);
  // A line that lies on the ground says nothing that a word does not.
  const mended = samples.some((s) => s.drift_repairs > 0 || s.sync_failures > 0);
  const aged = samples.some((s) => (s.source_age_s ?? 0) >= 1);
  const charts = (seen.traffic ? 6 : 1) + Number(mended) + Number(aged);
  const repaired = { name: 'Drift repairs', value: count(repairs), bad: failures > 0, sub: failures ? `${plural(failures, 'sync')} failed since start` : 'no sync has failed since start' };
  const old = { name: 'Age of the source', value: duration(source.age_s), sub: source.connected ? 'in touch with it' : 'not in touch with it' };
  return (
    <>
      <div class={charts % 4 === 0 || charts === 7 ? 'figures' : 'figures by-3'}>
        {seen.traffic && <TrafficFigures traffic={seen.traffic} times={times} last={last} line={line} />}
        <Figure name="Changes" value={rate(last?.change_rate ?? 0)} unit="/s" sub={`${plural(syncs.reduce((sum, one) => sum + one.syncs, 0), 'sync')} since start`}>
          <Chart label="Changes and syncs per second" times={times} format={rate} scale={plain} atLeast={1} series={[line('changes', 1, (s) => s.change_rate, true), line('syncs', 2, (s) => s.sync_rate)]} />
        </Figure>
        {mended && (
          <Figure {...repaired}>
            <Chart label="Drift repairs and failed syncs" times={times} format={count} atLeast={2} whole series={[line('repairs', 1, (s) => s.drift_repairs, true), line('failed syncs', 3, (s) => s.sync_failures)]} />
          </Figure>
        )}
        {aged && (
          <Figure {...old}>
            <Chart label="Age of the source’s state" times={times} format={duration} scale={(v, top) => durationOf(v * 1000, top * 1000)} atLeast={1} series={[line('age', 4, (s) => s.source_age_s, true)]} />
          </Figure>
        )}
      </div>
      {!(mended && aged) && (
        <div class="figures-flat">
          {!mended && <Figure {...repaired} />}
          {!aged && <Figure {...old} />}
        </div>
      )}
    </>
  );
}

function TrafficFigures({ traffic, times, last, line }: { traffic: Traffic; times: number[]; last: Sample | undefined; line: (name: string, tone: Series['tone'], of: (s: Sample) => number | null, fill?: boolean) => Series }) {
  const now = last ?? traffic;
  const { cache } = traffic;
  return (
    <>
      <Figure name="Requests" value={rate(now.rate)} unit="/s" sub={`${count(traffic.requests)} since start`}>
        <Chart label="Requests per second" times={times} format={rate} scale={plain} atLeast={1} series={[line('requests', 1, (s) => s.rate, true)]} />
      </Figure>
      <Figure name="Errors" value={percent(errorShare(now))} sub={`${count(traffic.errors)} answers 5xx since start`} bad={errorShare(now) >= ERRORS_HIGH}>
        <Chart label="Share of requests answered with 5xx" times={times} format={percent} atLeast={0.02} series={[line('5xx', 3, (s) => (s.rate > 0 ? errorShare(s) : null), true)]} />
      </Figure>
      <Figure name="Time to answer, p99" value={millis(now.p99_ms ?? traffic.p99_ms)} sub={`p50 ${millis(now.p50_ms ?? traffic.p50_ms)} · p90 ${millis(now.p90_ms ?? traffic.p90_ms)}`}>
        <Chart label="Time to answer" times={times} format={millis} scale={durationOf} atLeast={1} series={[line('p50', 1, (s) => s.p50_ms), line('p90', 2, (s) => s.p90_ms), line('p99', 3, (s) => s.p99_ms)]} />
      </Figure>
      <Figure name="Cache hits" value={percent(cache.hit_share)} sub={cache.entries == null ? `${count(cache.hits)} hits` : `${plural(cache.entries, 'entry', 'entries')}, ${bytes(cache.bytes)}`}>
        <Chart label="Share of requests that the cache answered" times={times} format={percent} atLeast={1} series={[line('hits', 4, (s) => s.cache_hit_share, true)]} />
      </Figure>
      <Figure name="Open connections" value={count(last?.connections ?? traffic.connections)} sub={`${plural(last?.active ?? traffic.active, 'request')} running`}>
        <Chart label="Open connections and running requests" times={times} format={count} atLeast={2} whole series={[line('connections', 1, (s) => s.connections, true), line('running', 2, (s) => s.active)]} />
      </Figure>
    </>
  );
}

const COLUMNS: Column<Sample>[] = [
  { key: 'at', head: 'Until', cell: (s) => clock(s.at_ms) },
  { key: 'rate', head: 'Requests/s', num: true, cell: (s) => rate(s.rate) },
  { key: 'errors', head: 'Errors', num: true, cell: (s) => percent(errorShare(s)) },
  { key: 'p50', head: 'p50', num: true, cell: (s) => millis(s.p50_ms) },
  { key: 'p90', head: 'p90', num: true, cell: (s) => millis(s.p90_ms) },
  { key: 'p99', head: 'p99', num: true, cell: (s) => millis(s.p99_ms) },
  { key: 'open', head: 'Connections', num: true, cell: (s) => count(s.connections) },
  { key: 'cache', head: 'Cache hits', num: true, cell: (s) => percent(s.cache_hit_share) },
  { key: 'changes', head: 'Changes/s', num: true, cell: (s) => rate(s.change_rate) },
  { key: 'syncs', head: 'Syncs/s', num: true, cell: (s) => rate(s.sync_rate) },
  { key: 'failed', head: 'Failed syncs', num: true, cell: (s) => count(s.sync_failures) },
  { key: 'drift', head: 'Drift repairs', num: true, cell: (s) => count(s.drift_repairs) },
  { key: 'age', head: 'Source age', num: true, cell: (s) => duration(s.source_age_s) },
];
const OF_TRAFFIC = new Set(['rate', 'errors', 'p50', 'p90', 'p99', 'open', 'cache']);

/** The same figures in rows, newest first: every so many of them, that there are few. */
export function FigureTable({ samples, traffic }: { samples: Sample[]; traffic: boolean }) {
  const every = Math.max(1, Math.ceil(samples.length / ROWS_MAX));
  const rows = samples.toReversed().filter((_, i) => i % every === 0);
  return (
    <Card flush label="Figures">
      <Table label="Figures over time, newest first" columns={COLUMNS.filter((one) => traffic || !OF_TRAFFIC.has(one.key))} rows={rows} id={(s) => String(s.at_ms)} />
    </Card>
  );
}
