// Places the nodes of a graph in layers.

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
const GAP_X = 22;
const GAP_Y = 34;
const MARGIN = 16;
const SWEEPS = 8;
const BEND_WIDTH = 10;
/** Places in layers, above which wires over many layers go straight: a picture of so many is a blur anyway. */
const MOST_BENDS = 20_000;
const LONG = 12;

/** A place in a layer: a box, or a bend of the wires that leave one box. */
interface Place {
  box: Box | null;
  width: number;
  layer: number;
  order: number;
  x: number;
  before: Place[];
  after: Place[];
}

interface Link {
  from: Place;
  to: Place;
  tensor: string;
  bends: Place[];
}

/** Places the boxes of a graph in layers from top to bottom. The time it takes grows with the size of the graph alone. */
export function layOut(graph: Graph, steps: boolean): Layout {
  const places = new Map<string, Place>();
  const links = connect(graph, steps, places);
  const layers = layerOf([...places.values()], links);
  addBends(links, layers);
  sort(layers);
  align(layers);
  const low = Math.min(...layers.map((layer) => (layer[0]?.x ?? 0) - (layer[0]?.width ?? 0) / 2));
  let width = 0;
  for (const [number, layer] of layers.entries()) {
    for (const place of layer) {
      place.x += MARGIN - low;
      width = Math.max(width, place.x + place.width / 2 + MARGIN);
      if (place.box) {
        place.box.x = place.x;
        place.box.y = yOf(number);
      }
    }
  }
  const wires = links.map((link, i) => ({
    key: String(i),
    from: link.from.box?.id ?? "",
    to: link.to.box?.id ?? "",
    tensor: link.tensor,
    points: [
      { x: link.from.x, y: yOf(link.from.layer) + HEIGHT / 2 },
      ...link.bends.map((bend) => ({ x: bend.x, y: yOf(bend.layer) })),
      { x: link.to.x, y: yOf(link.to.layer) - HEIGHT / 2 },
    ],
  }));
  const boxes = [...places.values()].flatMap((place) => (place.box ? [place.box] : []));
  return { boxes, wires, width, height: layers.length * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN };
}

const yOf = (layer: number): number => MARGIN + HEIGHT / 2 + layer * (HEIGHT + GAP_Y);

/** Makes a place for each input, node and output, and returns the links between them: one for each pair. */
function connect(graph: Graph, steps: boolean, places: Map<string, Place>): Link[] {
  const add = (id: string, kind: Box["kind"], title: string, sub: string, node: GraphNode | null): void => {
    const width = Math.max(112, Math.min(210, Math.max(title.length * 7.6, sub.length * 6.2) + 24));
    const box = { id, node, title, sub, kind, x: 0, y: 0, width, height: HEIGHT };
    places.set(id, { box, width, layer: 0, order: places.size, x: 0, before: [], after: [] });
  };
  const makers = new Map<string, string>();
  for (const name of graph.inputs) {
    add(`in:${name}`, "input", name, "input", null);
    makers.set(name, `in:${name}`);
  }
  for (const node of graph.nodes) {
    const kind = steps ? "step" : node.custom ? "custom" : "node";
    add(`n:${node.id}`, kind, node.op, steps ? "model" : node.name.length > 26 ? `${node.name.slice(0, 25)}…` : node.name, node);
    for (const name of node.outputs) makers.set(name, `n:${node.id}`);
  }
  for (const name of graph.outputs) add(`out:${name}`, "output", name, "output", null);
  const links = new Map<string, Link>();
  const link = (tensor: string, id: string): void => {
    const from = places.get(makers.get(tensor) ?? "");
    const to = places.get(id);
    const key = `${makers.get(tensor)} ${id}`;
    if (from && to && from !== to && !links.has(key)) links.set(key, { from, to, tensor, bends: [] });
  };
  for (const node of graph.nodes) for (const tensor of node.inputs) link(tensor, `n:${node.id}`);
  for (const name of graph.outputs) link(name, `out:${name}`);
  return [...links.values()];
}

/** Puts each place one layer below the lowest that it needs, and what needs nothing right above what needs it. */
function layerOf(places: readonly Place[], links: readonly Link[]): Place[][] {
  const needs = new Map<Place, number>(places.map((place) => [place, 0]));
  const next = new Map<Place, Place[]>();
  for (const { from, to } of links) {
    needs.set(to, (needs.get(to) ?? 0) + 1);
    next.set(from, [...(next.get(from) ?? []), to]);
  }
  const roots = places.filter((place) => !needs.get(place));
  const ready = [...roots];
  for (let i = 0; i < ready.length; i++) {
    const place = ready[i]!;
    for (const other of next.get(place) ?? []) {
      other.layer = Math.max(other.layer, place.layer + 1);
      const left = (needs.get(other) ?? 0) - 1;
      needs.set(other, left);
      if (!left) ready.push(other);
    }
  }
  for (const root of roots) {
    const users = next.get(root);
    if (users?.length && root.box?.kind !== "input") root.layer = Math.max(0, users.reduce((least, user) => Math.min(least, user.layer), Infinity) - 1);
  }
  const layers: Place[][] = [];
  for (const place of places) (layers[place.layer] ??= []).push(place);
  for (let i = 0; i < layers.length; i++) layers[i] ??= [];
  return layers;
}

/** Adds bends to the wires that cross layers. All wires out of one box share them. */
function addBends(links: readonly Link[], layers: Place[][]): void {
  const lengths = new Map<Place, number>();
  for (const { from, to } of links) lengths.set(from, Math.max(lengths.get(from) ?? 0, to.layer - from.layer - 1));
  const many = [...lengths.values()].reduce((sum, length) => sum + length, 0) > MOST_BENDS;
  const bends = new Map<Place, Place[]>();
  for (const link of links) {
    const { from, to } = link;
    const own = bends.get(from) ?? [];
    bends.set(from, own);
    const length = Math.max(0, to.layer - from.layer - 1);
    if (!many || length <= LONG) {
      while (own.length < length) {
        const before = own[own.length - 1] ?? from;
        const bend: Place = { box: null, width: BEND_WIDTH, layer: before.layer + 1, order: 0, x: 0, before: [before], after: [] };
        before.after.push(bend);
        layers[bend.layer]?.push(bend);
        own.push(bend);
      }
      link.bends = own.slice(0, length);
    }
    const last = link.bends[link.bends.length - 1] ?? from;
    last.after.push(to);
    to.before.push(last);
  }
}

const mean = (values: readonly number[], fallback: number): number => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : fallback);

/** Sorts each layer by where the neighbours are, down and up in turn, so that few wires cross. */
function sort(layers: Place[][]): void {
  const number = (layer: Place[]): void => layer.forEach((place, i) => (place.order = i));
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      const wanted = new Map(layer.map((place) => [place, mean((down ? place.before : place.after).map((other) => other.order), place.order)]));
      layer.sort((one, other) => (wanted.get(one) ?? 0) - (wanted.get(other) ?? 0) || one.order - other.order);
      number(layer);
    }
  }
}

/** Moves the places of each layer as near to their neighbours as their order and their widths allow. */
function align(layers: readonly Place[][]): void {
  for (const layer of layers) {
    let x = 0;
    for (const place of layer) {
      place.x = x + place.width / 2;
      x += place.width + GAP_X;
    }
    for (const place of layer) place.x -= x / 2;
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      settle(layer, layer.map((place) => mean((down ? place.before : place.after).map((other) => other.x), place.x)));
    }
  }
}

/** Gives places in a row the nearest positions to the wanted ones, by least squares. Groups that would overlap move
 * together. Bends weigh more, so that long wires are straight. */
function settle(layer: readonly Place[], wanted: readonly number[]): void {
  const offsets: number[] = [];
  layer.forEach((place, i) => {
    const before = layer[i - 1];
    offsets.push(before ? (offsets[i - 1] ?? 0) + before.width / 2 + GAP_X + place.width / 2 : 0);
  });
  const groups: { at: number; weight: number; end: number }[] = [];
  layer.forEach((place, i) => {
    let group = { at: (wanted[i] ?? 0) - (offsets[i] ?? 0), weight: place.box ? 1 : 4, end: i + 1 };
    for (let last = groups[groups.length - 1]; last && last.at > group.at; last = groups[groups.length - 1]) {
      groups.pop();
      const weight = last.weight + group.weight;
      group = { at: (last.at * last.weight + group.at * group.weight) / weight, weight, end: group.end };
    }
    groups.push(group);
  });
  let begin = 0;
  for (const group of groups) {
    for (; begin < group.end; begin++) layer[begin]!.x = group.at + (offsets[begin] ?? 0);
  }
}

/** A smooth path through points, which leaves and reaches each from above. */
export function pathOf(points: readonly { x: number; y: number }[]): string {
  return points.reduce((path, point, i) => {
    const before = points[i - 1];
    const at = `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    if (!before) return `M${at}`;
    const middle = ((before.y + point.y) / 2).toFixed(1);
    return `${path}C${before.x.toFixed(1)} ${middle} ${point.x.toFixed(1)} ${middle} ${at}`;
  }, "");
}
