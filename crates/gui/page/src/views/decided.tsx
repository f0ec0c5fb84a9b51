// The mark on what people decided about: what, by whom, and until when, in words.
import { targetText, text } from '../asks';
import { duration, moment } from '../format';
import { decided, now, skewMs } from '../live';
import { to } from '../route';
import { Badge } from '../ui/parts';
import { Icon, type IconName } from '../ui/icons';
import type { Key, OverrideItem } from '../types';
import { overrideTone } from './state';

export const DECISION_ICONS: Record<string, IconName> = { drain: 'drain', weight: 'scale', add: 'plus', remove: 'minus', pause: 'pause' };
const DONE: Record<string, string> = { drain: 'drained', add: 'added', remove: 'removed', pause: 'paused' };

/** How long until then, on the agent's clock. */
export function Until({ ms }: { ms: number | null }) {
  if (ms == null) return <span>until undone</span>;
  const left = (ms - skewMs.value - now.value) / 1000;
  return <span title={moment(ms)}>{left > 0 ? `${duration(left)} left` : 'over'}</span>;
}

/** `drained`, `weight 5`. */
export function decision(one: OverrideItem): string {
  return one.action === 'weight' ? `weight ${one.weight ?? 0}` : (DONE[one.action] ?? one.action);
}

/** `by ana, 54 min left`, and that it stands in a manifest. */
export function By({ one }: { one: OverrideItem }) {
  return <>{one.by ? `by ${one.by}, ` : ''}<Until ms={one.until_ms} />{one.managed ? '' : ', in a manifest'}</>;
}

/** What was decided about a service, or about an Ingress. */
export function about(key: Key, kind: 'service' | 'ingress' = 'service'): OverrideItem[] {
  return decided.value.filter((one) => {
    const its = one[kind];
    return its != null && its.namespace === key.namespace && its.name === key.name;
  });
}

/** What touches an endpoint: by its address, its pod or its node. */
export function touching(items: OverrideItem[], address: string, pod: string | null, node: string | null): OverrideItem[] {
  return items.filter(({ target }) => target != null && (
    'address' in target ? target.address === address : 'pod' in target ? target.pod === pod : target.node === node
  ));
}

/** The mark: in words, so that it needs no pointer. It leads to the decisions. */
export function Marks({ items, short = false }: { items: OverrideItem[]; short?: boolean }) {
  if (!items.length) return null;
  const shown = short ? items.slice(0, 1) : items;
  return (
    <span class="marks">
      {shown.map((one) => (
        <span key={`${one.namespace}/${one.name}`} class="decided">
          <Badge tone={overrideTone(one)} icon={DECISION_ICONS[one.action] ?? 'overrides'}>{decision(one)}</Badge>
          <span class="small faint"><By one={one} /></span>
        </span>
      ))}
      {items.length > shown.length && <a class="small" href={to('overrides')}>{`and ${items.length - shown.length} more`}</a>}
    </span>
  );
}

/** The same in a line of text, for what the map says of a vertex. */
export function Said({ items }: { items: OverrideItem[] }) {
  return (
    <>
      {items.map((one) => (
        <span key={`${one.namespace}/${one.name}`} class="decided">
          <Icon name={DECISION_ICONS[one.action] ?? 'overrides'} />
          <span>{one.target ? `${targetText(one.target)} ` : one.ingress ? `${one.host ?? text(one.ingress)}${one.path ?? ''} ` : ''}{decision(one)} <By one={one} />{one.reason ? `: ${one.reason}` : ''}</span>
        </span>
      ))}
    </>
  );
}
