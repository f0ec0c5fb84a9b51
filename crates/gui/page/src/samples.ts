// Samples joined to one that stands for a longer time, as the agent joins them.
import type { History, Sample } from './types';

/** As many samples as the agent keeps for the time since its start. */
export const LONG_MAX = 720;

/** One for several: rates are averaged, counts added up, of levels and latencies the worst is kept. */
export function join(samples: Sample[]): Sample {
  const last = samples.at(-1);
  if (!last || samples.length === 1) return last as Sample;
  const mean = (of: (one: Sample) => number) => samples.reduce((sum, one) => sum + of(one), 0) / samples.length;
  const sum = (of: (one: Sample) => number) => samples.reduce((all, one) => all + of(one), 0);
  const worst = (of: (one: Sample) => number | null) => samples.reduce<number | null>((most, one) => {
    const value = of(one);
    return value == null || (most != null && most >= value) ? most : value;
  }, null);
  const shares = samples.flatMap((one) => one.cache_hit_share ?? []);
  return {
    at_ms: last.at_ms,
    rate: mean((one) => one.rate),
    error_rate: mean((one) => one.error_rate),
    p50_ms: worst((one) => one.p50_ms),
    p90_ms: worst((one) => one.p90_ms),
    p99_ms: worst((one) => one.p99_ms),
    connections: Math.max(...samples.map((one) => one.connections)),
    active: Math.max(...samples.map((one) => one.active)),
    cache_hit_share: shares.length ? shares.reduce((a, b) => a + b, 0) / shares.length : null,
    sync_rate: mean((one) => one.sync_rate),
    sync_failures: sum((one) => one.sync_failures),
    change_rate: mean((one) => one.change_rate),
    drift_repairs: sum((one) => one.drift_repairs),
    source_age_s: worst((one) => one.source_age_s),
    healthy: samples.every((one) => one.healthy),
  };
}

/** What was since the start, with those samples that came since its last one, where they are enough for another. */
export function lengthen({ long, long_tick_s, tick_s }: History, part: Sample[]): { long: Sample[]; long_tick_s: number; part: Sample[] } {
  const since = (part.at(-1)?.at_ms ?? 0) - (long.at(-1)?.at_ms ?? 0);
  if (since < (long_tick_s - tick_s / 2) * 1000) return { long, long_tick_s, part };
  const longer = [...long, join(part)];
  if (longer.length < LONG_MAX) return { long: longer, long_tick_s, part: [] };
  // No room: neighbours become one, as the agent does it.
  const halved = Array.from({ length: Math.ceil(longer.length / 2) }, (_, i) => join(longer.slice(2 * i, 2 * i + 2)));
  return { long: halved, long_tick_s: long_tick_s * 2, part: [] };
}
