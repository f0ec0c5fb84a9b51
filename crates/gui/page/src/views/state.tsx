// How things are, in words and shapes that all views share.
import { Badge, type Tone } from '../ui/parts';
import { count, duration, percent, rate } from '../format';
import type { Connections, Counters, OverrideItem, State } from '../types';

const STATES: Record<State, [Tone, string]> = {
  ok: ['ok', 'OK'],
  idle: ['plain', 'Idle'],
  warning: ['warn', 'Warning'],
  error: ['err', 'Error'],
};

/** Why a thing is as it is, below its badge: in words, not only for who can point at it. */
export function Why({ state, text }: { state: State; text: string }) {
  return (
    <span class="two-lines">
      <StateBadge state={state} />
      {text && <span class="small faint why">{text}</span>}
    </span>
  );
}

export function StateBadge({ state, title }: { state: State; title?: string }) {
  const [tone, word] = STATES[state] ?? STATES.idle;
  return <Badge tone={tone} title={title || undefined}>{word}</Badge>;
}

/** The share of errors; -1 where nobody counts. */
export function share(counters: Counters | null): number {
  if (!counters) return -1;
  return counters.rate > 0 ? counters.error_rate / counters.rate : 0;
}

/** A share of errors, marked when it is one that somebody should see. */
export function Errors({ counters }: { counters: Counters | null }) {
  if (!counters) return <span class="faint">–</span>;
  const part = share(counters);
  if (part >= 0.01) return <Badge tone="err">{percent(part)}</Badge>;
  return <>{percent(part)}</>;
}

export function Rate({ counters }: { counters: Counters | null }) {
  if (!counters) return <span class="faint">–</span>;
  return <>{rate(counters.rate)}<span class="faint">/s</span></>;
}

export function sortRate(counters: Counters | null): number {
  return counters ? counters.rate : -1;
}

/** How many connections are open; more about them, or why they are not known, for who points at it. */
export function Open({ connections, why }: { connections: Connections | null; why?: string | null }) {
  if (!connections) return <span class="faint" title={why ?? undefined}>–</span>;
  const more = connections.other > 0 ? `and ${count(connections.other)} opening or closing` : '';
  return <span title={[more, why].filter(Boolean).join('; ') || undefined}>{count(connections.open)}</span>;
}

export function sortOpen({ connections }: { connections: Connections | null }): number {
  return connections ? connections.open : -1;
}

/** The tone of an override: what takes traffic away is loud. */
export function overrideTone(one: OverrideItem): Tone {
  return one.action === 'weight' || one.action === 'add' ? 'info' : 'warn';
}

export function millis(ms: number | null | undefined): string {
  return ms == null ? '–' : duration(ms / 1000);
}
