// Numbers, times and ages as people read them.

const NONE = '–';

/** A count, short from ten thousand on. */
export function count(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return NONE;
  if (Math.abs(n) < 10_000) return Math.round(n).toLocaleString('en');
  if (Math.abs(n) < 1e6) return `${(n / 1e3).toFixed(Math.abs(n) < 1e5 ? 1 : 0)} k`;
  if (Math.abs(n) < 1e9) return `${(n / 1e6).toFixed(1)} M`;
  return `${(n / 1e9).toFixed(1)} G`;
}

/** A rate per second; small ones keep their decimals. */
export function rate(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return NONE;
  if (n === 0) return '0';
  if (n < 0.1) return '< 0.1';
  if (n < 10) return n.toFixed(1);
  return count(n);
}

/** A share of one as a percentage. */
export function percent(share: number | null | undefined): string {
  if (share == null || !Number.isFinite(share)) return NONE;
  if (share === 0) return '0 %';
  const p = share * 100;
  if (p < 0.01) return '< 0.01 %';
  return `${p.toFixed(p < 1 ? 2 : p < 10 ? 1 : 0)} %`;
}

/** A duration given in seconds: two units at most. */
export function duration(s: number | null | undefined): string {
  if (s == null || !Number.isFinite(s)) return NONE;
  if (s < 0) s = 0;
  if (s === 0) return '0 s';
  if (s < 0.001) return `${Math.max(1, Math.round(s * 1e6))} µs`;
  if (s < 0.01) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 1) return `${Math.round(s * 1e3)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${pad((s % 3600) / 60)} min`;
  const days = Math.floor(s / 86_400);
  return days < 10 ? `${days} d ${Math.floor((s % 86_400) / 3600)} h` : `${days} d`;
}

/** A time on a scale that ends at `highest`: all of one scale in one unit. */
export function durationOf(ms: number, highest: number): string {
  if (ms === 0) return '0';
  const [unit, word] = highest < 1 ? [0.001, 'µs'] : highest < 1000 ? [1, 'ms'] : highest < 120_000 ? [1000, 's'] : [60_000, 'min'];
  return `${Number((ms / unit).toPrecision(3))} ${word}`;
}

/** A short age for tables: one unit. */
export function age(s: number | null | undefined): string {
  if (s == null || !Number.isFinite(s)) return NONE;
  if (s < 1) return 'now';
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** How long ago, in words. */
export function ago(s: number | null | undefined): string {
  if (s == null || !Number.isFinite(s)) return NONE;
  return s < 1 ? 'just now' : `${age(s)} ago`;
}

/** Bytes, in powers of 1,024. */
export function bytes(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return NONE;
  if (n < 1024) return `${Math.round(n)} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = n / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** The time of day of a moment given in milliseconds since 1970. */
export function clock(ms: number): string {
  const d = new Date(ms);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

/** Day and time, without seconds. */
export function moment(ms: number): string {
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}`;
}

/** The day. */
export function day(ms: number): string {
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
}

/** A text that begins a sentence. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** `1 route`, `2 routes`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

function pad(n: number): string {
  return String(Math.floor(n)).padStart(2, '0');
}
