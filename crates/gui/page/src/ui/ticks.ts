// Round numbers for the scales of charts.

/** Zero and up to two round values, the last not below the highest. */
export function niceTicks(highest: number, whole = false): number[] {
  if (!(highest > 0)) return [0, 1];
  const rough = highest / 2;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10].map((m) => m * magnitude).find((s) => s * 2 >= highest * (1 - 1e-9)) ?? 10 * magnitude;
  const step = whole ? Math.max(1, Math.ceil(found)) : found;
  const ticks = [0];
  while ((ticks.at(-1) ?? 0) < highest * (1 - 1e-9)) ticks.push(Number((ticks.length * step).toPrecision(6)));
  return ticks;
}

/** Round times within a span, so many that their texts have room. */
export function timeTicks(first: number, span: number, width: number): number[] {
  const wanted = Math.max(1, Math.floor(width / 110));
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400].map((s) => s * 1000);
  const step = steps.find((s) => span / s <= wanted) ?? 172_800_000;
  const ticks = [];
  for (let t = Math.ceil((first + span * 0.03) / step) * step; t <= first + span * 0.97; t += step) ticks.push(t);
  return ticks;
}
