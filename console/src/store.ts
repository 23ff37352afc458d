// What the gateway has told, kept up to date by its stream.

import { batch, signal } from "@preact/signals";
import { messageOf, send, tokenEpoch } from "./api";
import { events } from "./sse";
import type { Hello, LogLine, ModelRow, RequestRow, ServerState, Tick } from "./types";

export const hello = signal<Hello | null>(null);
export const models = signal<ReadonlyMap<string, ModelRow>>(new Map());
export const server = signal<ServerState | null>(null);
export const requests = signal<readonly RequestRow[]>([]); // the newest first
export const log = signal<readonly LogLine[] | null>(null); // null if this client may not see it
/** Changes with every sample, about once a second. */
export const now = signal(Date.now());

export type Connection = { state: "connecting" } | { state: "live" } | { state: "lost"; retry: number; why: string };
export const connection = signal<Connection>({ state: "connecting" });

const MOST_REQUESTS = 100;
const MOST_LINES = 1000;
const KEPT_MS = 62_000;
const WINDOW_MS = 10_000;
const SILENCE_MS = 40_000;
const RETRIES_S = [1, 2, 4, 5];

export const keyOf = (name: string, version: string): string => `${name}/${version}`;
export const requestKey = (request: RequestRow): string => `${request.pid ?? 0}-${request.id}`;

interface Sample {
  at: number;
  requests: number;
  failures: number;
  counts: number[];
}

const samples = new Map<string, Sample[]>();
const cpu = new Map<number, { at: number; seconds: number }[]>();
let sampled = 0;

function sample(at: number): void {
  sampled = Date.now();
  for (const [key, row] of models.value) {
    const ring = samples.get(key) ?? [];
    const last = ring[ring.length - 1];
    if (last && (row.requests ?? 0) + (row.failures ?? 0) < last.requests + last.failures) ring.length = 0;
    ring.push({ at, requests: row.requests ?? 0, failures: row.failures ?? 0, counts: row.request_counts ?? [] });
    while (ring.length && at - (ring[0]?.at ?? 0) > KEPT_MS) ring.shift();
    samples.set(key, ring);
  }
  for (const key of samples.keys()) if (!models.value.has(key)) samples.delete(key);
  now.value = at;
}

export interface Live {
  rate: number; // requests per second of the last ten seconds
  errors: number;
  p50: number; // seconds, NaN without requests
  p99: number;
  minute: number[]; // requests in each second of the last minute, the newest last, NaN before this page looked
}

/** What a model does now, from the counters of the last ten seconds. */
export function live(key: string): Live {
  const ring = samples.get(key) ?? [];
  const last = ring[ring.length - 1];
  const nothing = { rate: 0, errors: 0, p50: NaN, p99: NaN, minute: [] };
  if (!last) return nothing;
  const first = ring.find((each) => last.at - each.at <= WINDOW_MS) ?? last;
  const span = Math.max(1, (last.at - first.at) / 1000);
  const counts = last.counts.map((value, i) => value - (first.counts[i] ?? 0));
  const known = Math.min(60, Math.round((last.at - ring[0]!.at) / 1000));
  const minute = Array.from({ length: 60 }, (_, i) => (i >= 60 - known ? 0 : NaN));
  for (let i = 1; i < ring.length; i++) {
    const one = ring[i - 1]!;
    const other = ring[i]!;
    const slot = 59 - Math.round((last.at - other.at) / 1000);
    const done = other.requests + other.failures - one.requests - one.failures;
    if (slot >= 0) minute[slot] = (minute[slot] || 0) + done / Math.max(0.5, (other.at - one.at) / 1000);
  }
  return {
    rate: (last.requests - first.requests) / span,
    errors: (last.failures - first.failures) / span,
    p50: quantile(counts, 0.5),
    p99: quantile(counts, 0.99),
    minute,
  };
}

/** A quantile of a histogram over `bounds_s`, in seconds. Within a bucket it is interpolated. NaN if it is empty. */
export function quantile(counts: readonly number[], part: number): number {
  const bounds = hello.value?.bounds_s ?? [];
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (!total) return NaN;
  let left = part * total;
  for (let i = 0; i < counts.length; i++) {
    const here = counts[i] ?? 0;
    if (here && left <= here) {
      const low = i ? (bounds[i - 1] ?? 0) : 0;
      const high = bounds[i] ?? low;
      return low + (high - low) * (left / here);
    }
    left -= here;
  }
  return bounds[bounds.length - 1] ?? NaN;
}

/** The share of one core that a process used in the last seconds, NaN if that isn't known yet. */
export function cpuShare(pid: number): number {
  const ring = cpu.get(pid) ?? [];
  const first = ring[0];
  const last = ring[ring.length - 1];
  if (!first || !last || last.at - first.at < 500) return NaN;
  return (last.seconds - first.seconds) / ((last.at - first.at) / 1000);
}

function take(tick: Tick, first: boolean): void {
  const all = new Map(first ? [] : models.value);
  for (const row of tick.models) all.set(keyOf(row.name, row.version), row);
  for (const [name, version] of tick.gone) all.delete(keyOf(name, version));
  models.value = new Map([...all].sort(([one], [other]) => (one < other ? -1 : 1)));
  server.value = tick.server;
  for (const process of tick.server?.processes ?? []) {
    const ring = first ? [] : (cpu.get(process.pid) ?? []);
    ring.push({ at: tick.at, seconds: process.cpu_seconds });
    while (ring.length > 2 && tick.at - (ring[0]?.at ?? 0) > WINDOW_MS) ring.shift();
    cpu.set(process.pid, ring);
  }
  if (first || tick.requests.length) {
    const fresh = [...tick.requests].reverse();
    requests.value = (first ? fresh : [...fresh, ...requests.value]).slice(0, MOST_REQUESTS);
  }
  if (first) log.value = tick.log ?? null;
  else if (tick.log?.length) log.value = [...(log.value ?? []), ...tick.log].slice(-MOST_LINES);
  sample(tick.at);
}

let current: AbortController | null = null;
let wake: (() => void) | null = null;

/** Tries again now, without waiting for the rest of the time. */
export function reconnect(): void {
  current?.abort();
  wake?.();
}

async function read(): Promise<void> {
  const control = new AbortController();
  current = control;
  let silence = setTimeout(() => control.abort(), SILENCE_MS);
  const alive = (): void => {
    clearTimeout(silence);
    silence = setTimeout(() => control.abort(), SILENCE_MS);
  };
  try {
    const answer = await send("console/stream", { signal: control.signal });
    if (!answer.body) throw new Error("The gateway sent no stream.");
    let first = true;
    for await (const event of events(answer.body, alive)) {
      if (event.name === "hello") hello.value = JSON.parse(event.data) as Hello;
      else if (event.name === "tick") {
        const tick = JSON.parse(event.data) as Tick;
        batch(() => {
          take(tick, first);
          if (first) connection.value = { state: "live" };
        });
        first = false;
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

/** Reads the stream for as long as the page lives. */
export async function follow(): Promise<void> {
  setInterval(() => {
    if (connection.value.state === "live" && Date.now() - sampled > 1500) batch(() => sample(now.value + Date.now() - sampled));
  }, 500);
  let epoch = tokenEpoch.value;
  tokenEpoch.subscribe((value) => {
    if (value !== epoch) {
      epoch = value;
      reconnect();
    }
  });
  for (let tries = 0; ; tries++) {
    const before = epoch;
    let why = "The stream ended.";
    try {
      await read();
    } catch (error) {
      why = messageOf(error);
    }
    if (connection.value.state === "live") tries = 0;
    if (before !== epoch) continue;
    let left = RETRIES_S[Math.min(tries, RETRIES_S.length - 1)] ?? 5;
    for (; left > 0; left--) {
      connection.value = { state: "lost", retry: left, why };
      const woken = await new Promise<boolean>((resolve) => {
        const timer = setTimeout(() => resolve(false), 1000);
        wake = () => {
          clearTimeout(timer);
          resolve(true);
        };
      });
      if (woken) break;
    }
    connection.value = { state: "lost", retry: 0, why };
  }
}
