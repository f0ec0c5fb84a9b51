// What changes by itself: one event stream, read with fetch so that the token stays in a header.
//
// When the stream ends we try again, later each time; until then the page shows what it has, with its age.
// A page that nobody sees has none: a browser opens only six connections to a host, and each stream is one.
// Whoever looks again gets everything anew.
import { batch, signal } from '@preact/signals';
import { ApiError, get, me, request } from './api';
import { lengthen } from './samples';
import { Lines } from './sse';
import type { AuditEntry, Changes, Event, HealthChange, Hello, History, OverrideItem, Overview, Page, Sample } from './types';

export type Link = 'starting' | 'live' | 'lost';

const EVENTS_KEPT_MAX = 500;
const RECENT_KEPT_MAX = 900;
/** So many overrides are marked on what they touch; the view of overrides has all. */
const DECIDED_MAX = 1000;
const BACK_OFF_MS = [500, 1000, 2000, 4000, 8000, 15_000];
/** A stream that is silent for so long is dead. */
const SILENCE_MS_MAX = 20_000;
/** A stream that lasted so long ended for a reason of its own, such as its age: another follows at once. */
const LASTED_MS = 5_000;
/** Lists are read again at most so often, however much changes. */
const REREAD_MS = 400;
/** A page that is hidden for no longer keeps its stream. */
const HIDDEN_MS = 1000;

export const link = signal<Link>('starting');
/** When the next try comes, while lost. */
export const retryAt = signal(0);
/** When we last heard anything. */
export const heardAt = signal(0);
/** The difference of the agent's clock from ours. */
export const skewMs = signal(0);
/** Ticks every second, for ages. */
export const now = signal(Date.now());
export const overview = signal<Overview | null>(null);
export const history = signal<History | null>(null);
/** The newest events, newest first. */
export const fresh = signal<Event[]>([]);
/** How long events took to the kernel, by their ids. */
export const reached = signal<ReadonlyMap<number, number>>(new Map());
/** Grows when objects changed: lists read themselves again. */
export const revision = signal(0);
/** Grows when overrides changed or somebody acted. */
export const decisions = signal(0);
/** The overrides in force, for the marks that views put on what they touch. */
export const decided = signal<OverrideItem[]>([]);
/** Grows when everything was read anew: what was heard before may have gaps, or be of an agent before this one. */
export const epoch = signal(0);
/** Grows with each sample: figures in lists read themselves again. */
export const beat = signal(0);
/** What a screen reader is told. */
export const spoken = signal('');

setInterval(() => {
  now.value = Date.now();
}, 1000);

/** Whether somebody may see this. */
export const visible = signal(!document.hidden);
document.addEventListener('visibilitychange', () => {
  visible.value = !document.hidden;
  // Who comes back wants to know now.
  if (visible.value) wake?.();
});

let wake: (() => void) | null = null;
let running: AbortController | null = null;

/** Tries at once instead of waiting. */
export function retryNow(): void {
  wake?.();
}

export function start(): void {
  if (running) return;
  running = new AbortController();
  void loop(running.signal);
}

export function stop(): void {
  running?.abort();
  running = null;
  batch(() => {
    link.value = 'starting';
    overview.value = null;
    history.value = null;
    fresh.value = [];
    reached.value = new Map();
    decided.value = [];
  });
}

/** Waits until somebody may see this, or nobody is signed in any longer. */
async function untilSeen(ended: AbortSignal): Promise<void> {
  while (!visible.value && !ended.aborted) {
    await new Promise((go) => {
      document.addEventListener('visibilitychange', go, { once: true });
      ended.addEventListener('abort', go, { once: true });
    });
  }
}

async function loop(ended: AbortSignal): Promise<void> {
  let failures = 0;
  while (!ended.aborted) {
    await untilSeen(ended);
    if (ended.aborted) return;
    let openedAt = 0;
    try {
      await follow(ended, () => {
        openedAt = Date.now();
      });
    } catch (error) {
      if (ended.aborted || (error instanceof ApiError && error.status === 401)) return;
    }
    if (ended.aborted) return;
    if (openedAt) failures = 0;
    if (!visible.value) {
      // It was let go, or nobody sees that it failed.
      if (link.value === 'live') link.value = 'starting';
      continue;
    }
    // The agent ends streams after a while, and its proxies too: nothing is lost before a new one fails.
    if (openedAt && Date.now() - openedAt > LASTED_MS) {
      await pause(Math.random() * 200, ended);
      continue;
    }
    const base = BACK_OFF_MS[Math.min(failures, BACK_OFF_MS.length - 1)] ?? 15_000;
    failures += 1;
    // Pages that lost the same agent do not all come back in the same moment.
    const wait = base * (0.75 + Math.random() * 0.5);
    if (link.value === 'live') spoken.value = 'The connection to the agent is lost. Figures are old.';
    link.value = 'lost';
    retryAt.value = Date.now() + wait;
    await pause(wait, ended);
  }
}

function pause(ms: number, ended: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      wake = null;
      resolve();
    }
    wake = done;
    ended.addEventListener('abort', done, { once: true });
  });
}

/** Reads one stream to its end. */
async function follow(ended: AbortSignal, opened: () => void): Promise<void> {
  const mine = new AbortController();
  const cancel = () => mine.abort();
  ended.addEventListener('abort', cancel, { once: true });
  let hidden = 0;
  const look = () => {
    clearTimeout(hidden);
    hidden = document.hidden ? window.setTimeout(cancel, HIDDEN_MS) : 0;
  };
  document.addEventListener('visibilitychange', look);
  look();
  let silence = setTimeout(cancel, SILENCE_MS_MAX);
  try {
    const response = await request('events/stream', { signal: mine.signal, headers: { Accept: 'text/event-stream' } });
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    if (!reader) return;
    await readAll(mine.signal, opened);
    const lines = new Lines();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(cancel, SILENCE_MS_MAX);
      heardAt.value = Date.now();
      batch(() => {
        for (const message of lines.take(value)) hear(message.event, message.data);
      });
    }
  } finally {
    clearTimeout(silence);
    clearTimeout(hidden);
    document.removeEventListener('visibilitychange', look);
    ended.removeEventListener('abort', cancel);
    mine.abort();
  }
}

/** Everything that the stream then keeps up to date; what views show is read again with it. */
async function readAll(signal: AbortSignal, opened: () => void = () => undefined): Promise<void> {
  const [seen, past, decisionsNow] = await Promise.all([
    get<Overview>('overview', {}, signal),
    get<History>('history', {}, signal),
    get<Page<OverrideItem>>('overrides', { limit: DECIDED_MAX }, signal),
  ]);
  batch(() => {
    opened();
    if (link.value === 'lost') spoken.value = 'Connected to the agent again.';
    link.value = 'live';
    // Numbers of events begin anew with each run of the agent.
    const before = overview.value;
    if (before && (before.started_ms !== seen.started_ms || before.pid !== seen.pid)) reached.value = new Map();
    fresh.value = [];
    epoch.value += 1;
    decided.value = decisionsNow.items;
    overview.value = seen;
    history.value = past;
    part = past.part ? [past.part] : [];
    heardAt.value = Date.now();
    skewMs.value = seen.at_ms - Date.now();
    revision.value += 1;
    decisions.value += 1;
  });
}

/** Samples that are not enough yet for one of those since the start. */
let part: Sample[] = [];

function rereadDecided(): void {
  get<Page<OverrideItem>>('overrides', { limit: DECIDED_MAX }).then((page) => {
    decided.value = page.items;
  }, () => undefined);
}

let rereading = 0;

function rereadOverview(): void {
  rereading ||= window.setTimeout(() => {
    rereading = 0;
    get<Overview>('overview').then((seen) => {
      overview.value = seen;
    }, () => undefined);
  }, REREAD_MS);
}

function hear(event: string, data: string): void {
  const said: unknown = JSON.parse(data);
  switch (event) {
    case 'hello':
      hello(said as Hello);
      break;
    case 'sample':
      sample(said as Sample);
      break;
    case 'change':
      change(said as Changes);
      break;
    case 'programmed':
      programmed(said as { id: number; programmed_ms: number }[]);
      break;
    case 'health':
      health(said as HealthChange);
      break;
    case 'override':
      decisions.value += 1;
      revision.value += 1;
      rereadDecided();
      rereadOverview();
      break;
    case 'audit':
      decisions.value += 1;
      spoken.value = (said as AuditEntry).summary;
      break;
    case 'lagged':
      void readAll(AbortSignal.timeout(10_000)).catch(() => undefined);
      break;
  }
}

function hello(said: Hello): void {
  skewMs.value = said.at_ms - Date.now();
  if (me.value && me.value.role !== said.role) me.value = { ...me.value, role: said.role };
}

function sample(said: Sample): void {
  const past = history.value;
  if (past) {
    const longer = lengthen(past, [...part, said]);
    part = longer.part;
    history.value = { ...past, recent: [...past.recent, said].slice(-RECENT_KEPT_MAX), long: longer.long, long_tick_s: longer.long_tick_s };
  }
  beat.value += 1;
  if (beat.value % 4 === 0 && !document.hidden) rereadOverview();
}

function change(said: Changes): void {
  fresh.value = [...said.events.toReversed(), ...fresh.value].slice(0, EVENTS_KEPT_MAX);
  revision.value += 1;
  rereadOverview();
}

function programmed(said: { id: number; programmed_ms: number }[]): void {
  // May come before the event itself, and for events that a view has read by itself.
  const times = new Map(reached.value);
  for (const one of said) times.set(one.id, one.programmed_ms);
  for (const id of times.keys()) {
    if (times.size <= EVENTS_KEPT_MAX) break;
    times.delete(id);
  }
  reached.value = times;
}

function health(said: HealthChange): void {
  const seen = overview.value;
  if (!seen) return;
  const worse = said.planes.filter((plane) => plane.state === 'error').map((plane) => `${plane.name}: ${plane.summary}`);
  if (worse.length) spoken.value = worse.join('. ');
  overview.value = { ...seen, healthy: said.healthy, planes: said.planes };
  rereadOverview();
}
