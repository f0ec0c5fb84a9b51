// A table that sorts, and that draws only the rows in sight when there are many.
import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Icon } from './icons';

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
const ROW_H = 37;
const MARGIN_ROWS = 12;

export function Table<T>({ label, columns, rows, id, rowClass, sort: first }: Props<T>) {
  const [sort, setSort] = useState<[string, boolean] | undefined>(first);
  const sorted = useMemo(() => {
    const by = sort && columns.find((column) => column.key === sort[0])?.by;
    if (!by) return rows;
    const turn = sort[1] ? -1 : 1;
    const keyed = rows.map((row) => [by(row), row] as const);
    keyed.sort(([a], [b]) => turn * (typeof a === 'number' && typeof b === 'number' ? a - b : compare(String(a), String(b))));
    return keyed.map(([, row]) => row);
  }, [rows, sort, columns]);

  const wrap = useRef<HTMLDivElement>(null);
  const whole = sorted.length <= WHOLE_ROWS_MAX;
  const [from, to] = useWindow(wrap, sorted.length, !whole);
  const shown = whole ? sorted : sorted.slice(from, to);

  return (
    <div class="table-wrap" ref={wrap} role="region" aria-label={label} tabIndex={0}>
      <table aria-rowcount={whole ? undefined : sorted.length + 1}>
        <caption class="sr">{label}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key} scope="col" class={column.num ? 'num' : undefined} aria-sort={direction(sort, column.key)}>
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
        <tbody>
          {!whole && <Filler rows={from} columns={columns.length} />}
          {shown.map((row, i) => (
            <tr key={id(row)} class={rowClass?.(row)} aria-rowindex={whole ? undefined : from + i + 2}>
              {columns.map((column, at) => at === 0
                ? <th key={column.key} scope="row" class={column.class}>{column.cell(row)}</th>
                : <td key={column.key} class={[column.num && 'num', column.class].filter(Boolean).join(' ') || undefined}>{column.cell(row)}</td>)}
            </tr>
          ))}
          {!whole && <Filler rows={sorted.length - to} columns={columns.length} />}
        </tbody>
      </table>
    </div>
  );
}

function Filler({ rows, columns }: { rows: number; columns: number }) {
  if (rows <= 0) return null;
  return <tr class="filler" aria-hidden="true"><td colSpan={columns} style={{ height: `${rows * ROW_H}px` }} /></tr>;
}

/** The rows in sight of the window's scroll. */
function useWindow(wrap: { current: HTMLDivElement | null }, rows: number, on: boolean): [number, number] {
  const [range, setRange] = useState<[number, number]>([0, 60]);
  useEffect(() => {
    if (!on) return;
    let frame = 0;
    const look = () => {
      frame = 0;
      const top = wrap.current?.getBoundingClientRect().top ?? 0;
      const first = Math.floor((-top - ROW_H) / ROW_H) - MARGIN_ROWS;
      const seen = Math.ceil(innerHeight / ROW_H) + 2 * MARGIN_ROWS;
      const from = Math.max(0, Math.min(first, rows - seen));
      const to = Math.min(rows, from + seen);
      setRange((old) => (old[0] === from && old[1] === to ? old : [from, to]));
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
  }, [rows, on]);
  return [Math.min(range[0], rows), Math.min(range[1], rows)];
}

function direction(sort: [string, boolean] | undefined, key: string): 'ascending' | 'descending' | undefined {
  if (sort?.[0] !== key) return undefined;
  return sort[1] ? 'descending' : 'ascending';
}

const collator = new Intl.Collator('en', { numeric: true });

export function compare(a: string, b: string): number {
  return collator.compare(a, b);
}
