// The sign-in screen. The token goes into a header, never into an address.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, reason, signIn } from './api';
import { moved } from './route';
import { Mark } from './ui/icons';

export function SignIn() {
  const [token, setToken] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLInputElement>(null);

  useEffect(() => {
    document.title = 'Sign in · Telaio';
    field.current?.focus();
  }, []);

  const submit = async (event: Event) => {
    event.preventDefault();
    if (!token.trim()) {
      setProblem('Enter the token.');
      field.current?.focus();
      return;
    }
    setBusy(true);
    setProblem(null);
    try {
      moved.yet = true;
      await signIn(token);
    } catch (error) {
      setProblem(error instanceof ApiError && error.status === 401 ? 'This token is not known here.' : reason(error));
      setBusy(false);
      field.current?.focus();
      field.current?.select();
    }
  };

  return (
    <main class="sign-in">
      <form onSubmit={(e) => void submit(e)} noValidate>
        <span class="brand"><Mark />Telaio</span>
        <div>
          <h1>Sign in to this node</h1>
          <p>With a token of the agent, or one of your cluster if it asks that.</p>
        </div>
        <div class="field">
          <label for="token">Token</label>
          <input ref={field} id="token" class="input mono" type="password" autocomplete="off" spellcheck={false} value={token}
            aria-invalid={problem != null} aria-describedby="token-help" onInput={(e) => setToken(e.currentTarget.value)} />
          <span id="token-help" role="alert" class={problem ? 'problem' : 'hint'}>
            {problem ?? 'Kept in this tab until you sign out or close it.'}
          </span>
        </div>
        <button type="submit" class="btn primary" disabled={busy}>{busy ? 'Signing in…' : 'Sign in'}</button>
        <div class="small token-places">
          <p>Where to find one:</p>
          <ul>
            <li>Started in a terminal, the agent printed it there.</li>
            <li>As a service: in the file <code>admin.token</code> of its state directory, or what <code>--admin-token-file</code> names.</li>
            <li>In a cluster with <code>--admin-token-review</code>: <code>kubectl create token</code> of an account that may get or update <code>overrides.telaio.dev</code>.</li>
          </ul>
        </div>
      </form>
    </main>
  );
}
