// The frame around the pages: the rail, what is said above each page, and the footer.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, asked, decline, give, wantedHeader } from "./api";
import { connection, hello, models, reconnect, requests } from "./store";
import { link, route } from "./route";

const ICONS: Record<string, string> = {
  models: "M8 1.5l6 3.2v6.6l-6 3.2-6-3.2V4.7zM2 4.7l6 3.3 6-3.3M8 8v6.5",
  requests: "M2 4h9M2 8h12M5 12h9",
  ops: "M3 3h4v4H3zM9 9h4v4H9zM7 5h4v4",
  server: "M2 3h12v4H2zM2 9h12v4H2zM5 5h.01M5 11h.01",
};
const PAGES = [
  ["models", "Models"],
  ["requests", "Requests"],
  ["ops", "Ops"],
  ["server", "Server"],
] as const;

const THEME = "opgate-theme";
const theme = signal(readTheme());

function readTheme(): string {
  try {
    return localStorage.getItem(THEME) ?? "system";
  } catch {
    return "system";
  }
}

function setTheme(value: string): void {
  theme.value = value;
  try {
    localStorage.setItem(THEME, value);
  } catch {
    // The browser keeps nothing for this page: the theme holds until it is closed.
  }
}

theme.subscribe((value) => {
  if (value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = value;
});

function Rail(): JSX.Element {
  const [open, setOpen] = useState(false);
  const page = route.value.page;
  useEffect(() => setOpen(false), [route.value]);
  const bad = [...models.value.values()].filter((row) => row.state === "UNAVAILABLE").length;
  return (
    <header class={`rail ${open ? "open" : ""}`}>
      <a class="brand" href={link("models")}>
        <svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
          <rect width="32" height="32" rx="7" />
          <path d="M7 9h6v14H7M25 9h-6v14h6M13 16h6" />
        </svg>
        opgate
      </a>
      <button type="button" class="menu" aria-expanded={open} aria-controls="pages" onClick={() => setOpen(!open)}>
        Menu
      </button>
      <nav id="pages" aria-label="Pages">
        {PAGES.map(([id, title]) => (
          <a key={id} href={link(id)} aria-current={id === page ? "page" : undefined}>
            <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
              <path d={ICONS[id]} />
            </svg>
            {title}
            {id === "models" && bad > 0 && <span class="badge" aria-label={`${bad} not ready`}>{bad}</span>}
            {id === "requests" && requests.value.length > 0 && <span class="muted num" aria-hidden="true">{requests.value.length}</span>}
          </a>
        ))}
        <div class="rail-foot">
          <a href="docs">API documentation</a>
          <label>
            <span>Theme</span>
            <select value={theme.value} onChange={(event) => setTheme(event.currentTarget.value)}>
              <option value="system">As the system</option>
              <option value="light">Light</option>
              <option value="dark">Dark</option>
            </select>
          </label>
        </div>
      </nav>
    </header>
  );
}

/** Says that the gateway is gone, until it is back. The seconds are not read aloud. */
function Lost(): JSX.Element {
  const state = connection.value;
  const lost = state.state === "lost";
  return (
    <>
      <div role="status" class="hidden">
        {lost && "The gateway can't be reached."}
      </div>
      {lost && (
        <div class="note bad banner">
          <p>
            <strong>Connection lost.</strong> {state.retry ? `Trying again in ${state.retry} s.` : "Trying again now."}{" "}
            <span class="muted">{state.why}</span>
          </p>
          <button type="button" onClick={reconnect}>
            Try now
          </button>
        </div>
      )}
    </>
  );
}

/** Asks for the value of a header. It is kept in memory only. */
function Login(): JSX.Element | null {
  const dialog = useRef<HTMLDialogElement>(null);
  const wanted = asked.value;
  const [value, setValue] = useState("");
  useEffect(() => {
    setValue("");
    if (wanted && !dialog.current?.open) dialog.current?.showModal();
  }, [wanted]);
  if (!wanted) return null;
  return (
    <dialog ref={dialog} aria-labelledby="login-title" onCancel={() => decline(wanted.header)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (value) give(wanted.header, value);
        }}
      >
        <h2 id="login-title">This part of the gateway needs a token</h2>
        <p>
          The gateway expects the header <code>{wanted.header}</code>. Its operator knows the value. It stays in this page and is gone when you close it.
        </p>
        {wanted.wrong && (
          <p class="note bad" role="alert">
            The gateway did not accept this value.
          </p>
        )}
        <label for="token">Value of {wanted.header}</label>
        <input id="token" type="password" autocomplete="off" value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        <div class="row">
          <button type="submit" class="primary" disabled={!value}>
            Continue
          </button>
          <button type="button" onClick={() => decline(wanted.header)}>
            Not now
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** Why this client may not load and unload models, with a button if a token would change it. */
export function WhyNot(): JSX.Element | null {
  const facts = hello.value;
  if (!facts || facts.can_load || !facts.why_not) return null;
  const header = wantedHeader(facts.why_not);
  return (
    <p class="hint">
      Models can't be loaded or unloaded from here: {facts.control_mode === "explicit" ? facts.why_not : `the gateway runs with --model-control-mode ${facts.control_mode}, which has to be explicit`}.{" "}
      {header && (
        <button type="button" class="small" onClick={() => ask(header)}>
          Give the token
        </button>
      )}
    </p>
  );
}

export function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const { page, parts } = route.value;
  // Tabs of a model and rows of a list belong to one page.
  const place = page === "models" ? [page, ...parts.slice(0, 2)].join("/") : page === "ops" ? [page, ...parts].join("/") : page;
  useEffect(() => {
    const heading = main.current?.querySelector("h1");
    const name = heading?.textContent ?? "";
    document.title = name ? `${name} - opgate` : "opgate";
    if (first.current) {
      first.current = false;
      return;
    }
    scrollTo(0, 0);
    heading?.focus();
  }, [place]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <Rail />
      <div class="beside">
        <Lost />
        <main id="main" ref={main} tabIndex={-1}>
          {children}
        </main>
        <footer>
          {hello.value && (
            <span>
              opgate {hello.value.version}, ONNX Runtime {hello.value.onnxruntime}, Python {hello.value.python}
            </span>
          )}
          <a href="docs">API documentation</a>
          <a href="console/files/LICENSES.txt">Licenses</a>
        </footer>
      </div>
      <Login />
    </>
  );
}
