// Small parts that every view uses.
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { duration } from '../format';
import { link, now, skewMs } from '../live';
import { moved } from '../route';
import type { Stale } from '../types';
import { Icon, type IconName } from './icons';

export type Tone = 'ok' | 'warn' | 'err' | 'info' | 'plain' | 'outline';

const TONE_ICON: Partial<Record<Tone, IconName>> = { ok: 'check', warn: 'warn', err: 'cross' };

/** A word with a tone. The tone has a shape as well as a colour. */
export function Badge({ tone = 'plain', icon, title, children }: {
  tone?: Tone;
  icon?: IconName | 'none';
  title?: string | undefined;
  children: ComponentChildren;
}) {
  const shown = icon === 'none' ? undefined : (icon ?? TONE_ICON[tone]);
  return (
    <span class={`badge ${tone}`} title={title}>
      {shown && <Icon name={shown} />}
      {children}
    </span>
  );
}

export function Card({ title, note, tools, children, flush = false, ruled = false, label }: {
  title?: ComponentChildren;
  note?: ComponentChildren;
  tools?: ComponentChildren;
  children?: ComponentChildren;
  flush?: boolean;
  ruled?: boolean;
  label?: string;
}) {
  return (
    <section class="card" aria-label={label}>
      {title != null && (
        <div class="card-head">
          <h2>{title}</h2>
          {note != null && <span class="note">{note}</span>}
          {tools}
        </div>
      )}
      {flush || children == null || children === false ? children : <div class={ruled ? 'card-body ruled' : 'card-body'}>{children}</div>}
    </section>
  );
}

export function Empty({ icon = 'dot', title, children }: { icon?: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** What stands where something is still on its way. */
export function Skeleton({ lines = 6 }: { lines?: number }) {
  return (
    <div class="stack skeletons" role="status">
      <span class="sr">Loading</span>
      {Array.from({ length: lines }, (_, i) => <span key={i} class={`skeleton w${(i * 7) % 4}`} />)}
    </div>
  );
}

/** What stands where asking failed. */
export function Failed({ error, retry }: { error: string; retry?: () => void }) {
  return (
    <Empty icon="warn" title="This could not be loaded">
      <p>{error}</p>
      {retry && <button type="button" class="btn" onClick={retry}><Icon name="refresh" />Try again</button>}
    </Empty>
  );
}

/** What the agent itself knows to be old says so. */
function Old({ value }: { value: unknown }) {
  const stale = typeof value === 'object' && value != null && 'stale' in value ? (value.stale as Stale | null) : null;
  if (!stale) return null;
  const old = stale.since_ms == null ? 'This is not known' : `This is ${duration((now.value + skewMs.value - stale.since_ms) / 1000)} old`;
  return <div class="banner warn old" role="status"><Icon name="clock" /><span>{old}: {stale.reason}</span></div>;
}

/** What stands above, or in place of, what was asked for: why it failed, or that it is on its way. */
export function Asking({ asked, lines, card = false }: { asked: { value: unknown; error: string | null; again: () => void }; lines?: number; card?: boolean }) {
  const { value, error, again } = asked;
  if (error && value == null) {
    const failed = <Failed error={error} retry={again} />;
    return card ? <Card flush>{failed}</Card> : failed;
  }
  // The banner of the whole page says it already while nobody answers.
  if (error) return link.value === 'lost' ? null : <div class="banner warn old" role="status"><Icon name="warn" /><span>This could not be read again, and is old: {error}</span><button type="button" class="btn tiny" onClick={again}>Try again</button></div>;
  if (value != null) return <Old value={value} />;
  return card ? <Card><Skeleton {...(lines == null ? {} : { lines })} /></Card> : <div class="card-body"><Skeleton {...(lines == null ? {} : { lines })} /></div>;
}

export function Search({ label, value, onInput, placeholder }: {
  label: string;
  value: string;
  onInput: (value: string) => void;
  placeholder?: string;
}) {
  return (
    <div class="search">
      <Icon name="search" />
      <input class="input" type="search" aria-label={label} placeholder={placeholder ?? label} value={value}
        spellcheck={false} autocomplete="off" onInput={(e) => onInput(e.currentTarget.value)} />
    </div>
  );
}

export function Choice<T extends string>({ label, value, options, onChange }: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <div class="seg" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onChange(key)}>{text}</button>
      ))}
    </div>
  );
}

/** The head of a view. Its title takes the focus when the view opens, so that a reader hears where it is. */
export function ViewHead({ title, about, crumb, children }: {
  title: string;
  about?: ComponentChildren;
  crumb?: ComponentChildren;
  children?: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  // Before anything is painted, or it would take the focus from one who has moved on already.
  useLayoutEffect(() => {
    document.title = `${title} · Telaio`;
    if (!moved.yet) return;
    if (document.activeElement === document.body || document.activeElement?.closest('.nav')) {
      heading.current?.focus({ preventScroll: true });
    }
  }, [title]);
  return (
    <header class="view-head">
      <div class="titles">
        {crumb && <nav class="crumb" aria-label="Above">{crumb}</nav>}
        <h1 ref={heading} tabIndex={-1}>{title}</h1>
        {about != null && <p>{about}</p>}
      </div>
      {children && <div class="tools">{children}</div>}
    </header>
  );
}

/** Copies a text, and says so. */
export function Copy({ text, label, onCopied }: { text: string; label: string; onCopied: () => void }) {
  return (
    <button type="button" class="btn" onClick={() => void navigator.clipboard?.writeText(text).then(onCopied, () => undefined)}>
      <Icon name="link" />
      {label}
    </button>
  );
}
