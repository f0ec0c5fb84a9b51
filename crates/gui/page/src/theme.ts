// Light or dark: as the system says, until the person chooses.
import { effect, signal } from '@preact/signals';

export type Theme = 'light' | 'dark';

const KEY = 'telaio-theme';
const system = matchMedia('(prefers-color-scheme: dark)');

function chosen(): Theme | null {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'light' || value === 'dark' ? value : null;
  } catch {
    return null;
  }
}

export const theme = signal<Theme>(chosen() ?? (system.matches ? 'dark' : 'light'));

system.addEventListener('change', () => {
  if (!chosen()) theme.value = system.matches ? 'dark' : 'light';
});

effect(() => {
  document.documentElement.dataset['theme'] = theme.value;
});

export function turn(): void {
  theme.value = theme.value === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // It then lasts as long as the page.
  }
}
