// Round numbers for the scales of charts.

/** Zero and up to four round values, the last not below the highest. */
export function niceTicks(highest: number): number[] {
  if (!(highest > 0)) return [0, 1];
  const rough = highest / 3;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * magnitude).find((s) => s * 3 >= highest) ?? 10 * magnitude;
  const ticks = [0];
  while ((ticks.at(-1) ?? 0) < highest) ticks.push(Number((ticks.length * step).toPrecision(6)));
  return ticks;
}

/** Round times within a span, so many that their texts have room. */
export function timeTicks(first: number, span: number, width: number): number[] {
  const wanted = Math.max(2, Math.floor(width / 130));
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400].map((s) => s * 1000);
  const step = steps.find((s) => span / s <= wanted) ?? 172_800_000;
  const ticks = [];
  for (let t = Math.ceil((first + span * 0.03) / step) * step; t <= first + span * 0.97; t += step) ticks.push(t);
  return ticks;
}
