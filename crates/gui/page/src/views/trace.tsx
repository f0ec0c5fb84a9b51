// What a packet or a request will meet, step by step. The question is in the link, so it can be shared.
import { useEffect, useState } from 'preact/hooks';
import { get, reason } from '../api';
import { text } from '../asks';
import { sentence } from '../format';
import { go, place, to } from '../route';
import { Icon } from '../ui/icons';
import { Badge, Card, Choice, Copy, Empty, Skeleton, ViewHead, type Tone } from '../ui/parts';
import { toast } from '../ui/toast';
import { useAsked } from '../use';
import type { Page, RouteItem, TraceAnswer } from '../types';
import { By } from './decided';

const FIELDS = ['from', 'to', 'proto', 'iface', 'kernel', 'url'] as const;
type Question = Partial<Record<(typeof FIELDS)[number], string>>;

const VERDICTS: Record<string, [Tone, string]> = {
  dnat: ['ok', 'To an endpoint'],
  forward: ['ok', 'Forwarded'],
  redirect: ['info', 'Redirected'],
  respond: ['info', 'Answered here'],
  paused: ['warn', 'Paused'],
  deny: ['err', 'Denied'],
  reject: ['err', 'Refused'],
  drop: ['err', 'Dropped'],
  none: ['plain', 'Not ours'],
};

function asked(query: URLSearchParams): Question {
  return Object.fromEntries(FIELDS.flatMap((name) => (query.get(name) ? [[name, query.get(name)]] : []))) as Question;
}

export function TraceView() {
  const question = asked(place.value.query);
  const key = JSON.stringify(question);
  const ready = Boolean(question.url || (question.from && question.to));
  const [answer, setAnswer] = useState<TraceAnswer | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    setAnswer(null);
    setProblem(null);
    if (!ready) return;
    const gone = new AbortController();
    setBusy(true);
    get<TraceAnswer>('trace', question, gone.signal)
      .then(setAnswer, (error: unknown) => !gone.signal.aborted && setProblem(reason(error)))
      .finally(() => !gone.signal.aborted && setBusy(false));
    return () => gone.abort();
  }, [key, turn]);
  return (
    <div class="view">
      <ViewHead title="Trace" about="What will a packet or a request meet on this node? It is followed through the real rules and routes; nothing is sent.">
        {ready && <Copy label="Copy link" text={location.href} onCopied={() => toast('Link copied. It has the question, not the token.')} />}
      </ViewHead>
      <Card label="Question"><Ask key={key} question={question} again={() => setTurn(turn + 1)} /></Card>
      <div aria-live="polite" class="stack">
        {problem && <div class="banner"><Icon name="warn" /><span>{problem}</span></div>}
        {busy && !answer && <Card><Skeleton lines={5} /></Card>}
        {answer && <Answer answer={answer} />}
        {!ready && <Examples />}
      </div>
    </div>
  );
}

function Ask({ question, again }: { question: Question; again: () => void }) {
  const [kind, setKind] = useState<'packet' | 'url'>(question.from || question.to ? 'packet' : 'url');
  const [fields, setFields] = useState<Question>({ proto: 'tcp', ...question });
  const set = (name: keyof Question) => (e: { currentTarget: { value: string } }) => setFields({ ...fields, [name]: e.currentTarget.value });
  const submit = (e: Event) => {
    e.preventDefault();
    const { url = '', from = '', to: goal = '', proto = '', iface = '', kernel = '' } = fields;
    const query = kind === 'url' ? { url: url.trim() } : { from: from.trim(), to: goal.trim(), proto, iface: iface.trim(), kernel };
    const next = to('trace', [], query);
    if (next === location.hash) again();
    else go(next);
  };
  return (
    <form class="trace-form" onSubmit={submit}>
      <Choice label="What to trace" value={kind} onChange={setKind} options={[['url', 'Request (URL)'], ['packet', 'Packet']]} />
      {kind === 'url' ? (
        <div class="field grow">
          <label for="trace-url">URL</label>
          <input id="trace-url" class="input mono" value={fields.url ?? ''} onInput={set('url')} placeholder="https://shop.example.com/cart" spellcheck={false} required />
        </div>
      ) : (
        <>
          <div class="field grow"><label for="trace-from">From</label><input id="trace-from" class="input mono" value={fields.from ?? ''} onInput={set('from')} placeholder="10.244.1.9" spellcheck={false} required /></div>
          <div class="field grow"><label for="trace-to">To</label><input id="trace-to" class="input mono" value={fields.to ?? ''} onInput={set('to')} placeholder="10.96.0.10:80" spellcheck={false} required /></div>
          <div class="field"><label for="trace-proto">Protocol</label>
            <select id="trace-proto" class="input" value={fields.proto} onChange={set('proto')}><option>tcp</option><option>udp</option><option>sctp</option></select>
          </div>
          <div class="field"><label for="trace-iface">Interface</label><input id="trace-iface" class="input mono" value={fields.iface ?? ''} onInput={set('iface')} placeholder="any" spellcheck={false} /></div>
          <div class="field"><label for="trace-kernel">Rules</label>
            <select id="trace-kernel" class="input" value={fields.kernel ?? ''} onChange={set('kernel')}><option value="">as we program them</option><option value="true">as the kernel has them</option></select>
          </div>
        </>
      )}
      <button type="submit" class="btn primary"><Icon name="trace" />Trace</button>
    </form>
  );
}

function Answer({ answer }: { answer: TraceAnswer }) {
  const [tone, words] = VERDICTS[answer.verdict] ?? (['plain', answer.verdict] as const);
  const { value: routes } = useAsked<Page<RouteItem>>(answer.route ? 'routes' : null, {}, { paged: true });
  const route = routes?.items.find((one) => one.id === answer.route);
  return (
    <>
      <section class="card verdict" aria-label="Answer">
        <div class="row verdict-head"><Badge tone={tone}>{words}</Badge><h2 class="break">{/^https?:/.test(answer.summary) ? answer.summary : sentence(answer.summary)}</h2></div>
        {route?.paused && <p class="decided"><Icon name="pause" /><span>Paused <By one={route.paused} />{route.paused.reason ? `: ${route.paused.reason}` : ''}</span></p>}
        <dl class="facts">
          {answer.endpoints.length > 0 && <><dt>Can end up at</dt><dd class="chips">{answer.endpoints.map((one) => <code key={one}>{one}</code>)}</dd></>}
          {answer.draining.length > 0 && <><dt>Finishing there</dt><dd class="chips">{answer.draining.map((one) => <code key={one}>{one}</code>)}</dd></>}
          {answer.route && <><dt>Decided by</dt><dd><a href={to('routes', [], { route: answer.route })}><code>{route ? `${route.host || '*'}${route.path}` : answer.route}</code></a>{route && <span class="faint"> of Ingress {text(route.ingress)}</span>}</dd></>}
          {answer.status && <><dt>Answer</dt><dd>{answer.status}</dd></>}
          {answer.location && <><dt>Location</dt><dd><code>{answer.location}</code></dd></>}
          {answer.rewritten && <><dt>Backend sees</dt><dd><code>{answer.rewritten}</code></dd></>}
          {answer.kind === 'packet' && <><dt>Source address</dt><dd>{answer.masquerade ? 'becomes the node’s (masquerade)' : 'is kept'}</dd></>}
          <dt>Same in a shell</dt>
          <dd><code><Words text={answer.command} /></code></dd>
        </dl>
        {answer.warnings.map((text) => <p key={text} class="row"><Badge tone="warn">warning</Badge><span class="break">{text}</span></p>)}
      </section>
      <Card title="Step by step" ruled>
        <ol class="steps">
          {answer.steps.map((step, i) => (
            <li key={i} class={step.decides ? 'decides' : undefined}>
              <span class="n">{i + 1}</span>
              {answer.kind === 'packet' ? <code class="break">{step.text}</code> : <span class="break">{step.kind && <span class="faint small step-kind">{step.kind}</span>}{sentence(step.text)}</span>}
              {step.decides && <Badge tone="info" icon="check">decides</Badge>}
            </li>
          ))}
          {!answer.steps.length && <li><span class="muted">No rule looks at it.</span></li>}
        </ol>
      </Card>
    </>
  );
}

/** A command that breaks between its words, not within an option. */
function Words({ text }: { text: string }) {
  return <>{text.split(' ').map((word, i) => [i > 0 && ' ', <span key={i} class="word">{word}</span>])}</>;
}

function Examples() {
  return (
    <Card flush>
      <Empty icon="trace" title="Ask about a request or a packet">
        <p>A URL shows the listener, the route and the endpoints that can answer it. A packet shows the rules that it meets, and whether it is translated, refused or dropped.</p>
      </Empty>
    </Card>
  );
}
