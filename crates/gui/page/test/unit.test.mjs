// The page's own logic, without a browser: built by vite from the sources, then asked.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'vite';
import { assert, equal, test } from './harness.mjs';

async function modules() {
  const outDir = mkdtempSync(join(tmpdir(), 'telaio-unit-'));
  try {
    await build({
      root: fileURLToPath(new URL('..', import.meta.url)),
      configFile: false,
      logLevel: 'error',
      build: { outDir, emptyOutDir: true, copyPublicDir: false, minify: false, lib: { entry: { sse: 'src/sse.ts', format: 'src/format.ts', layout: 'src/map/layout.ts', chart: 'src/ui/ticks.ts', rows: 'src/ui/window.ts', samples: 'src/samples.ts', curve: 'src/map/curve.ts', spread: 'src/map/spread.ts' }, formats: ['es'], fileName: (_, name) => `${name}.mjs` } },
    });
    const load = (name) => import(pathToFileURL(join(outDir, `${name}.mjs`)).href);
    return { sse: await load('sse'), format: await load('format'), layout: await load('layout'), chart: await load('chart'), rows: await load('rows'), samples: await load('samples'), curve: await load('curve'), spread: await load('spread') };
  } finally {
    rmSync(outDir, { recursive: true });
  }
}

let built;
const unit = (name, run) => test(name, async () => run((built ??= await modules())));

unit('a stream cut at any place gives the same messages', ({ sse }) => {
  const stream = ': hello\n\nevent: sample\ndata: {"a":1}\n\nevent: change\r\ndata: one\r\ndata: two\r\n\r\ndata:bare\n\n';
  const whole = JSON.stringify(new sse.Lines().take(stream));
  equal(whole, JSON.stringify([{ event: 'sample', data: '{"a":1}' }, { event: 'change', data: 'one\ntwo' }, { event: 'message', data: 'bare' }]), 'messages');
  for (let cut = 0; cut <= stream.length; cut += 1) {
    const lines = new sse.Lines();
    equal(JSON.stringify([...lines.take(stream.slice(0, cut)), ...lines.take(stream.slice(cut))]), whole, `cut at ${cut}`);
  }
});

unit('numbers and times read as people write them', ({ format }) => {
  equal(format.count(9999), '9,999', 'count');
  equal(format.count(12_345), '12.3 k', 'count');
  equal(format.rate(0.02), '< 0.1', 'rate');
  equal(format.percent(0.0341), '3.4 %', 'percent');
  equal(format.duration(0.0042), '4.2 ms', 'duration');
  equal(format.duration(3720), '1 h 02 min', 'duration');
  equal(format.duration(9 * 86_400 + 3600), '9 d 1 h', 'duration');
  equal(format.bytes(312 * 1024 * 1024), '312 MiB', 'bytes');
  equal(format.plural(1, 'route'), '1 route', 'plural');
  equal(format.age(null), '–', 'nothing');
});

const vertex = (id, kind, more = {}) => ({ id, kind, label: id.split('/').at(-1), namespace: null, state: 'ok', note: '', overridden: false, rate: null, error_rate: null, ...more });
const edge = (from, to, rate = null) => ({ from, to, rate, error_rate: 0, closed: false });

unit('nothing on the map stands on anything else, however the map is ordered', ({ layout }) => {
  const vertices = [];
  const edges = [];
  for (let h = 0; h < 7; h += 1) {
    vertices.push(vertex(`host:h${h}`, 'host'));
    for (let s = 0; s < 5; s += 1) {
      const id = `service:n/h${h}s${s}`;
      vertices.push(vertex(`route:${h}-${s}`, 'route'), vertex(id, 'service'));
      edges.push(edge(`host:h${h}`, `route:${h}-${s}`), edge(`route:${h}-${s}`, id, s));
      for (let e = 0; e < (h + s) % 4; e += 1) {
        vertices.push(vertex(`endpoint:${h}${s}${e}`, 'endpoint'));
        edges.push(edge(id, `endpoint:${h}${s}${e}`), edge(`endpoint:${h}${s}${e}`, `node:${e}`));
      }
    }
  }
  for (let n = 0; n < 3; n += 1) vertices.push(vertex(`node:${n}`, 'node'));
  const shape = (laid) => JSON.stringify([...laid.placed].map(([id, at]) => [id, at.column, at.row.toFixed(2)]).sort());
  const laid = layout.layOut({ vertices, edges }, new Set());
  for (const kind of laid.columns) {
    const rows = [...laid.placed.values()].filter((at) => layout.columnOf(at.vertex.kind) === kind).map((at) => at.row).sort((a, b) => a - b);
    rows.forEach((row, i) => assert(i === 0 || row - rows[i - 1] > 0.99, `two ${kind}s at ${row}`));
    rows.forEach((row) => assert(row > 0 && row < laid.rows, `a ${kind} outside, at ${row} of ${laid.rows}`));
  }
  equal(laid.placed.size, vertices.length - 3, 'vertices placed');
  equal(shape(layout.layOut({ vertices: vertices.toReversed(), edges: edges.toReversed() }, new Set())), shape(laid), 'the layout of the same map in another order');
});

unit('many endpoints become one vertex that keeps their sum, until it is opened', ({ layout }) => {
  const ids = Array.from({ length: 30 }, (_, i) => `endpoint:${i}`);
  const map = {
    vertices: [vertex('service:n/s', 'service'), ...ids.map((id, i) => vertex(id, 'endpoint', { state: i === 29 ? 'error' : 'ok' }))],
    edges: ids.map((id, i) => edge('service:n/s', id, i === 29 ? 0 : 2)),
  };
  const laid = layout.layOut(map, new Set());
  const more = laid.placed.get('more:service:n/s').vertex;
  equal(more.label, '23 more', 'what is gathered');
  equal(more.rate, 46, 'its rate');
  assert(laid.placed.has('endpoint:29'), 'what is wrong stays in sight');
  equal(layout.layOut(map, new Set(['service:n/s'])).placed.size, 31, 'opened');
});

unit('what is chosen lights up all that leads there, and where it leads', ({ layout }) => {
  const edges = [edge('h', 'r1'), edge('h', 'r2'), edge('r1', 's1'), edge('r2', 's2'), edge('s1', 'e')];
  equal([...layout.related(edges, 's1')].sort().join(), 'e,h,r1,s1', 'related to s1');
});

unit('scales end at round numbers that reach the highest value', ({ chart }) => {
  for (const highest of [0.003, 0.7, 1, 4, 9.99, 12, 130, 1001, 84_000]) {
    const ticks = chart.niceTicks(highest);
    assert(ticks[0] === 0 && ticks.at(-1) >= highest && ticks.length <= 5, `ticks up to ${highest}: ${ticks}`);
  }
});

unit('the window of a long list has the rows in sight, whatever their heights', ({ rows }) => {
  const ids = Array.from({ length: 1000 }, (_, i) => `r${i}`);
  const height = (i) => 36 + (i % 3) * 12;
  const heights = new rows.Heights();
  for (let i = 0; i < ids.length; i += 1) heights.measured(ids[i], height(i));
  const top = (i) => ids.slice(0, i).reduce((sum, _, at) => sum + height(at), 0);
  for (const at of [0, 333, 999]) {
    const seen = heights.window(ids, top(at) + 1, top(at) + 500);
    equal(seen.from, at, 'the first row');
    equal(seen.above, top(at), 'room above');
    equal(seen.above + ids.slice(seen.from, seen.to).reduce((sum, _, i) => sum + height(seen.from + i), 0) + seen.below, top(1000), 'the whole height');
  }
  const beyond = heights.window(ids, 1e9, 1e9 + 100);
  equal([beyond.from, beyond.to].join(), '999,1000', 'beyond the end there is the last');
  equal(JSON.stringify(heights.window([], 0, 100)), JSON.stringify({ from: 0, to: 0, above: 0, below: 0 }), 'an empty list');
});

unit('samples since the start are joined as the agent joins them, and fit', ({ samples }) => {
  const one = (i) => ({ at_ms: i * 1000, rate: 2, error_rate: 0, p50_ms: i % 2 ? null : 1, p90_ms: null, p99_ms: i, connections: i, active: 0, cache_hit_share: null, sync_rate: 0, sync_failures: 1, change_rate: 0, drift_repairs: 0, source_age_s: null, healthy: true });
  let past = { tick_s: 1, long_tick_s: 1, long: [], part: [] };
  for (let i = 1; i <= 5000; i += 1) past = { tick_s: 1, ...samples.lengthen(past, [...past.part, one(i)]) };
  assert(past.long.length < samples.LONG_MAX && past.long.length >= samples.LONG_MAX / 2 - 1, `${past.long.length} samples`);
  equal(past.long.reduce((sum, it) => sum + it.sync_failures, 0) + past.part.length, 5000, 'failures');
  assert(past.long.every((it) => it.rate === 2 && it.p50_ms === 1), 'rates and latencies');
});

unit('lines to nodes go by a lane of their own, and columns have the room that their names need', ({ curve, spread, layout }) => {
  const names = ['a', 'b', 'c'].map((id) => vertex(`node:${id}`, 'node'));
  const lanes = [...curve.byNode(names, 100, 160).values()];
  assert(lanes.every((x, i) => x > 100 && x < 160 && (i === 0 || x - lanes[i - 1] >= 9)), `lanes: ${lanes}`);
  assert(curve.follow({ x: 90, y: 10 }, { x: 200, y: 300 }, 130).includes('V'), 'a line by a lane');
  const long = vertex('host:x', 'host', { label: 'a-rather-long-name.of-a-host.example.com' });
  const map = layout.layOut({ vertices: [long, vertex('service:n/s', 'service')], edges: [edge('host:x', 'service:n/s')] }, new Set());
  const wide = spread.spread(map, 1400);
  assert(wide.columns[0].width > wide.columns[1].width, `widths: ${JSON.stringify(wide.columns)}`);
  const narrow = spread.spread(map, 360);
  assert(narrow.width <= 361 && narrow.columns.every((one) => one.width >= 104), `on a phone: ${JSON.stringify(narrow)}`);
});
