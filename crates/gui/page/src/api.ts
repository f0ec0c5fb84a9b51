// Asking the API. The token is kept in this tab's session storage and sent in a header, nowhere else.
import { signal } from '@preact/signals';
import type { ActionRequest, ActionResult, Problem, Whoami } from './types';

const TOKEN = 'telaio-token';
const BASE = 'api/v1/';
const REQUEST_TIME_MAX_MS = 20_000;

/** Who is signed in; null while nobody is. */
export const me = signal<Whoami | null>(null);

let token = read();

function read(): string {
  try {
    return sessionStorage.getItem(TOKEN) ?? '';
  } catch {
    return '';
  }
}

function keep(value: string): void {
  token = value;
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // Without storage the token lives as long as the page.
  }
}

export function hasToken(): boolean {
  return token !== '';
}

/** An answer that was not the one hoped for. Status 0: there was no answer. */
export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }
}

/** Asks who the token is; throws where it is wrong. */
export async function signIn(given: string): Promise<void> {
  token = given.trim();
  try {
    me.value = await get<Whoami>('whoami');
    keep(token);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) keep('');
    throw error;
  }
}

export function signOut(): void {
  keep('');
  me.value = null;
}

/** The request behind everything else. A token that is refused signs out. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(BASE + path, {
      ...init,
      headers: { ...init.headers, Authorization: `Bearer ${token}` },
      credentials: 'omit',
      cache: 'no-store',
      redirect: 'error',
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'unreachable', 'The agent does not answer.');
  }
  if (response.ok) return response;
  const problem = await response.json().then((body: Problem) => body, () => null);
  if (response.status === 401 && me.value) signOut();
  throw new ApiError(response.status, problem?.code ?? 'unknown', problem?.message ?? `The agent answered ${response.status}.`);
}

export async function get<T>(path: string, query: Record<string, string | number | undefined> = {}, signal?: AbortSignal): Promise<T> {
  const given = Object.entries(query).filter((pair): pair is [string, string | number] => pair[1] !== undefined && pair[1] !== '');
  const search = given.length ? `?${new URLSearchParams(given.map(([k, v]) => [k, String(v)]))}` : '';
  const limit = AbortSignal.timeout(REQUEST_TIME_MAX_MS);
  const response = await request(path + search, { signal: signal ? AbortSignal.any([signal, limit]) : limit });
  return (await response.json()) as T;
}

async function post<T>(path: string, body: unknown): Promise<T> {
  const response = await request(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(REQUEST_TIME_MAX_MS),
  });
  return (await response.json()) as T;
}

export function act(action: ActionRequest): Promise<ActionResult> {
  return post('actions', action);
}

export function undo(id: string, how: { dry_run: boolean; reason: string }): Promise<ActionResult> {
  return post(`actions/${id}/undo`, how);
}

/** What went wrong, for people. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
