// Places the nodes of a graph in layers, by dagre.

import dagre from "@dagrejs/dagre";
import type { Graph, GraphNode, ModelView } from "./types";

export interface Box {
  id: string;
  node: GraphNode | null; // null for an input or output of the model
  title: string;
  sub: string;
  kind: "node" | "custom" | "input" | "output" | "step";
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Wire {
  key: string;
  from: string;
  to: string;
  tensor: string;
  points: { x: number; y: number }[];
}

export interface Layout {
  boxes: Box[];
  wires: Wire[];
  width: number;
  height: number;
}

/** The steps of an ensemble as a graph of its own. */
export function graphOf(view: ModelView): Graph | null {
  if (view.graph) return view.graph;
  if (!view.steps.length) return null;
  return {
    nodes: view.steps.map((step, id) => ({
      id,
      name: step.model,
      op: step.model,
      domain: "",
      custom: false,
      inputs: Object.values(step.inputs),
      outputs: Object.values(step.outputs),
      attributes: { "version asked for": step.version === "-1" ? "the latest" : step.version },
    })),
    inputs: view.inputs.map((tensor) => tensor.name),
    outputs: view.outputs.map((tensor) => tensor.name),
    left_out: 0,
  };
}

const HEIGHT = 40;
const MANY = 400; // beyond that the faster way of ranking is good enough

export function layOut(graph: Graph, steps: boolean): Layout {
  const drawn = new dagre.graphlib.Graph({ multigraph: true });
  drawn.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 34, marginx: 16, marginy: 16, ranker: graph.nodes.length > MANY ? "longest-path" : "network-simplex" });
  drawn.setDefaultEdgeLabel(() => ({}));
  const boxes = new Map<string, Box>();
  const add = (id: string, kind: Box["kind"], title: string, sub: string, node: GraphNode | null): void => {
    const width = Math.max(84, Math.min(210, Math.max(title.length * 7.6, sub.length * 6.2) + 24));
    boxes.set(id, { id, node, title, sub, kind, x: 0, y: 0, width, height: HEIGHT });
    drawn.setNode(id, { width, height: HEIGHT });
  };
  for (const name of graph.inputs) add(`in:${name}`, "input", name, "input", null);
  for (const node of graph.nodes) {
    const kind = steps ? "step" : node.custom ? "custom" : "node";
    add(`n:${node.id}`, kind, node.op, steps ? "model" : node.name.length > 26 ? `${node.name.slice(0, 25)}…` : node.name, node);
  }
  for (const name of graph.outputs) add(`out:${name}`, "output", name, "output", null);
  const makers = new Map<string, string>();
  for (const name of graph.inputs) makers.set(name, `in:${name}`);
  for (const node of graph.nodes) for (const name of node.outputs) makers.set(name, `n:${node.id}`);
  const connect = (tensor: string, to: string, i: number): void => {
    const from = makers.get(tensor);
    if (from && from !== to) drawn.setEdge(from, to, {}, `${tensor}#${i}`);
  };
  for (const node of graph.nodes) node.inputs.forEach((tensor, i) => connect(tensor, `n:${node.id}`, i));
  for (const name of graph.outputs) connect(name, `out:${name}`, 0);
  dagre.layout(drawn);
  for (const box of boxes.values()) {
    const placed = drawn.node(box.id);
    box.x = placed.x ?? 0;
    box.y = placed.y ?? 0;
  }
  const wires = drawn.edges().map((edge) => ({
    key: `${edge.v} ${edge.w} ${edge.name ?? ""}`,
    from: edge.v,
    to: edge.w,
    tensor: (edge.name ?? "").replace(/#\d+$/, ""),
    points: (drawn.edge(edge).points ?? []) as { x: number; y: number }[],
  }));
  const label = drawn.graph();
  return { boxes: [...boxes.values()], wires, width: label.width ?? 0, height: label.height ?? 0 };
}

/** A path through points, rounded at the corners. */
export function pathOf(points: readonly { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x.toFixed(1)} ${first.y.toFixed(1)}`;
  let before = first;
  for (const [i, point] of rest.entries()) {
    const next = rest[i + 1];
    if (!next) path += `L${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    else {
      const x = (point.x + next.x) / 2;
      const y = (point.y + next.y) / 2;
      if (i === 0) path += `L${((before.x + point.x) / 2).toFixed(1)} ${((before.y + point.y) / 2).toFixed(1)}`;
      path += `Q${point.x.toFixed(1)} ${point.y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
    }
    before = point;
  }
  return path;
}
