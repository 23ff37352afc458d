// The first page: every model, its state and what it does now.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { messageOf, post } from "../api";
import { bytes, count, plural, rate, seconds } from "../format";
import { Empty, Problem, Search, Spark, State, Title, Twice } from "../parts";
import { link } from "../route";
import { WhyNot } from "../shell";
import { connection, hello, live, models, now, server } from "../store";
import type { ModelRow } from "../types";

/** Loads or unloads a model, where this client may. */
export function LoadButtons({ row, say }: { row: ModelRow; say: (text: string) => void }): JSX.Element | null {
  const [busy, setBusy] = useState(false);
  if (!hello.value?.can_load) return null;
  const act = async (what: "load" | "unload"): Promise<void> => {
    setBusy(true);
    say("");
    try {
      await post(`v2/repository/models/${encodeURIComponent(row.name)}/${what}`, {});
    } catch (error) {
      say(`${row.name} was not ${what}ed: ${messageOf(error)}`);
    }
    setBusy(false);
  };
  return (
    <span class="row tight actions">
      <button type="button" class="small" disabled={busy} aria-label={`${row.state === "READY" ? "Reload" : "Load"} ${row.name}`} onClick={() => void act("load")}>
        {row.state === "READY" ? "Reload" : "Load"}
      </button>
      {row.state === "READY" && (
        <Twice label={`Unload ${row.name}`} question={`Unload ${row.name}? Its clients get errors.`} act={() => void act("unload")} disabled={busy}>
          Unload
        </Twice>
      )}
    </span>
  );
}

export function Models(): JSX.Element {
  const [filter, setFilter] = useState("");
  const [problem, say] = useState("");
  void now.value;
  const all = [...models.value.entries()];
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = all.filter(([, row]) => words.every((word) => `${row.name} ${row.version} ${row.state}`.toLowerCase().includes(word)));
  const bad = all.filter(([, row]) => row.state === "UNAVAILABLE" && row.reason && row.reason !== "unloaded");
  const may = hello.value?.can_load ?? false;
  const comeAndGo = (server.value?.model_budget ?? 0) > 0;
  return (
    <>
      <Title beside={<span class="muted num">{plural(all.length, "version")}</span>}>Models</Title>
      <Problem text={problem} />
      {bad.length > 0 && (
        <section class="note bad" aria-labelledby="not-ready">
          <h2 id="not-ready">{bad.length === 1 ? "1 model is not ready" : `${bad.length} models are not ready`}</h2>
          <Reasons rows={bad.slice(0, MOST_REASONS).map(([, row]) => row)} />
          {bad.length > MOST_REASONS && (
            <details>
              <summary>{plural(bad.length - MOST_REASONS, "more model")}</summary>
              <Reasons rows={bad.slice(MOST_REASONS).map(([, row]) => row)} />
            </details>
          )}
        </section>
      )}
      <WhyNot />
      {connection.value.state === "connecting" ? (
        <p class="muted" role="status">Asking the gateway.</p>
      ) : all.length === 0 ? (
        <Empty title="The repository has no model.">
          Put a file <code>NAME/1/model.onnx</code> into the model repository, then load it. The API documentation says how.
        </Empty>
      ) : (
        <>
          <Search id="filter" label="Filter models" value={filter} change={setFilter} />
          {shown.length === 0 ? (
            <Empty title="No model fits the filter.">Change or empty the filter to see all {all.length}.</Empty>
          ) : (
            <div class="scroll">
              <table class="cards">
                <thead>
                  <tr>
                    <th scope="col">Model</th>
                    <th scope="col">State</th>
                    <th scope="col" class="num">Requests/s</th>
                    <th scope="col" class="num">Errors/s</th>
                    <th scope="col" class="num">Queue</th>
                    <th scope="col" class="num">p50</th>
                    <th scope="col" class="num">p99</th>
                    {comeAndGo && <th scope="col" class="num">Memory</th>}
                    <th scope="col">Last minute</th>
                    {may && <th scope="col">Actions</th>}
                  </tr>
                </thead>
                <tbody>
                  {shown.map(([key, row]) => (
                    <Row key={key} id={key} row={row} may={may} comeAndGo={comeAndGo} say={say} />
                  ))}
                </tbody>
              </table>
            </div>
          )}
          <p class="hint">Rates and latencies are those of the last 10 s. The quantiles come from a histogram, so they are estimates.</p>
        </>
      )}
    </>
  );
}

const MOST_REASONS = 4;

function Reasons({ rows }: { rows: readonly ModelRow[] }): JSX.Element {
  return (
    <ul>
      {rows.map((row) => (
        <li key={`${row.name}/${row.version}`}>
          <strong>{row.name}</strong>
          {row.version && ` version ${row.version}`}: {row.reason}
        </li>
      ))}
    </ul>
  );
}

interface RowProps {
  id: string;
  row: ModelRow;
  may: boolean;
  comeAndGo: boolean;
  say: (text: string) => void;
}

function Row({ id, row, may, comeAndGo, say }: RowProps): JSX.Element {
  const now = live(id);
  return (
    <tr>
      <th scope="row">
        {row.version ? <a href={link("models", row.name, row.version)}>{row.name}</a> : row.name}{" "}
        {row.version && <span class="muted version">version {row.version}</span>}
      </th>
      <td data-label="State">
        <State state={row.state} />
        {row.reason && row.state !== "UNAVAILABLE" && <div class="reason">{row.reason}</div>}
      </td>
      <td class="num" data-label="Requests/s">{rate(now.rate)}</td>
      <td class={`num ${now.errors > 0 ? "bad-text" : ""}`} data-label="Errors/s">{rate(now.errors)}</td>
      <td class="num" data-label="Queue">{count(row.pending ?? 0)}</td>
      <td class="num" data-label="p50">{seconds(now.p50)}</td>
      <td class="num" data-label="p99">{seconds(now.p99)}</td>
      {comeAndGo && <td class="num" data-label="Memory">{row.memory_bytes == null ? "none" : bytes(row.memory_bytes)}</td>}
      <td data-label="Last minute">
        <Spark values={now.minute} label={`${row.name}: requests per second in the last minute, at most ${rate(Math.max(0, ...now.minute))}`} />
      </td>
      {may && (
        <td data-label="Actions">
          <LoadButtons row={row} say={say} />
        </td>
      )}
    </tr>
  );
}
