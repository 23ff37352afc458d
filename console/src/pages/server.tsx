// The gateway itself: its processes, its limits, the machine and the log.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, clock, count, digits, percent, seconds } from "../format";
import { Empty, Meter, Search, Select, Title } from "../parts";
import { cpuShare, hello, log, now, server } from "../store";
import type { LogLine } from "../types";

const LIMITS: Record<string, [string, (value: number) => string]> = {
  max_body_bytes: ["Largest body of a request", bytes],
  max_json_bytes: ["Largest body in JSON", bytes],
  max_held_bytes: ["Bytes that requests may hold, of each process", bytes],
  max_concurrent_requests: ["Requests at once, of each process", count],
  max_queue_size: ["Requests in the queue of a model", count],
  run_timeout: ["Longest run", seconds],
};

export function Server(): JSX.Element {
  const state = server.value;
  const facts = hello.value;
  void now.value;
  if (!state || !facts) {
    return (
      <>
        <Title>Server</Title>
        <p class="muted" role="status">Asking the gateway.</p>
      </>
    );
  }
  const memory = state.processes.reduce((sum, process) => sum + process.rss_bytes, 0);
  const used = state.machine.memory_bytes - state.machine.available_bytes;
  return (
    <>
      <Title beside={<span class="muted num">{state.deaths ? `${count(state.deaths)} gateway processes died` : "no process died"}</span>}>Server</Title>
      <div class="columns">
        <section>
          <h2>How near the limits are</h2>
          <Meter label="Requests under way" value={state.running} most={state.concurrent_limit} text={`${count(state.running)} of ${count(state.concurrent_limit)}`} />
          <Meter label="Bytes that requests hold" value={state.held_bytes} most={state.held_limit} text={`${bytes(state.held_bytes)} of ${bytes(state.held_limit)}`} />
          <Meter
            label="Memory of the processes"
            value={memory}
            most={state.memory_limit_bytes || state.machine.memory_bytes}
            text={`${bytes(memory)} of ${bytes(state.memory_limit_bytes || state.machine.memory_bytes)}`}
          />
          {state.model_budget > 0 && (
            <Meter label="Memory of models" value={state.model_bytes} most={state.model_budget} text={`${bytes(state.model_bytes)} of ${bytes(state.model_budget)}`} />
          )}
          <Meter label="Memory of the machine" value={used} most={state.machine.memory_bytes} text={`${bytes(used)} of ${bytes(state.machine.memory_bytes)}`} />
          <Meter label="Load of the machine" value={state.machine.load1} most={state.machine.cpus} text={`${digits(state.machine.load1)} on ${state.machine.cpus} cores`} />
        </section>
        <section>
          <h2>Connections and limits</h2>
          <dl class="facts list">
            <div><dt>Connections over HTTP</dt><dd class="num">{count(state.http_connections)}</dd></div>
            <div><dt>Connections over gRPC</dt><dd class="num">{count(state.grpc_connections)}</dd></div>
            <div><dt>Model control</dt><dd>{facts.control_mode}</dd></div>
            {Object.entries(facts.limits).map(([name, value]) => {
              const [title, write] = LIMITS[name] ?? [name, count];
              return <div key={name}><dt>{title}</dt><dd class="num">{write(value)}</dd></div>;
            })}
          </dl>
        </section>
      </div>
      <h2>Processes</h2>
      <div class="scroll">
        <table class="cards">
          <thead>
            <tr>
              <th scope="col">Process</th>
              <th scope="col">Role</th>
              <th scope="col" class="num">Memory</th>
              <th scope="col" class="num">CPU now</th>
              <th scope="col" class="num">CPU time</th>
              <th scope="col" class="num">Threads</th>
            </tr>
          </thead>
          <tbody>
            {state.processes.map((process) => {
              const share = cpuShare(process.pid);
              return (
                <tr key={process.pid}>
                  <th scope="row" class="num">{process.pid}</th>
                  <td data-label="Role">{process.role}{process.model && ` of ${process.model}`}</td>
                  <td class="num" data-label="Memory">{bytes(process.rss_bytes)}</td>
                  <td class="num" data-label="CPU now">{Number.isNaN(share) ? "-" : `${percent(share)} of a core`}</td>
                  <td class="num" data-label="CPU time">{seconds(process.cpu_seconds)}</td>
                  <td class="num" data-label="Threads">{process.threads}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <Log />
    </>
  );
}

const paused = signal<readonly LogLine[] | null>(null);
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const MARKS: Record<string, string> = { debug: "·", info: "i", warning: "!", error: "x", critical: "x" };

function Log(): JSX.Element {
  const [level, setLevel] = useState("info");
  const [text, setText] = useState("");
  const box = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  const lines = paused.value ?? log.value;
  const least = LEVELS.indexOf(level);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = (lines ?? []).filter((line) => {
    const all = `${line.logger} ${line.message} ${Object.values(line.fields ?? {}).join(" ")}`.toLowerCase();
    return LEVELS.indexOf(line.level) >= least && words.every((word) => all.includes(word));
  });
  const last = shown[shown.length - 1];
  useEffect(() => {
    if (box.current && stuck.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown.length, last]);
  return (
    <section aria-labelledby="log-title">
      <h2 id="log-title">Log</h2>
      {lines === null ? (
        <Empty title="The log needs a token of the group logging.">Requests and figures are shown without it.</Empty>
      ) : (
        <>
          <div class="row tools">
            <Select label="Level" value={level} change={setLevel} options={LEVELS.slice(0, 4).map((each): [string, string] => [each, each === "error" ? "errors" : `${each} and above`])} />
            <Search id="log-filter" label="Filter lines" value={text} change={setText} />
            <button type="button" aria-pressed={paused.value !== null} onClick={() => (paused.value = paused.value ? null : (log.value ?? []))}>
              {paused.value ? "Continue" : "Pause"}
            </button>
          </div>
          <div
            class="log"
            ref={box}
            tabIndex={0}
            role="log"
            aria-live="off"
            aria-labelledby="log-title"
            onScroll={(event) => {
              const own = event.currentTarget;
              stuck.current = own.scrollHeight - own.scrollTop - own.clientHeight < 30;
            }}
          >
            {shown.length === 0 && <p class="muted">{lines.length ? "No line fits the filter." : "The log is empty so far."}</p>}
            {shown.map((line, i) => (
              <div key={`${line.at}-${i}`} class={`line ${line.level}`}>
                <span class="num muted">{clock(line.at)}</span> <span class="level">{MARKS[line.level] ?? "?"} {line.level}</span> <span>{line.message}</span>{" "}
                {Object.entries(line.fields ?? {}).map(([name, value]) => (
                  <span key={name} class="muted">{name}={value} </span>
                ))}
              </div>
            ))}
          </div>
        </>
      )}
    </section>
  );
}
