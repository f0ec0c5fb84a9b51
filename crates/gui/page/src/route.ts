// Which view is shown: the part of the address after '#'. The token is never in it.
import { signal } from '@preact/signals';

/** Where we are: `#/services/prod/web?q=x` is view `services`, path `['prod','web']`, query `q=x`. */
export interface Place {
  view: string;
  path: string[];
  query: URLSearchParams;
}

export function parse(hash: string): Place {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const [view = '', ...rest] = path.split('/').filter(Boolean).map(decode);
  return { view: view || 'overview', path: rest, query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** A link to a view. */
export function to(view: string, path: string[] = [], query: Record<string, string> = {}): string {
  const parts = [view, ...path].map(encodeURIComponent).join('/');
  const given = Object.entries(query).filter(([, value]) => value !== '');
  return given.length ? `#/${parts}?${new URLSearchParams(given)}` : `#/${parts}`;
}

export const place = signal<Place>(parse(location.hash));

/** Whether the person has moved since the page was loaded: then the new heading takes the focus. */
export const moved = { yet: false };

addEventListener('hashchange', () => {
  moved.yet = true;
  place.value = parse(location.hash);
});

export function go(link: string): void {
  location.hash = link;
}

/** Changes the query of the present place without a new entry in the history. */
export function amend(query: Record<string, string>): void {
  const { view, path, query: old } = place.value;
  const merged = { ...Object.fromEntries(old), ...query };
  history.replaceState(null, '', to(view, path, merged));
  place.value = parse(location.hash);
}
