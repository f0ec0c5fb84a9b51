// What changed, when, from which object, and how long until it was in the kernel.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, reason } from '../api';
import { text } from '../asks';
import { clock, day, duration, sentence } from '../format';
import { decided, epoch, fresh, reached } from '../live';
import { amend, place, to } from '../route';
import { Live } from '../ui/live';
import { Badge, Card, Empty, Failed, Search, Skeleton, ViewHead, type Tone } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import type { Event, EventPage } from '../types';
import { By } from './decided';

const CHANGES: Record<string, [Tone, string]> = {
  added: ['ok', 'plus'],
  changed: ['info', 'dot'],
  removed: ['plain', 'minus'],
  failed: ['err', 'cross'],
  recovered: ['ok', 'check'],
  repaired: ['warn', 'warn'],
};
const PART = 200;

function Change({ change }: { change: string }) {
  const [tone, icon] = CHANGES[change] ?? (['plain', 'dot'] as const);
  return <Badge tone={tone} icon={icon as 'dot'}>{change}</Badge>;
}

function Programmed({ event }: { event: Event }) {
  if (event.programmed_ms != null) return <>{duration(event.programmed_ms / 1000)}</>;
  return event.programs ? <Badge tone="info" icon="clock">on its way</Badge> : <span class="faint">–</span>;
}

/** Where an object is shown, by its kind; null where it is gone or nowhere. */
function shown({ kind, object, change }: Event): string | null {
  if (change === 'removed' && kind !== 'Override') return null;
  switch (kind) {
    case 'Service':
    case 'Endpoints':
    case 'EndpointSlice':
      return to('services', [object.namespace, object.name]);
    case 'Ingress':
    case 'HTTPRoute':
      return to('routes', [], { ingress: text(object) });
    case 'Secret':
    case 'certificate':
      return to('routes', ['certificates']);
    case 'Override':
      return to('overrides');
    case 'Node':
    case 'Pod':
    case 'NetworkPolicy':
    case 'pods':
    case 'instance':
      return to('pods');
    case 'source':
    case 'sync':
    case 'ingress':
      return to('overview');
    default:
      return null;
  }
}

/** Our own kinds, in words. */
const KINDS: Record<string, string> = { source: 'Source', sync: 'Sync', ingress: 'Ingress plane', pods: 'Pods plane', certificate: 'Certificate', instance: 'Instance' };

/** What an event is about. An override's name is made of a hash: what it decides says more. */
function Name({ event }: { event: Event }) {
  const { kind, object } = event;
  const one = kind === 'Override' ? decided.value.find((it) => it.namespace === object.namespace && it.name === object.name) : undefined;
  const name = one ? text(one.service ?? one.ingress ?? object) : text(object);
  const href = shown(event);
  return href ? <a href={href}>{name}</a> : <>{name}</>;
}

/** What changed, in words. */
function What({ event }: { event: Event }) {
  const { kind, object, change, summary } = event;
  const one = kind === 'Override' && change !== 'removed' ? decided.value.find((it) => it.namespace === object.namespace && it.name === object.name) : undefined;
  if (!one) return <span class="break">{sentence(summary)}</span>;
  return <span class="two-lines"><span class="break">{sentence(one.summary)}</span><span class="small faint"><By one={one} /></span></span>;
}

const COLUMNS: Column<Event>[] = [
  { key: 'when', head: 'When', cell: (e) => <span class="two-lines nowrap weak"><span>{clock(e.at_ms)}</span>{day(e.at_ms) !== day(Date.now()) && <span class="small faint">{day(e.at_ms)}</span>}</span> },
  { key: 'change', head: 'Change', cell: (e) => <Change change={e.change} /> },
  { key: 'kind', head: 'Kind', cell: (e) => KINDS[e.kind] ?? e.kind },
  { key: 'object', head: 'Object', cell: (e) => <Name event={e} />, class: 'break' },
  { key: 'summary', head: 'What changed', cell: (e) => <What event={e} />, class: 'wide' },
  { key: 'programmed', head: 'In the kernel after', num: true, cell: (e) => <Programmed event={e} /> },
  { key: 'revision', head: 'Revision', num: true, cell: (e) => (e.revision ? <span class="faint">{e.revision.toLocaleString('en')}</span> : '') },
];

export function EventsView() {
  const { query } = place.value;
  const q = query.get('q') ?? '';
  const kind = query.get('kind') ?? '';
  const [old, setOld] = useState<Event[] | null>(null);
  const [before, setBefore] = useState<number | null>(null);
  const [problem, setProblem] = useState<string | null>(null);

  // What was asked last: an answer to something else is not for this list.
  const asked = useRef('');
  const read = (from?: number) => {
    const about = JSON.stringify([q, kind, epoch.peek(), from]);
    asked.current = about;
    get<EventPage>('events', { q, kind, before: from, limit: PART }).then((page) => {
      if (asked.current !== about) return;
      setOld((had) => (from == null ? page.items : [...(had ?? []), ...page.items]));
      setBefore(page.next_before);
      setProblem(null);
    }, (error: unknown) => asked.current === about && setProblem(reason(error)));
  };
  // Also after an outage: what happened then was not heard, and after a restart numbers begin anew.
  useEffect(() => read(), [q, kind, epoch.value]);

  const rows = useMemo(() => {
    const needle = q.toLowerCase();
    const known = new Map((old ?? []).map((event) => [event.id, event]));
    for (const event of fresh.value) {
      if (kind && event.kind !== kind) continue;
      if (needle && !`${text(event.object)} ${event.kind} ${event.summary}`.toLowerCase().includes(needle)) continue;
      if (known.get(event.id)?.programmed_ms == null) known.set(event.id, event);
    }
    for (const [id, took] of reached.value) {
      const event = known.get(id);
      if (event && event.programmed_ms == null) known.set(id, { ...event, programmed_ms: took });
    }
    return [...known.values()].sort((a, b) => b.id - a.id);
  }, [old, fresh.value, reached.value, q, kind]);
  const kinds = useMemo(() => [...new Set([...rows.map((e) => e.kind), ...(kind ? [kind] : [])])].sort(), [rows, kind]);

  return (
    <div class="view">
      <ViewHead title="Events" about="What changed, from which object, and how long until it was in the kernel."><Live /></ViewHead>
      <Card flush>
        <div class="card-head">
          <Search label="Search events" placeholder="Object or text" value={q} onInput={(value) => amend({ q: value })} />
          <select class="select" aria-label="Kind" value={kind} onChange={(e) => amend({ kind: e.currentTarget.value })}>
            <option value="">All kinds</option>
            {kinds.map((one) => <option key={one} value={one}>{KINDS[one] ?? one}</option>)}
          </select>
        </div>
        {problem && !old && <Failed error={problem} retry={() => read()} />}
        {!problem && !old && <div class="card-body"><Skeleton lines={12} /></div>}
        {old && (rows.length
          ? <Table label="Events, newest first" columns={COLUMNS} rows={rows} id={(e) => String(e.id)} />
          : <Empty icon="events" title={q || kind ? 'No event fits' : 'Nothing has changed yet'}><p>Changes of objects appear here in the moment in which the agent hears of them.</p></Empty>)}
        {before != null && <div class="more"><button type="button" class="btn quiet" onClick={() => read(before)}>Show older</button></div>}
      </Card>
    </div>
  );
}
