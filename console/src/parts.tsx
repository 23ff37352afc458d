// Small pieces that several pages use.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError, get, messageOf, tokenEpoch } from "./api";
import { digits, percent } from "./format";

export interface Resource<T> {
  data: T | null;
  error: string;
  loading: boolean;
  reload: () => void;
}

/** Reads an address, again whenever it or the tokens change, and every so many ms if `every` is given. */
export function useResource<T>(path: string | null, every = 0): Resource<T> {
  const [state, set] = useState<{ path: string | null; data: T | null; error: string; loading: boolean }>({
    path: null,
    data: null,
    error: "",
    loading: true,
  });
  const [turn, setTurn] = useState(0);
  const epoch = tokenEpoch.value;
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer = 0;
    const read = async (): Promise<void> => {
      let failed = false;
      try {
        const data = await get<T>(path, abort.signal);
        set({ path, data, error: "", loading: false });
      } catch (error) {
        if (abort.signal.aborted) return;
        failed = error instanceof ApiError; // what the gateway refuses is not asked for again and again
        set((before) => ({ path, data: before.path === path ? before.data : null, error: messageOf(error), loading: false }));
      }
      if (every && !failed && !abort.signal.aborted) timer = window.setTimeout(() => void read(), every);
    };
    void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, every, turn, epoch]);
  const fits = state.path === path;
  return {
    data: fits ? state.data : null,
    error: fits ? state.error : "",
    loading: !fits || state.loading,
    reload: () => setTurn((value) => value + 1),
  };
}

/** A heading of a page. It gets the focus when the page changes. */
export function Title({ children, beside }: { children: ComponentChildren; beside?: ComponentChildren }): JSX.Element {
  return (
    <div class="title">
      <h1 tabIndex={-1}>{children}</h1>
      {beside}
    </div>
  );
}

const SHAPES: Record<string, [string, string]> = {
  READY: ["ok", "M3 8.5l3.2 3L13 4.5"],
  LOADING: ["busy", "M8 3v5l3.5 2"],
  UNLOADING: ["busy", "M8 3v5l3.5 2"],
  UNAVAILABLE: ["bad", "M4 4l8 8M12 4l-8 8"],
  "NOT LOADED": ["idle", "M4 8h8"],
};

/** A state by a word and a shape. */
export function State({ state }: { state: string }): JSX.Element {
  const [tone, path] = SHAPES[state] ?? ["bad", "M8 3v6M8 12v1"];
  return (
    <span class={`state ${tone}`}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <path d={path} />
      </svg>
      {state.charAt(0) + state.slice(1).toLowerCase()}
    </span>
  );
}

/** The last minute as a line. */
export function Spark({ values, label }: { values: readonly number[]; label: string }): JSX.Element {
  const width = 110;
  const height = 24;
  const top = Math.max(...values.filter((value) => !Number.isNaN(value)), 1e-9);
  const points = values.flatMap((value, i) => {
    if (Number.isNaN(value)) return [];
    const x = (i / Math.max(1, values.length - 1)) * width;
    return `${x.toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
  });
  const some = values.some((value) => value > 0);
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={label} preserveAspectRatio="none">
      <path class="base" d={`M0 ${height - 1.5}H${width}`} />
      {some && <polyline points={points.join(" ")} />}
    </svg>
  );
}

/** A part of a whole, with text. */
export function Meter({ label, value, most, text }: { label: string; value: number; most: number; text: string }): JSX.Element {
  const id = useId();
  const share = most > 0 ? Math.min(1, value / most) : 0;
  const tone = share > 0.9 ? "bad" : share > 0.7 ? "busy" : "";
  return (
    <div class="meter">
      <div class="meter-text">
        <span id={id}>{label}</span>
        <span class="num">
          {text}
          {most > 0 && ` (${percent(value / most)})`}
        </span>
      </div>
      <div class="track" role="meter" aria-labelledby={id} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)} aria-valuetext={text}>
        <div class={`fill ${tone}`} style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Problem({ text, again }: { text: string; again?: () => void }): JSX.Element | null {
  if (!text) return null;
  return (
    <div class="note bad" role="alert">
      <p>{text}</p>
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Copies a text, also where the page has no secure context. */
async function copyText(text: string): Promise<void> {
  if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser lets the page copy nothing.");
}

export function Copy({ text, what }: { text: string; what: string }): JSX.Element {
  const [said, say] = useState("");
  return (
    <button
      type="button"
      class="small"
      aria-label={`Copy ${what}`}
      onClick={() => {
        copyText(text)
          .then(() => say("Copied"))
          .catch(() => say("Not copied"))
          .finally(() => setTimeout(() => say(""), 2000));
      }}
    >
      <span aria-live="polite">{said || "Copy"}</span>
    </button>
  );
}

export function Code({ text, what, tall }: { text: string; what: string; tall?: boolean }): JSX.Element {
  return (
    <div class="code">
      <Copy text={text} what={what} />
      <pre class={tall ? "tall" : ""} tabIndex={0} aria-label={what}>
        {text}
      </pre>
    </div>
  );
}

/** Tabs that are links, so that each has an address. Arrow keys move between them. */
export function Tabs({ tabs, current, label }: { tabs: { id: string; title: string; href: string }[]; current: string; label: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.id} href={tab.href} aria-current={tab.id === current ? "page" : undefined}>
          {tab.title}
        </a>
      ))}
    </nav>
  );
}

/** A choice of one of few, as buttons. */
export function Choice<T extends string>({
  options,
  value,
  choose,
  label,
}: {
  options: readonly { id: T; title: string }[];
  value: T;
  choose: (id: T) => void;
  label: string;
}): JSX.Element {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.id} type="button" aria-pressed={option.id === value} onClick={() => choose(option.id)}>
          {option.title}
        </button>
      ))}
    </div>
  );
}

export function Search({ value, change, label, id }: { value: string; change: (text: string) => void; label: string; id: string }): JSX.Element {
  return (
    <label class="search" for={id}>
      <span>{label}</span>
      <input id={id} type="search" value={value} autocomplete="off" spellcheck={false} onInput={(event) => change(event.currentTarget.value)} />
    </label>
  );
}

export function Select({
  value,
  change,
  label,
  options,
}: {
  value: string;
  change: (value: string) => void;
  label: string;
  options: readonly [string, string][];
}): JSX.Element {
  const id = useId();
  return (
    <label class="search" for={id}>
      <span>{label}</span>
      <select id={id} value={value} onChange={(event) => change(event.currentTarget.value)}>
        {options.map(([key, title]) => (
          <option key={key} value={key}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}

export interface Bar {
  key: string;
  name: ComponentChildren;
  value: number;
  text: string;
  tone?: string;
}

/** Names with bars, the longest of which is the largest value or `most`. */
export function Bars({ bars, most }: { bars: Bar[]; most?: number }): JSX.Element {
  const top = most ?? Math.max(...bars.map((bar) => bar.value), 1e-12);
  return (
    <ul class="bars">
      {bars.map((bar) => (
        <li key={bar.key}>
          <span class="bar-name">{bar.name}</span>
          <span class="track" aria-hidden="true">
            <span class={`fill ${bar.tone ?? ""}`} style={{ width: `${Math.min(100, (bar.value / top) * 100)}%` }} />
          </span>
          <span class="num">{bar.text}</span>
        </li>
      ))}
    </ul>
  );
}

export interface Part {
  name: string;
  value: number;
  text: string;
}

/** Parts of a whole as one bar, with a legend that has the numbers. */
export function Stacked({ parts, label }: { parts: Part[]; label: string }): JSX.Element {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return (
    <div>
      <div class="stack" role="img" aria-label={`${label}: ${parts.map((part) => `${part.name} ${part.text}`).join(", ")}`}>
        {total > 0 &&
          parts.map((part, i) => <div key={part.name} class={`part c${i}`} style={{ width: `${(part.value / total) * 100}%` }} />)}
      </div>
      <ul class="legend">
        {parts.map((part, i) => (
          <li key={part.name}>
            <span class={`swatch c${i}`} aria-hidden="true" />
            {part.name} <span class="num">{part.text}</span>
            {total > 0 && <span class="num muted"> {digits((part.value / total) * 100)} %</span>}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** A button that asks once more before it does something. */
export function Twice({ children, label, question, act, disabled }: { children: string; label: string; question: string; act: () => void; disabled?: boolean }): JSX.Element {
  const [asking, setAsking] = useState(false);
  const yes = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (asking) yes.current?.focus();
  }, [asking]);
  if (!asking) {
    return (
      <button type="button" class="small" disabled={disabled ?? false} aria-label={label} onClick={() => setAsking(true)}>
        {children}
      </button>
    );
  }
  return (
    <span class="twice" role="group" aria-label={question}>
      <span>{question}</span>
      <button
        ref={yes}
        type="button"
        class="small danger"
        onClick={() => {
          setAsking(false);
          act();
        }}
      >
        {children}
      </button>
      <button type="button" class="small" onClick={() => setAsking(false)}>
        Cancel
      </button>
    </span>
  );
}
