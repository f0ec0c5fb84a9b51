// What people decided, and who did what.
import { useState } from 'preact/hooks';
import * as asks from '../asks';
import { ago, clock, day, moment, sentence } from '../format';
import { now, skewMs } from '../live';
import { ActButton, undoing } from '../manage';
import { to } from '../route';
import { Icon } from '../ui/icons';
import { Live } from '../ui/live';
import { Asking, Badge, Card, Empty, Search, ViewHead, type Tone } from '../ui/parts';
import { Table, type Column } from '../ui/table';
import { useAsked } from '../use';
import type { AuditEntry, OverrideItem, Page } from '../types';
import { DECISION_ICONS, Until } from './decided';
import { overrideTone } from './state';

function Object_({ item }: { item: OverrideItem }) {
  if (item.service) {
    return (
      <span class="two-lines">
        <a href={to('services', [item.service.namespace, item.service.name])}>{asks.text(item.service)}</a>
        <code class="small faint">{item.target ? asks.targetText(item.target) : ''}</code>
      </span>
    );
  }
  if (item.ingress) {
    return (
      <span class="two-lines">
        <a href={to('routes', [], { ingress: asks.text(item.ingress) })}>{asks.text(item.ingress)}</a>
        <code class="small faint">{`${item.host ?? ''}${item.path ?? ''}`}</code>
      </span>
    );
  }
  return <>{item.summary}</>;
}

function TakeBack({ item }: { item: OverrideItem }) {
  if (!item.managed) return <Badge tone="outline" icon="lock" title="It stands in a manifest; change it there">from a manifest</Badge>;
  return (
    <div class="actions">
      <ActButton class="tiny" question={() => asks.removeOverride({ namespace: item.namespace, name: item.name })}>
        <Icon name="cross" />Take back<span class="sr"> {item.summary}</span>
      </ActButton>
    </div>
  );
}

const OVERRIDES: Column<OverrideItem>[] = [
  {
    key: 'action',
    head: 'Decision',
    by: (o) => o.action,
    cell: (o) => <Badge tone={overrideTone(o)} icon={DECISION_ICONS[o.action] ?? 'overrides'}>{o.action === 'weight' ? `weight ${o.weight ?? ''}` : o.action}</Badge>,
  },
  { key: 'object', head: 'Of', by: (o) => `${o.service ? asks.text(o.service) : ''}${o.ingress ? asks.text(o.ingress) : ''}`, cell: (o) => <Object_ item={o} /> },
  { key: 'by', head: 'By', by: (o) => o.by, cell: (o) => o.by || <span class="faint">unknown</span> },
  { key: 'reason', head: 'Reason', cell: (o) => (o.reason ? <span class="break">{o.reason}</span> : <span class="faint">none given</span>), class: 'wide' },
  { key: 'since', head: 'Since', by: (o) => o.since_ms ?? 0, cell: (o) => (o.since_ms ? <span title={moment(o.since_ms)}>{ago((now.value + skewMs.value - o.since_ms) / 1000)}</span> : <span class="faint">–</span>), class: 'nowrap' },
  { key: 'until', head: 'Ends', by: (o) => o.until_ms ?? Number.MAX_SAFE_INTEGER, cell: (o) => <Until ms={o.until_ms} />, class: 'nowrap' },
  { key: 'touches', head: 'Touches', num: true, by: (o) => o.touches, cell: (o) => o.touches },
  { key: 'back', head: 'Take back', quiet: true, cell: (o) => <TakeBack item={o} />, class: 'num' },
];

export function OverrideList({ title, items }: { title: string; items: OverrideItem[] }) {
  return (
    <Card title={title} note={String(items.length)} flush>
      <Table label={title} columns={OVERRIDES} rows={items} id={(o) => `${o.namespace}/${o.name}`} />
    </Card>
  );
}

const OUTCOMES: Record<AuditEntry['outcome'], [Tone, string]> = {
  done: ['ok', 'done'],
  refused: ['warn', 'refused'],
  failed: ['err', 'failed'],
  expired: ['plain', 'ended by itself'],
};

function UndoEntry({ entry }: { entry: AuditEntry }) {
  if (entry.undone_by != null) return <span class="faint small">undone by #{entry.undone_by}</span>;
  if (!entry.undoable) return null;
  return (
    <ActButton class="tiny" question={() => undoing(entry.id, entry.summary)}><Icon name="undo" />Undo<span class="sr"> #{entry.id}</span></ActButton>
  );
}

const AUDIT: Column<AuditEntry>[] = [
  { key: 'when', head: 'When', cell: (a) => <span class="two-lines nowrap weak" title={`#${a.id}`}><span>{clock(a.at_ms)}</span><span class="small faint">{day(a.at_ms)}</span></span> },
  { key: 'who', head: 'Who', cell: (a) => <span class="two-lines"><span>{a.who}</span><span class="faint small mono">{a.from}</span></span> },
  {
    key: 'what',
    head: 'What',
    cell: (a) => (
      <span class="two-lines">
        <span class="break">{sentence(a.summary)}</span>
        {(a.reason || a.error) && <span class="small muted break">{a.error ?? a.reason}</span>}
      </span>
    ),
    class: 'wide',
  },
  { key: 'outcome', head: 'Outcome', cell: (a) => <Badge tone={OUTCOMES[a.outcome][0]}>{a.undoes != null ? `undid #${a.undoes}` : OUTCOMES[a.outcome][1]}</Badge> },
  { key: 'undo', head: 'Undo', quiet: true, cell: (a) => <UndoEntry entry={a} />, class: 'num' },
];

export function OverridesView() {
  const [q, setQ] = useState('');
  const overrides = useAsked<Page<OverrideItem>>('overrides', { limit: 1000 }, { still: true });
  const audit = useAsked<Page<AuditEntry>>('audit', { q, limit: 200 }, { still: true });
  return (
    <div class="view">
      <ViewHead title="Overrides & audit" about="What people decided against what the cluster says. Every replica and every restart follows it.">
        <Live />
      </ViewHead>
      <Asking asked={overrides} lines={4} card />
      {overrides.value && (overrides.value.items.length
        ? <OverrideList title="In force" items={overrides.value.items} />
        : (
          <Card title="In force" flush>
            <Empty icon="overrides" title="Nothing is overridden">
              <p>Drain or weight a backend on the page of its service, or pause a route: it then stands here, with who decided it and until when.</p>
            </Empty>
          </Card>
        ))}
      <Card title="Audit log" flush tools={<Search label="Search the audit log" value={q} onInput={setQ} />}>
        <Asking asked={audit} lines={6} />
        {audit.value && (audit.value.items.length
          ? <Table label="Audit log" columns={AUDIT} rows={audit.value.items} id={(a) => String(a.id)} />
          : <Empty icon="clock" title={q ? 'No entry fits' : 'Nobody has done anything yet'}><p>Every action is written down here, also those that were refused.</p></Empty>)}
      </Card>
    </div>
  );
}
