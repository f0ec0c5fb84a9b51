// Short messages at the corner, some with a way back.
import { signal } from '@preact/signals';
import { Icon } from './icons';

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  undo?: (() => void) | undefined;
}

const TOASTS_MAX = 4;
const SHOWN_MS = 8_000;
const SHOWN_WITH_UNDO_MS = 20_000;

const toasts = signal<Toast[]>([]);
let last = 0;

function close(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

/** Shows a message; with `undo` it has a button for that. */
export function toast(text: string, more: { bad?: boolean; undo?: () => void } = {}): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value, { id, text, bad: more.bad ?? false, undo: more.undo }].slice(-TOASTS_MAX);
  setTimeout(() => close(id), more.undo ? SHOWN_WITH_UNDO_MS : SHOWN_MS);
}

export function Toasts() {
  return (
    <section class="toasts" aria-label="Messages">
      <div role="status" aria-live="polite" class="stack">
        {toasts.value.map((one) => (
          <div key={one.id} class={one.bad ? 'toast err' : 'toast'}>
            <span>{one.text}</span>
            {one.undo && (
              <button type="button" onClick={() => {
                close(one.id);
                one.undo?.();
              }}>Undo</button>
            )}
            <button type="button" class="close" aria-label="Close message" onClick={() => close(one.id)}><Icon name="cross" /></button>
          </div>
        ))}
      </div>
    </section>
  );
}
