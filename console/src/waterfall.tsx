// Times of a request below each other, each with a bar at its place.

import type { JSX } from "preact";
import { micros } from "./format";
import type { Operator, RequestRow } from "./types";

export interface Span {
  key: string;
  name: string;
  detail?: string;
  depth: number;
  begin: number; // microseconds
  us: number;
  tone: string;
}

const TONES: Record<string, string> = { read: "c4", queue: "c0", input: "c1", run: "c2", output: "c3", write: "c4" };

/** The spans of a request: its phases, the ops of its run, and the steps of a pipeline with theirs. */
export function spansOf(request: RequestRow): Span[] {
  const spans: Span[] = [];
  const phases = (list: RequestRow["phases"], depth: number, at: string): void => {
    for (const phase of list) {
      spans.push({ key: `${at}${phase.name}`, name: phase.name, depth, begin: phase.begin_us, us: phase.us, tone: TONES[phase.name] ?? "c2" });
      if (phase.name === "run") {
        const ops = depth === 0 ? request.ops : undefined;
        if (ops) ops.forEach((op, i) => spans.push(ofOp(op, depth + 1, `${at}op${i}`)));
      }
    }
  };
  if (!request.steps.length) {
    phases(request.phases, 0, "");
    if (request.ops && !request.phases.some((phase) => phase.name === "run")) {
      request.ops.forEach((op, i) => spans.push(ofOp(op, 0, `op${i}`)));
    }
    return spans;
  }
  for (const phase of request.phases) {
    spans.push({ key: phase.name, name: phase.name, depth: 0, begin: phase.begin_us, us: phase.us, tone: TONES[phase.name] ?? "c2" });
  }
  request.steps.forEach((step, i) => {
    spans.push({ key: `step${i}`, name: step.model, detail: step.failed ? "failed" : "step", depth: 1, begin: step.begin_us, us: step.us, tone: "c2" });
    for (const phase of step.phases) {
      spans.push({ key: `step${i}${phase.name}`, name: phase.name, depth: 2, begin: phase.begin_us, us: phase.us, tone: TONES[phase.name] ?? "c2" });
    }
    step.ops?.forEach((op, j) => spans.push(ofOp(op, 3, `step${i}op${j}`)));
  });
  if (request.ops && !request.steps.some((step) => step.ops)) request.ops.forEach((op, i) => spans.push(ofOp(op, 3, `op${i}`)));
  return spans.sort((one, other) => one.begin - other.begin || one.depth - other.depth);
}

function ofOp(op: { op: string; node: string; begin_us: number; us: number; inputs?: string[]; outputs?: string[] }, depth: number, key: string): Span {
  const given = (tensors: string[] | undefined): string => (tensors ?? []).filter((tensor) => tensor !== "none").join(", ");
  const shapes = op.inputs?.length ? `${given(op.inputs)} to ${given(op.outputs)}` : "";
  return { key, name: op.op, detail: [op.node, shapes].filter(Boolean).join("  "), depth, begin: op.begin_us, us: op.us, tone: "custom" };
}

export const spansOfOperators = (operators: readonly Operator[], isCustom: (operator: Operator) => boolean): Span[] =>
  [...operators]
    .sort((one, other) => one.begin_us - other.begin_us)
    .map((operator, i) => ({
      key: String(i),
      name: operator.op,
      detail: [operator.name, operator.provider.replace("ExecutionProvider", "")].filter(Boolean).join(", "),
      depth: 0,
      begin: operator.begin_us,
      us: operator.duration_us,
      tone: isCustom(operator) ? "custom" : "c2",
    }));

/** The spans as a table. */
export function Waterfall({ spans, total, caption, tall }: { spans: readonly Span[]; total: number; caption: string; tall?: boolean }): JSX.Element {
  const end = Math.max(total, ...spans.map((span) => span.begin + span.us), 1e-9);
  return (
    <div class={`scroll ${tall ? "tall" : ""}`} tabIndex={0} role="region" aria-label={caption}>
      <table class="waterfall">
        <caption>{caption}</caption>
        <thead>
          <tr>
            <th scope="col">Part</th>
            <th scope="col" class="num begin">Begins at</th>
            <th scope="col" class="num">Takes</th>
            <th scope="col" class="lane">
              <span class="ends">
                <span>0</span>
                <span>{micros(end)}</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {spans.map((span) => (
            <tr key={span.key}>
              <th scope="row" style={{ paddingLeft: `${8 + span.depth * 16}px` }}>
                {span.name}
                {span.detail && <span class="muted detail">{span.detail}</span>}
              </th>
              <td class="num begin">{micros(span.begin)}</td>
              <td class="num">{micros(span.us)}</td>
              <td class="lane">
                <span
                  class={`span ${span.tone}`}
                  aria-hidden="true"
                  style={{ marginLeft: `${(span.begin / end) * 100}%`, width: `max(2px, ${(span.us / end) * 100}%)` }}
                />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
