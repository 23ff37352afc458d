// The graph of a model: a picture and a list, with the time of each node.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { messageOf, post } from "../api";
import { count, micros, percent, plural, seconds } from "../format";
import { type Box, graphOf, type Layout, layOut, pathOf } from "../graph";
import { Bars, Choice, Empty, Problem } from "../parts";
import { link } from "../route";
import { lastTried, whatIsTried } from "../tried";
import type { GraphNode, Operator, OpTime, ModelView } from "../types";
import { spansOfOperators, Waterfall } from "../waterfall";

interface Time {
  seconds: number;
  share: number;
  text: string;
}

/** What ONNX Runtime adds to the names of nodes whose tensors it lays out anew. */
const LAID_OUT = /_nchwc$/;

/** The time of each node by its id: of one request if that was measured, otherwise the means of the custom ops. */
function timesOf(nodes: readonly GraphNode[], ops: readonly OpTime[], operators: readonly Operator[] | null, run: number): Map<number, Time> {
  const byName = new Map<string, number>();
  if (operators) {
    for (const each of operators) {
      const name = each.name.replace(LAID_OUT, "");
      byName.set(name, (byName.get(name) ?? 0) + each.duration_us / 1e6);
    }
  } else for (const each of ops) if (each.count) byName.set(each.node, each.seconds / each.count);
  const all = [...byName.values()].reduce((sum, value) => sum + value, 0);
  const total = operators ? all : Math.max(run, all);
  const found = new Map<number, Time>();
  for (const node of nodes) {
    const time = node.name ? byName.get(node.name) : undefined;
    if (time !== undefined) found.set(node.id, { seconds: time, share: total ? time / total : 0, text: seconds(time) });
  }
  return found;
}

const heat = (share: number): string => (share > 0.5 ? "h5" : share > 0.25 ? "h4" : share > 0.1 ? "h3" : share > 0.03 ? "h2" : "h1");

/** `run` is the mean time of a run in seconds, 0 if there was none. */
export function GraphTab({ view, ops, run }: { view: ModelView; ops: readonly OpTime[]; run: number }): JSX.Element {
  const [chosen, choose] = useState<number | null>(null);
  const [form, setForm] = useState<"picture" | "list">("picture");
  const [operators, setOperators] = useState<Operator[] | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const graph = useMemo(() => graphOf(view), [view]);
  const layout = useMemo(() => (graph ? layOut(graph, !view.graph) : null), [graph]);
  const times = useMemo(() => timesOf(graph?.nodes ?? [], ops, operators, run), [graph, ops, operators, run]);
  if (!graph || !layout) {
    return <Empty title="This model has no graph to show.">Its platform is {view.platform || view.backend}. Only ONNX files and ensembles have a graph.</Empty>;
  }
  const measure = async (): Promise<void> => {
    setBusy(true);
    setProblem("");
    try {
      const body = await lastTried(view);
      const found = await post<{ operators: Operator[] }>(
        `v2/models/${encodeURIComponent(view.name)}/versions/${encodeURIComponent(view.version)}/profile`,
        body,
      );
      setOperators(found.operators);
    } catch (error) {
      setProblem(messageOf(error));
    }
    setBusy(false);
  };
  const custom = graph.nodes.filter((node) => node.custom).length;
  const node = graph.nodes.find((each) => each.id === chosen) ?? null;
  const total = operators ? Math.max(...operators.map((each) => each.begin_us + each.duration_us), 0) : 0;
  return (
    <>
      <div class="row tools">
        <Choice
          label="How to show the graph"
          value={form}
          choose={setForm}
          options={[
            { id: "picture", title: "Picture" },
            { id: "list", title: "List" },
          ]}
        />
        {view.graph && (
          <button type="button" disabled={busy} onClick={() => void measure()}>
            {busy ? "Measuring" : "Measure every operator"}
          </button>
        )}
        <span class="muted">
          {view.graph
            ? `${plural(graph.nodes.length, "node")}, ${custom === graph.nodes.length ? "custom" : `${count(custom)} of them custom`}${graph.left_out ? `, ${count(graph.left_out)} more are not shown` : ""}`
            : plural(graph.nodes.length, "step")}
        </span>
      </div>
      <Problem text={problem} />
      <p class="hint" aria-live="polite">
        {operators
          ? `Times are those of one request (${whatIsTried(view)}), ${micros(total)} in all, measured with the profiler on, which costs time itself. Other requests may take longer or shorter.`
          : times.size
            ? `Times are the means of the custom ops since the model was loaded, and their shares of a run. Measure every operator sends ${whatIsTried(view)} and shows each one.`
            : view.graph
              ? `Measure every operator shows where a request spends its time. It sends ${whatIsTried(view)}.`
              : ""}
      </p>
      <div class="graph">
        {form === "picture" ? (
          <Picture layout={layout} times={times} chosen={chosen} choose={choose} />
        ) : (
          <List nodes={graph.nodes} times={times} chosen={chosen} choose={choose} steps={!view.graph} />
        )}
        <aside aria-live="polite" aria-label="The chosen node" class="panel">
          {node ? (
            <Details node={node} time={times.get(node.id)} of={operators ? "of the operators' time" : "of a run"} step={!view.graph} />
          ) : (
            <p class="muted">Choose a node to see what it takes and gives.</p>
          )}
        </aside>
      </div>
      {operators && (
        <>
          <h2>One request, operator by operator</h2>
          <Kinds operators={operators} />
          <Waterfall tall spans={spansOfOperators(operators, (each) => graph.nodes.some((own) => own.custom && own.name === each.name))} total={total} caption="Operators in the order in which they ran" />
        </>
      )}
    </>
  );
}

/** The time of the operators of each kind together, the largest first. */
function Kinds({ operators }: { operators: readonly Operator[] }): JSX.Element {
  const kinds = new Map<string, { us: number; number: number }>();
  for (const each of operators) {
    const own = kinds.get(each.op) ?? { us: 0, number: 0 };
    kinds.set(each.op, { us: own.us + each.duration_us, number: own.number + 1 });
  }
  const all = operators.reduce((sum, each) => sum + each.duration_us, 0);
  const bars = [...kinds]
    .sort((one, other) => other[1].us - one[1].us)
    .slice(0, 8)
    .map(([op, { us, number }]) => ({ key: op, name: `${op}, ${plural(number, "node")}`, value: us, text: `${micros(us)}, ${percent(all ? us / all : 0)}` }));
  return <Bars bars={bars} />;
}

function Details({ node, time, of, step }: { node: GraphNode; time: Time | undefined; of: string; step: boolean }): JSX.Element {
  const list = (names: readonly string[]): JSX.Element => (names.length ? <span class="mono wrap">{names.join(", ")}</span> : <span class="muted">none</span>);
  return (
    <>
      <h2>{node.op}</h2>
      {node.custom && (
        <p>
          <span class="tag">custom op</span> <a href={link("ops", node.domain, node.op)}>What it does</a>
        </p>
      )}
      {step && (
        <p>
          <a href={link("models", node.op, "1")}>Open the model</a>
        </p>
      )}
      <dl class="facts list">
        {!step && <div><dt>Node</dt><dd class="mono wrap">{node.name || "without a name"}</dd></div>}
        {!step && <div><dt>Domain</dt><dd class="mono">{node.domain || "ai.onnx"}</dd></div>}
        {time && <div><dt>Time</dt><dd class="num">{time.text} ({percent(time.share)} {of})</dd></div>}
        <div><dt>Inputs</dt><dd>{list(node.inputs)}</dd></div>
        {node.constants && node.constants.length > 0 && <div><dt>Weights</dt><dd>{list(node.constants)}</dd></div>}
        <div><dt>Outputs</dt><dd>{list(node.outputs)}</dd></div>
        {Object.entries(node.attributes).map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd class="mono wrap">{value}</dd></div>
        ))}
      </dl>
    </>
  );
}

interface Choosing {
  times: ReadonlyMap<number, Time>;
  chosen: number | null;
  choose: (id: number) => void;
}

function List({ nodes, times, chosen, choose, steps }: Choosing & { nodes: readonly GraphNode[]; steps: boolean }): JSX.Element {
  return (
    <div class="scroll tall">
      <table>
        <thead>
          <tr>
            <th scope="col">{steps ? "Model" : "Op"}</th>
            {!steps && <th scope="col">Node</th>}
            <th scope="col">Inputs</th>
            <th scope="col">Outputs</th>
            <th scope="col" class="num">Time</th>
          </tr>
        </thead>
        <tbody>
          {nodes.map((node) => (
            <tr key={node.id} class={node.id === chosen ? "chosen" : ""}>
              <th scope="row">
                <button type="button" class="plain-button" aria-pressed={node.id === chosen} onClick={() => choose(node.id)}>
                  {node.op}
                </button>
                {node.custom && <span class="tag">custom</span>}
              </th>
              {!steps && <td class="mono">{node.name}</td>}
              <td class="mono">{node.inputs.join(", ")}</td>
              <td class="mono">{node.outputs.join(", ")}</td>
              <td class="num">{times.get(node.id)?.text ?? "-"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface View {
  x: number;
  y: number;
  scale: number; // pixels of the screen for each unit of the layout
}

const LEAST = 0.05;
const MOST = 3;

function Picture({ layout, times, chosen, choose }: Choosing & { layout: Layout }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 });
  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const fit = (whole: boolean): void => {
    const area = box.current?.getBoundingClientRect();
    if (!area?.width) return;
    const wide = Math.min(1, area.width / layout.width);
    const scale = whole ? Math.min(wide, area.height / layout.height) : Math.max(wide, 0.75);
    const first = layout.boxes[0];
    const x = layout.width * scale <= area.width ? (area.width - layout.width * scale) / 2 : area.width / 2 - (first?.x ?? 0) * scale;
    setView({ x, y: layout.height * scale <= area.height ? (area.height - layout.height * scale) / 2 : 0, scale });
  };
  useEffect(() => fit(false), [layout]);
  const zoom = (factor: number, at?: { x: number; y: number }): void => {
    const area = box.current?.getBoundingClientRect();
    const { x, y } = at ?? { x: (area?.width ?? 0) / 2, y: (area?.height ?? 0) / 2 };
    setView((own) => {
      const scale = Math.min(MOST, Math.max(LEAST, own.scale * factor));
      const by = scale / own.scale;
      return { x: x - (x - own.x) * by, y: y - (y - own.y) * by, scale };
    });
  };
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    // A wheel handler that may stop the page from scrolling must not be passive.
    const turn = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== element && !element.contains(document.activeElement)) return;
      event.preventDefault();
      const area = element.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), { x: event.clientX - area.left, y: event.clientY - area.top });
    };
    element.addEventListener("wheel", turn, { passive: false });
    return () => element.removeEventListener("wheel", turn);
  }, []);
  const nodes = layout.boxes.filter((each) => each.node);
  const step = (by: number): void => {
    const place = nodes.findIndex((each) => each.node?.id === chosen);
    const next = nodes[Math.min(nodes.length - 1, Math.max(0, place + by))];
    if (!next?.node) return;
    choose(next.node.id);
    const area = box.current?.getBoundingClientRect();
    if (area) setView((own) => ({ ...own, x: area.width / 2 - next.x * own.scale, y: area.height / 2 - next.y * own.scale }));
  };
  const keys = (event: KeyboardEvent): void => {
    const move: Record<string, [number, number]> = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const by = move[event.key];
    if (by) setView((own) => ({ ...own, x: own.x + by[0], y: own.y + by[1] }));
    else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit(true);
    else if (event.key === "n") step(1);
    else if (event.key === "p") step(-1);
    else return;
    event.preventDefault();
  };
  return (
    <div class="picture">
      <div
        class="canvas"
        ref={box}
        tabIndex={0}
        role="application"
        aria-label={`Picture of the graph with ${plural(nodes.length, "node")}. Arrows move it, plus and minus zoom, 0 shows all, n and p choose the next and the previous node. The list has the same as text.`}
        onKeyDown={keys}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, moved: false };
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (!from) return;
          const dx = event.clientX - from.x;
          const dy = event.clientY - from.y;
          if (!from.moved && Math.hypot(dx, dy) < 4) return;
          if (!from.moved) event.currentTarget.setPointerCapture(event.pointerId);
          drag.current = { x: event.clientX, y: event.clientY, moved: true };
          setView((own) => ({ ...own, x: own.x + dx, y: own.y + dy }));
        }}
        onPointerUp={() => (drag.current = null)}
        onPointerCancel={() => (drag.current = null)}
      >
        <svg width="100%" height="100%" aria-hidden="true">
          <g transform={`translate(${view.x} ${view.y}) scale(${view.scale})`}>
            {layout.wires.map((wire) => (
              <path key={wire.key} class={`wire ${chosen !== null && (wire.from === `n:${chosen}` || wire.to === `n:${chosen}`) ? "near" : ""}`} d={pathOf(wire.points)} />
            ))}
            {layout.boxes.map((each) => (
              <Node key={each.id} box={each} time={each.node ? times.get(each.node.id) : undefined} chosen={each.node !== null && each.node.id === chosen} choose={choose} />
            ))}
          </g>
        </svg>
      </div>
      <div class="row tight zoom">
        <button type="button" class="small" onClick={() => zoom(1.25)} aria-label="Zoom in">+</button>
        <button type="button" class="small" onClick={() => zoom(0.8)} aria-label="Zoom out">−</button>
        <button type="button" class="small" onClick={() => fit(true)}>Show all</button>
        <button type="button" class="small" onClick={() => step(-1)}>Previous node</button>
        <button type="button" class="small" onClick={() => step(1)}>Next node</button>
      </div>
      {layout.boxes.some((each) => each.kind === "custom") && <ul class="legend">
        <li><span class="swatch custom" aria-hidden="true" />custom op (double frame)</li>
        <li><span class="swatch h5" aria-hidden="true" />much of the time</li>
        <li><span class="swatch h2" aria-hidden="true" />little of it</li>
      </ul>}
    </div>
  );
}

function Node({ box, time, chosen, choose }: { box: Box; time: Time | undefined; chosen: boolean; choose: (id: number) => void }): JSX.Element {
  const left = box.x - box.width / 2;
  const top = box.y - box.height / 2;
  const cut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  return (
    <g
      class={`node ${box.kind} ${chosen ? "chosen" : ""} ${time ? heat(time.share) : ""}`}
      transform={`translate(${left} ${top})`}
      onClick={() => box.node && choose(box.node.id)}
    >
      <rect width={box.width} height={box.height} rx={box.kind === "input" || box.kind === "output" ? 20 : 5} />
      {box.kind === "custom" && <rect class="inner" x="3" y="3" width={box.width - 6} height={box.height - 6} rx="3" />}
      <text x={box.width / 2} y="17">{cut(box.title, 26)}</text>
      <text x={box.width / 2} y="31" class="sub">{time ? `${time.text}, ${percent(time.share)}` : cut(box.sub, 30)}</text>
    </g>
  );
}
