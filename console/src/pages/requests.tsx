// The last requests, the slowest of each model, and the parts of one of them.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { clock, count, digits } from "../format";
import { Choice, Code, Empty, Problem, Select, Title, useResource } from "../parts";
import { link, route } from "../route";
import { hello, requestKey, requests } from "../store";
import type { RequestRow } from "../types";
import { spansOf, Waterfall } from "../waterfall";

/** The requests as they were when the list was paused, null while it is live. */
const paused = signal<readonly RequestRow[] | null>(null);
/** Requests that were opened: they stay although newer ones push them out of the list. */
const opened = new Map<string, RequestRow>();

const failed = (request: RequestRow): boolean => Boolean(request.error) || !/^(2\d\d|OK|0)$/.test(request.code);

export function Requests(): JSX.Element {
  const [model, setModel] = useState("");
  const [status, setStatus] = useState("");
  const [list, setList] = useState<"last" | "slowest">("last");
  const found = useResource<{ requests: RequestRow[]; slowest: RequestRow[] }>(list === "slowest" ? "console/requests" : null, 3000);
  const key = route.value.parts[0] ?? "";
  const rows = paused.value ?? requests.value;
  const all = list === "last" ? rows : (found.data?.slowest ?? []);
  for (const row of all) if (requestKey(row) === key) opened.set(key, row);
  const names = [...new Set(all.map((row) => row.model))].sort();
  const shown = all.filter((row) => (!model || row.model === model) && (!status || failed(row) === (status === "failed")));
  const chosen = opened.get(key);
  const before = useRef(key);
  useEffect(() => {
    if (before.current && !key) document.querySelector("h1")?.focus(); // the request that had the focus was closed
    before.current = key;
  }, [key]);
  return (
    <>
      <Title>Requests</Title>
      <div class="row tools">
        <Choice
          label="Which requests"
          value={list}
          choose={setList}
          options={[
            { id: "last", title: "The last hundred" },
            { id: "slowest", title: "The slowest of each model" },
          ]}
        />
        <Select label="Model" value={model} change={setModel} options={[["", "All models"], ...names.map((name): [string, string] => [name, name])]} />
        <Select label="Status" value={status} change={setStatus} options={[["", "All"], ["succeeded", "Succeeded"], ["failed", "Failed"]]} />
        {list === "last" && (
          <button type="button" aria-pressed={paused.value !== null} onClick={() => (paused.value = paused.value ? null : requests.value)}>
            {paused.value ? "Continue" : "Pause"}
          </button>
        )}
      </div>
      <Problem text={found.error} again={found.reload} />
      <p class="hint" aria-live="polite">
        {list === "slowest" ? "Each is the slowest that was answered since the gateway started." : paused.value ? `Paused. ${newer(rows)} came since.` : ""}
      </p>
      {key && (chosen ? <OneRequest key={key} request={chosen} /> : <Empty title="This request is no longer kept.">The gateway keeps the last hundred.</Empty>)}
      {shown.length === 0 ? (
        all.length === 0 ? (
          <Empty title="No request yet.">Send one, or open a model and try it. It appears here within a second.</Empty>
        ) : (
          <Empty title="No request fits the filter.">Choose all models and all states to see {count(all.length)}.</Empty>
        )
      ) : (
        <div class="scroll">
          <table class="cards">
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col">Model</th>
                <th scope="col">Status</th>
                <th scope="col" class="num">Took</th>
                <th scope="col" class="num">Rows</th>
                <th scope="col">Route</th>
                <th scope="col">Client</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => {
                const own = requestKey(row);
                return (
                  <tr key={own} class={own === key ? "chosen" : ""}>
                    <th scope="row" class="num">
                      <a href={link("requests", own)} aria-current={own === key ? "true" : undefined} aria-label={`Request to ${row.model} at ${clock(row.at)}`}>
                        {clock(row.at)}
                      </a>
                    </th>
                    <td data-label="Model">{row.model || "-"}</td>
                    <td data-label="Status">
                      <Status row={row} />
                    </td>
                    <td class="num" data-label="Took">{digits(row.ms)} ms</td>
                    <td class="num" data-label="Rows">{row.rows ? count(row.rows) : "-"}</td>
                    <td data-label="Route">
                      <span class="mono">{row.protocol} {row.route}</span>
                    </td>
                    <td data-label="Client">{row.client}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function newer(shown: readonly RequestRow[]): string {
  const top = shown[0] ? requestKey(shown[0]) : "";
  const place = requests.value.findIndex((row) => requestKey(row) === top);
  const many = place < 0 ? requests.value.length : place;
  return many === 1 ? "1 request" : `${many} requests`;
}

function Status({ row }: { row: RequestRow }): JSX.Element {
  const bad = failed(row);
  return (
    <span class={`state ${bad ? "bad" : "ok"}`}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <path d={bad ? "M4 4l8 8M12 4l-8 8" : "M3 8.5l3.2 3L13 4.5"} />
      </svg>
      {row.code}
    </span>
  );
}

function OneRequest({ request }: { request: RequestRow }): JSX.Element {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), []);
  const facts: [string, string][] = [
    ["Model", `${request.model}${request.version ? ` version ${request.version}` : ""}`],
    ["Status", request.code],
    ["Took", `${digits(request.ms)} ms`],
    ["Rows", request.rows ? count(request.rows) : "-"],
    ["Route", `${request.protocol} ${request.route}`],
    ["Client", request.client || "-"],
    ["Request id", request.request_id || "-"],
  ];
  const spans = spansOf(request);
  return (
    <section class="panel" aria-labelledby="one-request">
      <div class="title">
        <h2 id="one-request" ref={heading} tabIndex={-1}>
          Request of {clock(request.at)}
        </h2>
        <a class="button small" href={link("requests")}>
          Close
        </a>
      </div>
      {request.error && (
        <div class="note bad">
          <p>{request.error}</p>
        </div>
      )}
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {spans.length > 0 ? (
        <Waterfall spans={spans} total={request.ms * 1000} caption="Where the time went, from the arrival of the request" />
      ) : (
        <p class="muted">The request ended before any part of it was measured.</p>
      )}
      {!request.ops && request.phases.length > 0 && (
        <p class="hint">The ops of this request were not recorded: they are for 20 requests of each second, from when a console is open.</p>
      )}
      <Bodies title="Inputs" tensors={request.inputs} />
      <Bodies title="Outputs" tensors={request.outputs} />
      {!hello.value?.bodies && (
        <p class="hint">
          Inputs and outputs are not kept. <code>opgate serve --console-bodies</code> shows the beginnings of them.
        </p>
      )}
    </section>
  );
}

function Bodies({ title, tensors }: { title: string; tensors: Record<string, string> | undefined }): JSX.Element | null {
  const entries = Object.entries(tensors ?? {});
  if (!entries.length) return null;
  return (
    <>
      <h3>{title}</h3>
      {entries.map(([name, text]) => (
        <div key={name}>
          <p class="mono">{name}</p>
          <Code text={text} what={`${title.toLowerCase()} ${name}`} />
        </div>
      ))}
    </>
  );
}
