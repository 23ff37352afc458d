// Requests to the gateway. All addresses are relative to the page, because the gateway may stand behind a path prefix.

import { signal } from "@preact/signals";

/** An answer that is an error: its text is the gateway's own. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The values of headers that people have given. They live as long as the page. */
const tokens = new Map<string, string>();
const declined = new Set<string>();

/** The header that a route asked for, and whether the value that was sent is wrong. */
export const asked = signal<{ header: string; wrong: boolean } | null>(null);
/** Changes whenever there is a new token: what was refused is asked for again. */
export const tokenEpoch = signal(0);

export function give(header: string, value: string): void {
  tokens.set(header, value);
  declined.delete(header);
  asked.value = null;
  tokenEpoch.value++;
}

export function decline(header: string): void {
  declined.add(header);
  asked.value = null;
}

/** The header that an error's text asks for, "" if it asks for none. */
export const wantedHeader = (text: string): string => /expecting header '([^']+)'/.exec(text)?.[1] ?? "";

export function ask(header: string): void {
  declined.delete(header);
  asked.value = { header, wrong: false };
}

export function headersWithTokens(own?: Record<string, string>): Headers {
  const headers = new Headers(own);
  for (const [name, value] of tokens) headers.set(name, value);
  return headers;
}

/** Sends a request. Throws an ApiError for an answer that is an error, and a TypeError if there is none. */
export async function send(path: string, init: RequestInit & { headers?: Record<string, string> } = {}): Promise<Response> {
  const sent = new Map(tokens);
  const answer = await fetch(path, { ...init, headers: headersWithTokens(init.headers), cache: "no-store" });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try {
    const content: unknown = JSON.parse(text);
    if (content && typeof content === "object" && "error" in content) message = String(content.error);
  } catch {
    // The text is no JSON: it is shown as it is.
  }
  if (answer.status === 403) {
    const header = wantedHeader(message);
    if (header && !declined.has(header)) {
      const wrong = sent.has(header);
      if (wrong && tokens.get(header) === sent.get(header)) tokens.delete(header);
      asked.value = { header, wrong };
    }
  }
  throw new ApiError(answer.status, message || `The gateway answered ${answer.status}.`);
}

export async function get<T>(path: string, abort?: AbortSignal): Promise<T> {
  const answer = await send(path, abort ? { signal: abort } : {});
  return (await answer.json()) as T;
}

/** Sends what changes something or runs a model: always as JSON, which no other page can send unasked. */
export async function post<T>(path: string, body: unknown, abort?: AbortSignal): Promise<T> {
  const answer = await send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: typeof body === "string" ? body : JSON.stringify(body),
    ...(abort ? { signal: abort } : {}),
  });
  const text = await answer.text();
  return (text ? parse(text) : {}) as T;
}

/** Reads JSON that may have NaN and infinities, as the gateway writes them. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (!/NaN|Infinity/.test(text)) throw error;
    const strings = /"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/g;
    return JSON.parse(text.replace(strings, (found) => (found.startsWith('"') ? found : "null")));
  }
}

export const messageOf = (error: unknown): string =>
  error instanceof ApiError
    ? error.message
    : error instanceof TypeError
      ? "The gateway can't be reached."
      : String(error instanceof Error ? error.message : error);
