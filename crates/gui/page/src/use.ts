// Reading a part of the API and keeping it fresh.
import { useSignalEffect } from '@preact/signals';
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, reason } from './api';
import { beat, decisions, link, revision, visible } from './live';
import type { Page } from './types';

export interface Asked<T> {
  value: T | null;
  /** Why the last question failed. With a value it is one that was read before. */
  error: string | null;
  again: () => void;
}

/** What the last answers said, and about which path: another path's answer is never shown. */
interface Heard<T> { path: string | null; value: T | null; error: string | null }

/** How often a list is read again for its figures, in samples. */
const BEATS = 4;
/** However much changes, a list is read again at most so often. */
const CHANGES_MS = 1000;
const PAGE = 500;
/** Answers that say that a thing is not there any more, or not for us. */
const GONE = [403, 404, 410];
/** A list has at most so many items here; filters reach the others. */
const ITEMS_MAX = 20_000;

type Query = Record<string, string | number | undefined>;

/** Asks `path` now, when objects change, when somebody acts, and for figures now and then. */
export function useAsked<T>(path: string | null, query: Query = {}, how: { paged?: boolean; still?: boolean } = {}): Asked<T> {
  const [heard, setHeard] = useState<Heard<T>>({ path, value: null, error: null });
  const state = useRef({ running: false, again: false, gone: new AbortController(), at: '' });
  const at = path == null ? '' : `${path}?${JSON.stringify(query)}`;

  const ask = useCallback(() => {
    const mine = state.current;
    if (path == null) return;
    // One question at a time; what comes meanwhile is asked once more afterwards.
    if (mine.running && mine.at === at) {
      mine.again = true;
      return;
    }
    mine.gone.abort();
    mine.gone = new AbortController();
    mine.running = true;
    mine.again = false;
    mine.at = at;
    const { signal } = mine.gone;
    const answer = how.paged ? all(path, query, signal) : get(path, query, signal);
    answer.then((got) => {
      if (!signal.aborted) setHeard({ path, value: got as T, error: null });
    }, (problem: unknown) => {
      if (signal.aborted) return;
      // What is gone is not shown any longer; else what was read before stays, and is called old.
      const gone = problem instanceof ApiError && GONE.includes(problem.status);
      setHeard((old) => ({ path, value: gone || old.path !== path ? null : old.value, error: reason(problem) }));
    }).finally(() => {
      if (signal.aborted) return;
      mine.running = false;
      if (mine.again) ask();
    });
  }, [at]);

  /** When changes were last answered, and what waits for the next time. */
  const last = useRef({ at: 0, timer: 0 });
  const askSoon = () => {
    const mine = last.current;
    if (mine.timer) return;
    mine.timer = window.setTimeout(() => {
      mine.timer = 0;
      mine.at = Date.now();
      askLatest.current();
    }, Math.max(0, mine.at + CHANGES_MS - Date.now()));
  };
  const askLatest = useRef(ask);
  askLatest.current = ask;
  useEffect(() => {
    ask();
  }, [ask]);
  useEffect(() => () => {
    state.current.gone.abort();
    clearTimeout(last.current.timer);
  }, []);
  /** The changes that were answered, the figures that were, and whether there is something that was not. */
  const answered = useRef({ changes: -1, beat: -1, owed: false });
  useSignalEffect(() => {
    const mine = answered.current;
    // Both only grow.
    const changes = revision.value + decisions.value;
    const figures = how.still ? 0 : Math.floor(beat.value / BEATS);
    // The effect above has asked already.
    const began = mine.changes < 0;
    if (!began && (changes !== mine.changes || figures !== mine.beat)) mine.owed = true;
    mine.changes = changes;
    mine.beat = figures;
    // Nobody sees it, or there is nobody to ask: then later, and only once.
    if (!visible.value || link.value === 'lost' || !mine.owed) return;
    mine.owed = false;
    askSoon();
  });
  return heard.path === path ? { value: heard.value, error: heard.error, again: ask } : { value: null, error: null, again: ask };
}

/** All parts of a list. */
async function all<T>(path: string, query: Query, signal: AbortSignal): Promise<Page<T>> {
  let page = await get<Page<T>>(path, { ...query, limit: PAGE }, signal);
  const items = page.items;
  while (page.next != null && items.length < ITEMS_MAX) {
    page = await get<Page<T>>(path, { ...query, limit: PAGE, offset: page.next }, signal);
    items.push(...page.items);
  }
  return { ...page, items };
}
