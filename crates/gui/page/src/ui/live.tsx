// Whether what is shown is live.
import { age } from '../format';
import { heardAt, link, now } from '../live';

/** The state of the connection, in a word. */
export function Live() {
  const state = link.value;
  if (state === 'lost') return <span class="live is-lost">Offline · {age((now.value - heardAt.value) / 1000)} old</span>;
  if (state === 'starting') return <span class="live is-waiting">Connecting</span>;
  return <span class="live">Live</span>;
}
