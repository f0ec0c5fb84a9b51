// Acting: one dialog that shows what an action will touch, then a toast with a way back.
import { signal } from '@preact/signals';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import { act, me, reason as why, undo } from './api';
import { moment, plural, sentence } from './format';
import { skewMs } from './live';
import { Icon } from './ui/icons';
import { toast } from './ui/toast';
import type { Action, ActionResult } from './types';

/** The entry of the audit log that is to be undone. */
export interface Undoing { undo: string }

/** A question to the person, before an action. */
export interface Ask {
  title: string;
  about: ComponentChildren;
  /** What the button says. */
  verb: string;
  /** It lasts, so it can end by itself. */
  lasts: boolean;
  danger?: boolean;
  /** The action, or what is missing for it. */
  action: (fields: Fields) => Action | Undoing | string;
  fields?: FieldSpec[];
}

export interface FieldSpec {
  name: string;
  label: string;
  hint?: string;
  type?: 'text' | 'number' | 'choice';
  options?: readonly (readonly [string, string])[];
  first?: string;
  placeholder?: string;
}

export type Fields = Record<string, string>;

const SPANS: readonly (readonly [string, string, number | null])[] = [
  ['15m', '15 min', 900],
  ['1h', '1 hour', 3600],
  ['8h', '8 hours', 28_800],
  ['1d', '1 day', 86_400],
  ['7d', '7 days', 604_800],
  ['none', 'until undone', null],
];
const REASON_CHARS_MAX = 500;
const PREVIEW_WAIT_MS = 250;
const TOUCHES_SHOWN_MAX = 8;

const asking = signal<Ask | null>(null);
/** What had the focus when the question was asked: it gets it back. */
let opener: Element | null = null;

export function ask(question: Ask): void {
  opener = document.activeElement;
  asking.value = question;
}

/** Whether the one who is signed in may act, and if not, why; with `here` about what decides nothing, such as a purge. */
export function mayAct(here = false): { may: boolean; because: string } {
  const who = me.value;
  if (!who) return { may: false, because: 'Nobody is signed in.' };
  if (who.role !== 'admin') return { may: false, because: 'This token may only look.' };
  // Decisions are the source's; what this node programs and keeps is its own.
  if (who.read_only_because && !here) return { may: false, because: who.read_only_because };
  return { may: true, because: '' };
}

/** A button that asks. Those who may not act have no such buttons; the navigation says why. */
export function ActButton({ question, children, class: kind = '', here = false, label }: {
  question: () => Ask;
  children: ComponentChildren;
  class?: string;
  /** It decides nothing: it is about this node's own cache or rules. */
  here?: boolean;
  /** For buttons without words. */
  label?: string;
}) {
  if (!mayAct(here).may) return null;
  return <button type="button" class={`btn ${kind}`} aria-label={label} title={label} onClick={() => ask(question())}>{children}</button>;
}

/** Asks the agent to do it, or only what it would touch. */
function send(action: Action | Undoing, how: { dry_run: boolean; reason: string; for_s: number | null }): Promise<ActionResult> {
  if ('undo' in action) return undo(action.undo, { dry_run: how.dry_run, reason: how.reason });
  return act({ action, ...how });
}

function done(result: ActionResult): void {
  const { id } = result;
  const until = result.until_ms ? `, until ${moment(result.until_ms - skewMs.value)}` : '';
  const said = sentence(result.summary) + until;
  if (result.undoable && id != null) toast(said, { undo: () => ask(undoing(id, result.summary)) });
  else toast(said);
}

/** The question before an action is undone. */
export function undoing(id: string, summary: string): Ask {
  return { title: `Undo #${id}`, about: `It was: ${summary}.`, verb: 'Undo', lasts: false, action: () => ({ undo: id }) };
}

export function ActionDialog() {
  const question = asking.value;
  if (!question) return null;
  return <Dialog key={question.title} question={question} />;
}

function Dialog({ question }: { question: Ask }) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [fields, setFields] = useState<Fields>(() => Object.fromEntries((question.fields ?? []).map((one) => [one.name, one.first ?? ''])));
  const [span, setSpan] = useState('1h');
  const [because, setBecause] = useState('');
  const [preview, setPreview] = useState<ActionResult | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  const action = question.action(fields);
  const forS = question.lasts ? (SPANS.find(([key]) => key === span)?.[2] ?? null) : null;
  const wanted = typeof action === 'string' ? '' : JSON.stringify(action);

  // Before anything is painted: a key that is pressed now is for the dialog, not for what is behind it.
  useLayoutEffect(() => {
    const before = opener;
    const dialog = box.current;
    dialog?.showModal();
    return () => {
      // While a dialog is open nothing else can take the focus.
      dialog?.close();
      // Where the focus was, unless the action took that away.
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      else document.getElementById('main')?.focus();
    };
  }, []);

  useEffect(() => {
    setPreview(null);
    setProblem(null);
    if (typeof action === 'string') return;
    let gone = false;
    const timer = setTimeout(() => {
      send(action, { dry_run: true, reason: '', for_s: forS }).then(
        (result) => !gone && setPreview(result),
        (error: unknown) => !gone && setProblem(why(error)),
      );
    }, preview ? PREVIEW_WAIT_MS : 0);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [wanted, forS]);

  const close = () => {
    if (asking.value === question) asking.value = null;
  };
  const confirm = async (event: Event) => {
    event.preventDefault();
    if (typeof action === 'string' || busy) return;
    setBusy(true);
    try {
      const result = await send(action, { dry_run: false, reason: because.trim(), for_s: forS });
      close();
      done(result);
    } catch (error) {
      setProblem(why(error));
      setBusy(false);
    }
  };

  return (
    <dialog ref={box} aria-labelledby={`${id}-title`} aria-describedby={`${id}-about`} onCancel={close} onClose={close}
      onClick={(e) => e.target === box.current && close()}>
      <form onSubmit={(e) => void confirm(e)}>
        <div class="dialog-head">
          <h2 id={`${id}-title`}>{question.title}</h2>
          <p id={`${id}-about`}>{question.about}</p>
        </div>
        <div class="dialog-body">
          {question.fields?.map((spec) => (
            <Field key={spec.name} spec={spec} value={fields[spec.name] ?? ''} onInput={(value) => setFields({ ...fields, [spec.name]: value })} />
          ))}
          <Impact preview={preview} problem={problem} missing={typeof action === 'string' ? action : null} />
          {question.lasts && (
            <fieldset class="field">
              <legend class="label small">Ends by itself</legend>
              <div class="choices">
                {SPANS.map(([key, text]) => (
                  <label key={key}>
                    <input type="radio" name={`${id}-span`} value={key} checked={span === key} onChange={() => setSpan(key)} />
                    <span>{text}</span>
                  </label>
                ))}
              </div>
            </fieldset>
          )}
          <div class="field">
            <label for={`${id}-reason`}>Reason <span class="faint">(for the audit log)</span></label>
            <input id={`${id}-reason`} class="input" maxLength={REASON_CHARS_MAX} autocomplete="off" value={because}
              onInput={(e) => setBecause(e.currentTarget.value)} />
          </div>
        </div>
        <div class="dialog-foot">
          <button type="button" class="btn" onClick={close}>Cancel</button>
          <button type="submit" class={question.danger ? 'btn danger' : 'btn primary'} disabled={busy || typeof action === 'string' || !preview}>
            {busy ? 'Working…' : question.verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}

function Field({ spec, value, onInput }: { spec: FieldSpec; value: string; onInput: (value: string) => void }) {
  const id = useId();
  if (spec.type === 'choice') {
    return (
      <fieldset class="field">
        <legend class="label small">{spec.label}</legend>
        <div class="choices">
          {spec.options?.map(([key, text]) => (
            <label key={key}>
              <input type="radio" name={id} value={key} checked={value === key} onChange={() => onInput(key)} />
              <span>{text}</span>
            </label>
          ))}
        </div>
      </fieldset>
    );
  }
  return (
    <div class="field">
      <label for={id}>{spec.label}</label>
      <input id={id} class="input" type="text" inputMode={spec.type === 'number' ? 'numeric' : 'text'} value={value} placeholder={spec.placeholder} autocomplete="off" spellcheck={false}
        aria-describedby={spec.hint ? `${id}-hint` : undefined} onInput={(e) => onInput(e.currentTarget.value)} />
      {spec.hint && <span id={`${id}-hint`} class="hint">{spec.hint}</span>}
    </div>
  );
}

/** What it will touch, as the agent says. */
function Impact({ preview, problem, missing }: { preview: ActionResult | null; problem: string | null; missing: string | null }) {
  const grave = problem != null || (preview?.warnings.length ?? 0) > 0;
  return (
    <div class={grave ? 'impact is-grave' : 'impact'} role="status">
      <h3>What it touches</h3>
      {problem && <p class="warning"><Icon name="warn" /><span>{problem}</span></p>}
      {!problem && missing && <p class="muted">{missing}</p>}
      {!problem && !missing && !preview && <span class="skeleton w1"><span class="sr">Asking the agent</span></span>}
      {preview && (
        <>
          {!preview.touches.length && <p class="break">{sentence(preview.summary)}</p>}
          {preview.touches.length > 0 && (
            <ul class="small">
              {preview.touches.slice(0, TOUCHES_SHOWN_MAX).map((touch) => (
                <li key={touch.kind + touch.object}>
                  <span><code>{touch.object}</code> <span class="muted">{touch.before} → {touch.after}</span></span>
                </li>
              ))}
              {preview.touches_total > TOUCHES_SHOWN_MAX && <li>{plural(preview.touches_total - TOUCHES_SHOWN_MAX, 'more', 'more')}</li>}
            </ul>
          )}
          {preview.warnings.map((text) => <p key={text} class="warning"><Icon name="warn" /><span>{text}</span></p>)}
          {preview.until_ms != null && <p class="small muted">Until {moment(preview.until_ms - skewMs.value)}.</p>}
          {!preview.undoable && <p class="small muted">This cannot be undone.</p>}
        </>
      )}
    </div>
  );
}
