// The frame around the views.
import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { useSignalEffect } from '@preact/signals';
import { ApiError, hasToken, me, signIn, signOut } from './api';
import { duration } from './format';
import { heardAt, link, now, overview, retryAt, retryNow, spoken, start, stop } from './live';
import { ActionDialog, mayAct } from './manage';
import { place, to } from './route';
import { SignIn } from './sign-in';
import { theme, turn } from './theme';
import { Icon, Mark, type IconName } from './ui/icons';
import { Live } from './ui/live';
import { Toasts } from './ui/toast';
import { EventsView } from './views/events';
import { MapView } from './views/map';
import { OverridesView } from './views/overrides';
import { OverviewView } from './views/overview';
import { PodsView } from './views/pods';
import { RoutesView } from './views/routes';
import { ServiceView } from './views/service';
import { ServicesView } from './views/services';
import { TraceView } from './views/trace';
import type { Counts } from './types';

interface View {
  name: string;
  title: string;
  icon: IconName;
  view: ComponentType;
  count?: (counts: Counts) => number;
}

const VIEWS: View[] = [
  { name: 'overview', title: 'Overview', icon: 'overview', view: OverviewView },
  { name: 'map', title: 'Traffic map', icon: 'map', view: MapView },
  { name: 'services', title: 'Services', icon: 'services', view: ServicesView, count: (c) => c.services },
  { name: 'routes', title: 'Routes', icon: 'routes', view: RoutesView, count: (c) => c.routes },
  { name: 'pods', title: 'Pods', icon: 'pods', view: PodsView, count: (c) => c.instances },
  { name: 'trace', title: 'Trace', icon: 'trace', view: TraceView },
  { name: 'events', title: 'Events', icon: 'events', view: EventsView },
  { name: 'overrides', title: 'Overrides & audit', icon: 'overrides', view: OverridesView, count: (c) => c.overrides },
];

export function App() {
  const [starting, setStarting] = useState(hasToken());
  const [unreachable, setUnreachable] = useState<string | null>(null);
  const resume = () => {
    setStarting(true);
    setUnreachable(null);
    signIn(sessionStorage.getItem('telaio-token') ?? '').catch((error: unknown) => {
      if (!(error instanceof ApiError && error.status === 401)) setUnreachable(String((error as Error).message));
    }).finally(() => setStarting(false));
  };
  useEffect(() => {
    if (hasToken()) resume();
  }, []);
  useSignalEffect(() => {
    if (me.value) start();
    else stop();
  });
  if (starting) return <p class="sr" role="status">Signing in</p>;
  if (unreachable && !me.value) {
    return (
      <main class="sign-in">
        <div class="empty">
          <Icon name="warn" />
          <h1>The agent does not answer</h1>
          <p>{unreachable}</p>
          <button type="button" class="btn" onClick={resume}><Icon name="refresh" />Try again</button>
        </div>
      </main>
    );
  }
  return me.value ? <Shell /> : <SignIn />;
}

function Shell() {
  const [open, setOpen] = useState(false);
  const at = place.value;
  const known = VIEWS.find((one) => one.name === at.view);
  const Shown = at.view === 'services' && at.path.length === 2 ? ServiceView : (known?.view ?? Unknown);
  useEffect(() => {
    setOpen(false);
    scrollTo(0, 0);
  }, [at.view, at.path.join('/')]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => {
        e.preventDefault();
        document.getElementById('main')?.focus();
      }}>Skip to the content</a>
      <div class={link.value === 'lost' ? 'shell is-stale' : 'shell'}>
        <header class="topbar">
          <a class="brand" href={to('overview')}><Mark />Telaio</a>
          <Live />
          <button type="button" class="btn quiet icon" aria-expanded={open} aria-controls="nav" aria-label="Menu" onClick={() => setOpen(!open)}>
            <Icon name={open ? 'cross' : 'menu'} />
          </button>
        </header>
        <Nav open={open} current={at.view} />
        <main id="main" class="main" tabIndex={-1}>
          <Lost />
          <Shown />
        </main>
      </div>
      <Toasts />
      <ActionDialog />
      <div class="sr" role="log" aria-live="polite">{spoken.value}</div>
    </>
  );
}

function Nav({ open, current }: { open: boolean; current: string }) {
  const seen = overview.value;
  const dark = theme.value === 'dark';
  return (
    <aside id="nav" aria-label="Telaio" class={open ? 'nav is-open' : 'nav'}>
      <a class="brand" href={to('overview')}><Mark />Telaio</a>
      <nav aria-label="Views">
        <ul class="nav-list">
          {VIEWS.map((one) => {
            const count = seen && one.count ? one.count(seen.counts) : null;
            return (
              <li key={one.name}>
                <a href={to(one.name)} aria-current={current === one.name ? 'page' : undefined}>
                  <Icon name={one.icon} />
                  {one.title}
                  {count != null && count > 0 && (
                    <span class={one.name === 'overrides' ? 'count marked' : 'count'}>{count.toLocaleString('en')}</span>
                  )}
                </a>
              </li>
            );
          })}
        </ul>
      </nav>
      <div class="nav-foot">
        <div class="who">
          <b>{seen?.node ?? (seen ? seen.command : '')}</b>
          <span>{seen ? `telaio ${seen.version} · up ${duration(seen.uptime_s)}` : ''}</span>
          <span>{rights()}</span>
        </div>
        <div class="row">
          <button type="button" class="btn quiet icon" aria-label={dark ? 'Light colours' : 'Dark colours'} title={dark ? 'Light colours' : 'Dark colours'} onClick={turn}>
            <Icon name={dark ? 'sun' : 'moon'} />
          </button>
          <button type="button" class="btn quiet icon" aria-label="Sign out" title="Sign out" onClick={signOut}><Icon name="out" /></button>
        </div>
      </div>
    </aside>
  );
}

/** What who is signed in may do. */
function rights(): string {
  const decide = mayAct();
  if (decide.may) return 'Signed in to manage';
  return mayAct(true).may ? `Purge and re-sync only: ${decide.because}` : `Read only: ${decide.because}`;
}

function Lost() {
  if (link.value !== 'lost') return null;
  const old = (now.value - heardAt.value) / 1000;
  const wait = Math.max(0, Math.ceil((retryAt.value - now.value) / 1000));
  return (
    <div class="banner" role="alert">
      <Icon name="warn" />
      <span>
        <strong>The agent does not answer.</strong>{' '}
        {heardAt.value ? `What you see is ${duration(old)} old.` : ''} {wait > 0 ? `Next try in ${wait} s.` : 'Trying…'}
      </span>
      <button type="button" class="btn tiny" onClick={retryNow}>Try now</button>
    </div>
  );
}

function Unknown() {
  return (
    <div class="empty">
      <Icon name="search" />
      <h1>There is no such view</h1>
      <p><a href={to('overview')}>Go to the overview</a></p>
    </div>
  );
}
