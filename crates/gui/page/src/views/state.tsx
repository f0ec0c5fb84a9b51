// How things are, in words and shapes that all views share.
import { Badge, type Tone } from '../ui/parts';
import { percent, rate } from '../format';
import type { Counters, OverrideItem, State } from '../types';

const STATES: Record<State, [Tone, string]> = {
  ok: ['ok', 'OK'],
  idle: ['plain', 'Idle'],
  warning: ['warn', 'Warning'],
  error: ['err', 'Error'],
};

export function StateBadge({ state, title }: { state: State; title?: string }) {
  const [tone, word] = STATES[state] ?? STATES.idle;
  return <Badge tone={tone} title={title || undefined}>{word}</Badge>;
}

/** A share of errors, marked when it is one that somebody should see. */
export function Errors({ counters }: { counters: Counters | null }) {
  if (!counters) return <span class="faint">–</span>;
  const share = counters.rate > 0 ? counters.error_rate / counters.rate : 0;
  if (share >= 0.01) return <Badge tone="err">{percent(share)}</Badge>;
  return <>{percent(share)}</>;
}

export function Rate({ counters }: { counters: Counters | null }) {
  if (!counters) return <span class="faint">–</span>;
  return <>{rate(counters.rate)}<span class="faint">/s</span></>;
}

export function sortRate(counters: Counters | null): number {
  return counters ? counters.rate : -1;
}

/** The tone of an override: what takes traffic away is loud. */
export function overrideTone(one: OverrideItem): Tone {
  return one.action === 'weight' || one.action === 'add' ? 'info' : 'warn';
}
