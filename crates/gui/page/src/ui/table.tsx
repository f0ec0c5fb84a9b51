// A table that sorts, and that draws only the rows in sight when there are many.
//
// Where it fits, its head stays in sight while the page scrolls; where it is too wide it scrolls
// sideways and its first column stays. On phones each row is a small card of its own.
import type { ComponentChildren, VNode } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Icon } from './icons';
import { Heights } from './window';

export interface Column<T> {
  key: string;
  head: string;
  cell: (row: T) => ComponentChildren;
  /** What to sort by; without it the column does not sort. */
  by?: (row: T) => string | number;
  num?: boolean;
  /** The head is only for screen readers. */
  quiet?: boolean;
  class?: string;
  /** The column is left out where no row has anything for it. */
  has?: (row: T) => boolean;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  rowClass?: (row: T) => string | undefined;
  sort?: [column: string, down: boolean];
}

/** From so many rows on, only those in sight are drawn. */
const WHOLE_ROWS_MAX = 120;
/** Drawn above and below what is in sight. */
const MARGIN_PX = 480;
const ROUNDS_MAX = 4;

export function Table<T>({ label, columns: all, rows, id, rowClass, sort: first }: Props<T>) {
  const [sort, setSort] = useState<[string, boolean] | undefined>(first);
  const columns = useMemo(() => all.filter((column) => !column.has || rows.some(column.has)), [all, rows]);
  const sorted = useMemo(() => {
    const by = sort && all.find((column) => column.key === sort[0])?.by;
    if (!by) return rows;
    const turn = sort[1] ? -1 : 1;
    const keyed = rows.map((row) => [by(row), row] as const);
    keyed.sort(([a], [b]) => turn * (typeof a === 'number' && typeof b === 'number' ? a - b : compare(String(a), String(b))));
    return keyed.map(([, row]) => row);
  }, [rows, sort, all]);

  const wrap = useRef<HTMLDivElement>(null);
  const scrolls = useTooWide(wrap);
  const whole = sorted.length <= WHOLE_ROWS_MAX;
  const seen = useWindow(wrap, sorted, id, !whole);
  const shown = whole ? sorted : sorted.slice(seen.from, seen.to);
  const quiet = columns.at(-1)?.quiet ? ' ends-quiet' : '';
  const drawn = useDrawn<T>();

  return (
    <div class={(scrolls ? 'table-wrap scrolls' : 'table-wrap') + quiet} ref={wrap} role="region" aria-label={label} tabIndex={scrolls ? 0 : undefined}>
      <table role="table" aria-rowcount={whole ? undefined : sorted.length + 1}>
        <caption class="sr">{label}</caption>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map((column) => (
              <th key={column.key} role="columnheader" scope="col" class={column.num ? 'num' : column.class === 'broad' ? 'broad' : undefined} aria-sort={direction(sort, column.key)}>
                {column.by ? (
                  <button type="button" class="sort" onClick={() => setSort([column.key, sort?.[0] === column.key ? !sort[1] : Boolean(column.num)])}>
                    {column.head}
                    {sort?.[0] === column.key && <Icon name={sort[1] ? 'down' : 'up'} />}
                  </button>
                ) : column.quiet ? <span class="sr">{column.head}</span> : column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {!whole && <Filler height={seen.above} columns={columns.length} />}
          {drawn(shown.map((row, i) => [row, whole ? undefined : seen.from + i + 2]), columns, (row, index) => (
            <tr key={id(row)} role="row" class={rowClass?.(row)} aria-rowindex={index}>
              {columns.map((column, at) => <Cell key={column.key} column={column} row={row} first={at === 0} />)}
            </tr>
          ))}
          {!whole && <Filler height={seen.below} columns={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

interface Drawn<T> { row: T; columns: Column<T>[]; index: number | undefined; shown: VNode }

/** Rows as they were drawn last: scrolling draws only those that are new. */
function useDrawn<T>() {
  const last = useRef(new Map<T, Drawn<T>>());
  return (rows: [row: T, index: number | undefined][], columns: Column<T>[], draw: (row: T, index: number | undefined) => VNode): VNode[] => {
    const next = new Map<T, Drawn<T>>();
    for (const [row, index] of rows) {
      const had = last.current.get(row);
      next.set(row, had && had.columns === columns && had.index === index ? had : { row, columns, index, shown: draw(row, index) });
    }
    last.current = next;
    return [...next.values()].map((one) => one.shown);
  };
}

function Cell<T>({ column, row, first }: { column: Column<T>; row: T; first: boolean }) {
  const content = column.cell(row);
  if (first) return <th role="rowheader" scope="row" class={column.class}>{content}</th>;
  // Where rows are cards, what says nothing takes no room.
  const none = content == null || content === false || content === '' || content === '–';
  const kinds = [column.num && 'num', column.quiet && 'quiet', none && 'none', column.class].filter(Boolean).join(' ');
  return <td role="cell" data-head={column.quiet ? undefined : column.head} class={kinds || undefined}>{content}</td>;
}

function Filler({ height, columns }: { height: number; columns: number }) {
  if (height <= 0) return null;
  return <tr class="filler" aria-hidden="true"><td colSpan={columns} style={{ height: `${height}px` }} /></tr>;
}

/** Whether the table is wider than its place. */
function useTooWide(wrap: { current: HTMLDivElement | null }): boolean {
  const [scrolls, setScrolls] = useState(false);
  useLayoutEffect(() => {
    const box = wrap.current;
    const table = box?.firstElementChild;
    if (!box || !table) return;
    const look = () => setScrolls(table.scrollWidth > box.clientWidth + 1);
    look();
    const watch = new ResizeObserver(look);
    watch.observe(box);
    watch.observe(table);
    return () => watch.disconnect();
  }, []);
  return scrolls;
}

/** The rows in sight of the window's scroll, and the room that the others take. */
function useWindow<T>(wrap: { current: HTMLDivElement | null }, rows: T[], id: (row: T) => string, on: boolean) {
  const heights = useRef(new Heights()).current;
  const [place, setPlace] = useState({ top: 0, height: 900 });
  const [, setMeasured] = useState(0);
  /** How often in a row heights were news. Rows that change the columns' widths must not go round and round. */
  const rounds = useRef({ at: place, rows, count: 0 });
  useEffect(() => {
    if (!on) return;
    let frame = 0;
    const look = () => {
      frame = 0;
      const head = wrap.current?.querySelector('tbody')?.getBoundingClientRect().top ?? 0;
      setPlace((old) => (Math.abs(old.top + head) < MARGIN_PX / 4 && old.height === innerHeight ? old : { top: -head, height: innerHeight }));
    };
    const later = () => {
      frame ||= requestAnimationFrame(look);
    };
    look();
    addEventListener('scroll', later, { passive: true });
    addEventListener('resize', later);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener('scroll', later);
      removeEventListener('resize', later);
    };
  }, [on, rows]);
  const ids = useMemo(() => (on ? rows.map(id) : []), [rows, on]);
  const seen = heights.window(ids, place.top - MARGIN_PX, place.top + place.height + MARGIN_PX);
  // What is drawn is measured: rows have one line, two, or more.
  useLayoutEffect(() => {
    if (!on) return;
    const drawn = wrap.current?.querySelectorAll<HTMLElement>('tbody > tr:not(.filler)') ?? [];
    let changed = false;
    drawn.forEach((row, i) => {
      const key = ids[seen.from + i];
      if (key != null && heights.measured(key, row.getBoundingClientRect().height)) changed = true;
    });
    const mine = rounds.current;
    if (mine.at !== place || mine.rows !== rows) rounds.current = { at: place, rows, count: 0 };
    rounds.current.count += 1;
    if (changed && rounds.current.count <= ROUNDS_MAX) setMeasured((n) => n + 1);
  });
  return seen;
}

function direction(sort: [string, boolean] | undefined, key: string): 'ascending' | 'descending' | undefined {
  if (sort?.[0] !== key) return undefined;
  return sort[1] ? 'descending' : 'ascending';
}

const collator = new Intl.Collator('en', { numeric: true });

export function compare(a: string, b: string): number {
  return collator.compare(a, b);
}
