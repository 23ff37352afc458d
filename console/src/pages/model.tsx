// One model: what it does now, its graph, a form to try it, its config.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ago, count, percent, plural, rate, seconds } from "../format";
import { Bars, Choice, Code, Empty, Problem, Spark, Stacked, State, Tabs, Title, useResource } from "../parts";
import { link, route } from "../route";
import { hello, keyOf, live, models, now, quantile } from "../store";
import type { ModelRow, ModelView, OpTime } from "../types";
import { GraphTab } from "./graph";
import { LoadButtons } from "./models";
import { TryTab } from "./try";

const TABS = [
  ["overview", "Overview"],
  ["graph", "Graph"],
  ["try", "Try it"],
  ["config", "Config"],
] as const;

export function Model(): JSX.Element {
  const [name = "", version = "1", tab = "overview"] = route.value.parts;
  const row = models.value.get(keyOf(name, version));
  const ready = row?.state === "READY";
  const path = `versions/${encodeURIComponent(version)}`;
  // When a model was replaced, what is shown of it is read again.
  const found = useResource<ModelView>(ready ? `console/models/${encodeURIComponent(name)}/${path}?load=${row.load_seconds ?? 0}` : null);
  const ops = useResource<{ ops: OpTime[] }>(ready ? `v2/models/${encodeURIComponent(name)}/${path}/ops` : null, 3000);
  const [problem, say] = useState("");
  const view = found.data;
  return (
    <>
      <p class="crumbs">
        <a href={link("models")}>Models</a>
      </p>
      <Title
        beside={
          <span class="row tight">
            <span class="muted">version {version}</span>
            {row && <State state={row.state} />}
            {row && <LoadButtons row={row} say={say} />}
          </span>
        }
      >
        {name}
      </Title>
      <Problem text={problem} />
      {row?.reason && <p class="note bad">{row.reason}</p>}
      {!row && hello.value && (
        <Empty title={`The gateway serves no version ${version} of ${name}.`}>
          It may have been unloaded. <a href={link("models")}>All models</a>
        </Empty>
      )}
      {row && !ready && <Empty title="This model is not ready.">Its page shows more once it is loaded.</Empty>}
      {ready && (
        <>
          <Tabs label={`Parts of ${name}`} current={tab} tabs={TABS.map(([id, title]) => ({ id, title, href: link("models", name, version, id) }))} />
          <Problem text={found.error} again={found.reload} />
          {tab === "overview" && <Overview row={row} view={view} ops={ops.data?.ops ?? null} />}
          {view && tab === "graph" && <GraphTab key={keyOf(name, version)} view={view} ops={ops.data?.ops ?? []} run={row.requests ? (row.infer_ns ?? 0) / row.requests / 1e9 : 0} />}
          {view && tab === "try" && <TryTab key={keyOf(name, version)} view={view} />}
          {view && tab === "config" && <Config view={view} />}
          {!view && !found.error && tab !== "overview" && <p class="muted" role="status">Reading the model.</p>}
        </>
      )}
    </>
  );
}

function Figure({ name, value, note }: { name: string; value: string; note?: string }): JSX.Element {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd class="num">{value}</dd>
      {note && <dd class="muted note-line">{note}</dd>}
    </div>
  );
}

function Overview({ row, view, ops }: { row: ModelRow; view: ModelView | null; ops: readonly OpTime[] | null }): JSX.Element {
  const own = live(keyOf(row.name, row.version));
  const moment = now.value;
  const requests = row.requests ?? 0;
  const each = (sum: number | undefined): number => (requests ? (sum ?? 0) / requests / 1e9 : 0);
  const phases = (
    [
      ["queue", row.queue_ns],
      ["input", row.input_ns],
      ["run", row.infer_ns],
      ["output", row.output_ns],
    ] as const
  ).map(([name, sum]) => ({ name, value: each(sum), text: seconds(each(sum)) }));
  const batches = row.batch_counts ?? [];
  const bounds = hello.value?.batch_bounds ?? [];
  const sizes = batches
    .map((number, i) => {
      const [from, to] = [(bounds[i - 1] ?? 0) + 1, bounds[i]];
      const name = to === undefined ? `over ${bounds[bounds.length - 1] ?? 0}` : from === to ? String(to) : `${from} to ${to}`;
      return { key: name, name: `${name} ${to === 1 ? "row" : "rows"}`, value: number, text: plural(number, "run") };
    })
    .filter((bar) => bar.value > 0);
  return (
    <>
      <dl class="figures">
        <Figure name="Requests/s" value={rate(own.rate)} note="last 10 s" />
        <Figure name="Errors/s" value={rate(own.errors)} note={`${count(row.failures ?? 0)} in all`} />
        <Figure name="p50" value={seconds(own.p50)} note="last 10 s" />
        <Figure name="p99" value={seconds(own.p99)} note={Number.isNaN(own.p99) && requests ? `${seconds(quantile(row.request_counts ?? [], 0.99))} since it was loaded` : "last 10 s"} />
        <Figure name="Queue" value={count(row.pending ?? 0)} note="waiting or running" />
        <Figure name="Requests" value={count(requests)} note={`last one ${ago(row.last_ms ?? 0, moment)}`} />
        <div class="figure wide">
          <dt>Requests/s of the last minute</dt>
          <dd>
            <Spark values={own.minute} label={`Requests per second in the last minute, at most ${rate(Math.max(0, ...own.minute))}`} />
          </dd>
        </div>
      </dl>
      {requests === 0 && (
        <Empty title="No request yet.">
          <a href={link("models", row.name, row.version, "try")}>Try it</a>, or send one: the figures appear here within a second.
        </Empty>
      )}
      <div class="columns">
        <section>
          <h2>Where a request spends its time</h2>
          <p class="hint">Means of all requests since the model was loaded.</p>
          <Stacked label="Phases of a request" parts={phases} />
        </section>
        <section>
          <h2>Sizes of batches</h2>
          {sizes.length ? <Bars bars={sizes} /> : <p class="muted">Nothing has run yet.</p>}
          {requests > 0 && (
            <p class="hint">
              {plural(row.inferences ?? 0, "row")} in {plural(row.executions ?? 0, "run")}.
            </p>
          )}
        </section>
      </div>
      {ops !== null && <OpTimes ops={ops} row={row} view={view} />}
      {view && <Facts row={row} view={view} />}
    </>
  );
}

interface OpRow {
  op: string;
  node: string;
  nodes: number;
  count: number;
  mean: number; // of a call
  p50: number;
  p99: number;
  total: number; // of all calls
  share: number; // of the run
}

/** The nodes of each op together. Quantiles of several nodes are none. */
function byOp(rows: readonly OpRow[]): OpRow[] {
  const found = new Map<string, OpRow>();
  for (const row of rows) {
    const own = found.get(row.op);
    if (!own) found.set(row.op, row);
    else {
      const [count, total] = [own.count + row.count, own.total + row.total];
      found.set(row.op, { ...own, node: "", nodes: own.nodes + 1, count, total, mean: total / count, p50: NaN, p99: NaN, share: own.share + row.share });
    }
  }
  return [...found.values()];
}

const FEW_NODES = 8;

/** The time of each custom op, the slowest first. */
function OpTimes({ ops, row, view }: { ops: readonly OpTime[]; row: ModelRow; view: ModelView | null }): JSX.Element {
  const [form, setForm] = useState<"op" | "node" | null>(null);
  const all = ops.reduce((sum, op) => sum + op.seconds, 0);
  const run = row.requests ? (row.infer_ns ?? 0) / row.requests / 1e9 : 0;
  const nodes = ops
    .filter((op) => op.count > 0)
    .map(({ op, node, count, seconds: total, p50, p99 }): OpRow => {
      const share = run ? total / count / run : all ? total / all : 0;
      return { op, node, nodes: 1, count, mean: total / count, p50, p99, total, share };
    });
  const shown = form ?? (nodes.length > FEW_NODES ? "op" : "node");
  const sum = byOp(nodes).sort((one, other) => other.total - one.total);
  const rows = shown === "op" ? sum : nodes.sort((one, other) => other.total - one.total);
  const [most] = sum;
  return (
    <section>
      <h2>Time of each custom op</h2>
      {!most ? (
        <p class="muted">{view?.graph?.nodes.some((node) => node.custom) ? "No op has been timed yet." : "This model uses no custom op."}</p>
      ) : (
        <>
          <div class="row tools">
            <p class="row-text">
              <strong>{most.op}</strong> takes most: {percent(most.share)} of the run, {percent(all ? most.total / all : 0)} of the time of custom ops.
            </p>
            {nodes.length > sum.length && (
              <Choice
                label="How to list the ops"
                value={shown}
                choose={setForm}
                options={[
                  { id: "op", title: "By op" },
                  { id: "node", title: "By node" },
                ]}
              />
            )}
          </div>
          <div class="scroll">
            <table class="cards">
              <thead>
                <tr>
                  <th scope="col">Op</th>
                  <th scope="col">Node</th>
                  <th scope="col" class="num">Calls</th>
                  <th scope="col" class="num">Mean</th>
                  <th scope="col" class="num">p50</th>
                  <th scope="col" class="num">p99</th>
                  <th scope="col" class="num">Share of the run</th>
                  <th scope="col" class="lane">
                    <span class="hidden">Bar of the share</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((each) => (
                  <tr key={`${each.op} ${each.node}`}>
                    <th scope="row">
                      <a href={link("ops", view?.graph?.nodes.find((node) => node.op === each.op)?.domain || "opgate", each.op)}>{each.op}</a>
                    </th>
                    <td data-label="Node" class={each.nodes > 1 ? "" : "mono"}>{each.nodes > 1 ? plural(each.nodes, "node") : each.node || "-"}</td>
                    <td data-label="Calls" class="num">{count(each.count)}</td>
                    <td data-label="Mean" class="num">{seconds(each.mean)}</td>
                    <td data-label="p50" class="num">{seconds(each.p50)}</td>
                    <td data-label="p99" class="num">{seconds(each.p99)}</td>
                    <td data-label="Share of the run" class="num">{percent(each.share)}</td>
                    <td class="lane">
                      <span class="track" aria-hidden="true">
                        <span class="fill" style={{ width: `${Math.min(100, each.share * 100)}%` }} />
                      </span>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="hint">
            Since the model was loaded. Mean, p50 and p99 are those of a call, the quantiles from a histogram.{" "}
            {view?.graph?.nodes.some((node) => !node.custom)
              ? "The rest of the run are operators of the engine, which the tab Graph measures for one request."
              : "The rest of the run is the engine's own work around the ops."}
          </p>
        </>
      )}
    </section>
  );
}

function Facts({ row, view }: { row: ModelRow; view: ModelView }): JSX.Element {
  const groups = view.instances.map((group) => `${String(group["count"] ?? 1)} on ${String(group["kind"] ?? "KIND_AUTO").replace("KIND_", "")}`);
  const cached = (row.cache_hits ?? 0) + (row.cache_misses ?? 0);
  return (
    <div class="columns">
      <section>
        <h2>Inputs and outputs</h2>
        <div class="scroll" tabIndex={0} role="region" aria-label="Inputs and outputs">
          <table>
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Datatype</th>
                <th scope="col">Shape</th>
                <th scope="col">Kind</th>
              </tr>
            </thead>
            <tbody>
              {[...view.inputs.map((tensor) => ({ ...tensor, kind: tensor.optional ? "optional input" : "input" })), ...view.outputs.map((tensor) => ({ ...tensor, kind: "output" }))].map((tensor) => (
                <tr key={`${tensor.kind} ${tensor.name}`}>
                  <th scope="row" class="mono">{tensor.name}</th>
                  <td>{tensor.datatype}</td>
                  <td class="mono">[{tensor.shape.join(", ")}]</td>
                  <td>{tensor.kind}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      <section>
        <h2>How it runs</h2>
        <dl class="facts list">
          <div><dt>Platform</dt><dd>{view.platform || view.backend}</dd></div>
          <div><dt>Batching</dt><dd>{view.batching}</dd></div>
          <div><dt>Instances</dt><dd>{groups.join(", ") || count(row.instances ?? 0)}</dd></div>
          {(row.processes ?? 0) > 0 && <div><dt>Worker processes</dt><dd class="num">{count(row.processes ?? 0)}{row.deaths ? `, ${count(row.deaths)} died` : ""}</dd></div>}
          <div><dt>Loaded in</dt><dd class="num">{seconds(row.load_seconds ?? 0)}</dd></div>
          {cached > 0 && <div><dt>Response cache</dt><dd class="num">{count(row.cache_hits ?? 0)} of {count(cached)} found</dd></div>}
          {view.steps.length > 0 && (
            <div>
              <dt>Steps</dt>
              <dd>
                {view.steps.map((step, i) => (
                  <span key={i}>{i > 0 && ", "}<a href={link("models", step.model, step.version === "-1" ? "1" : step.version)}>{step.model}</a></span>
                ))}
              </dd>
            </div>
          )}
        </dl>
        <h2>Libraries</h2>
        {view.libraries.length === 0 ? (
          <p class="muted">The model needs no library of ops.</p>
        ) : (
          view.libraries.map((library) => (
            <dl class="facts list" key={library.name}>
              <div><dt>File</dt><dd class="mono wrap">{library.name}</dd></div>
              <div><dt>SHA-256</dt><dd class="mono wrap">{library.sha256 || "-"}</dd></div>
              <div><dt>Trusted by</dt><dd class="mono wrap">{library.trusted_by || "-"}</dd></div>
            </dl>
          ))
        )}
      </section>
    </div>
  );
}

/** Lines of a config as JSON, with what completion added marked. */
function marked(config: unknown, added: ReadonlySet<string>): { text: string; added: boolean }[] {
  const lines: { text: string; added: boolean }[] = [];
  const walk = (value: unknown, path: string, lead: string, end: string, inside: boolean): void => {
    const own = inside || added.has(path);
    const depth = " ".repeat(2 * (path === "" ? 0 : path.replace(/[^.[]/g, "").length + 1));
    if (Array.isArray(value) ? value.some((each) => typeof each === "object") : typeof value === "object" && value !== null && Object.keys(value).length) {
      const list = Array.isArray(value);
      lines.push({ text: `${depth}${lead}${list ? "[" : "{"}`, added: own });
      const entries = Object.entries(value as object);
      entries.forEach(([key, each], i) =>
        walk(each, list ? `${path}[${key}]` : path ? `${path}.${key}` : key, list ? "" : `${JSON.stringify(key)}: `, i < entries.length - 1 ? "," : "", own),
      );
      lines.push({ text: `${depth}${list ? "]" : "}"}${end}`, added: own });
    } else lines.push({ text: `${depth}${lead}${JSON.stringify(value)}${end}`, added: own });
  };
  walk(config, "", "", "", false);
  return lines;
}

function Config({ view }: { view: ModelView }): JSX.Element {
  const [form, setForm] = useState<"json" | "file">("json");
  const lines = marked(view.config, new Set(view.completed.map((each) => each.field)));
  return (
    <>
      <div class="row tools">
        <Choice
          label="Which config"
          value={form}
          choose={setForm}
          options={[
            { id: "json", title: "As the gateway uses it" },
            { id: "file", title: "config.pbtxt" },
          ]}
        />
      </div>
      {form === "file" ? (
        view.config_text ? (
          <Code text={view.config_text} what="config.pbtxt" tall />
        ) : (
          <Empty title="The model has no config.pbtxt.">The gateway made the config from the model file, or a client sent it.</Empty>
        )
      ) : (
        <>
          <p class="hint">
            <span class="tag">+</span> marks what the gateway added to the config: {plural(view.completed.length, "field")}.
          </p>
          <div class="code">
            <pre class="tall config" tabIndex={0} aria-label="The config as JSON">
              {lines.map((line, i) => (
                <span key={i} class={line.added ? "added" : ""}>
                  {line.added ? "+ " : "  "}
                  {line.text}
                </span>
              ))}
            </pre>
          </div>
        </>
      )}
    </>
  );
}
