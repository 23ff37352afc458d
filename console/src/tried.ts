// What people send to a model: values for its inputs, and the bodies that are made of them.

import { send } from "./api";
import type { ModelView, TensorInfo } from "./types";

export type Value =
  | { kind: "file"; file: Blob; name: string }
  | { kind: "json"; text: string } // as /predict takes it: without the batch dim
  | { kind: "text"; text: string }
  | { kind: "fill"; how: "zeros" | "random" };
export type Values = Record<string, Value>;

const tried = new Map<string, Values>();

export const remember = (view: ModelView, values: Values): void => void tried.set(`${view.name}/${view.version}`, values);
export const remembered = (view: ModelView): Values | undefined => tried.get(`${view.name}/${view.version}`);

/** The shape of an input without the batch dim. */
export const rowShape = (view: ModelView, tensor: TensorInfo): number[] => (view.max_batch_size > 0 ? tensor.shape.slice(1) : tensor.shape);

export const isText = (tensor: { datatype: string }): boolean => tensor.datatype === "BYTES";

/** How many elements an example of an input has, where each variable dim has two. */
export const elements = (shape: readonly number[]): number => shape.reduce((total, size) => total * (size < 0 ? 2 : size), 1);

/** A nested list of one shape. Variable dims have two entries. */
export function nested(shape: readonly number[], element: (place: number) => unknown): unknown {
  let place = 0;
  const make = (dims: readonly number[]): unknown => {
    const [size, ...rest] = dims;
    if (size === undefined) return element(place++);
    return Array.from({ length: size < 0 ? 2 : size }, () => make(rest));
  };
  return make(shape);
}

/** A value that works for an input, as JSON. */
export function sampleText(view: ModelView, tensor: TensorInfo): string {
  const element = (place: number): unknown => (isText(tensor) ? "text" : tensor.datatype === "BOOL" ? place % 2 === 0 : place % 10);
  return JSON.stringify(nested(rowShape(view, tensor), element));
}

/** Elements beyond which nobody types a value. */
export const MOST_TYPED = 4096;

/** The value of an input as parsed JSON. Throws an Error that names the input if its text is no JSON. */
export function jsonOf(view: ModelView, tensor: TensorInfo, value: Value): unknown {
  if (value.kind === "text") return value.text;
  if (value.kind === "fill") {
    const whole = /INT|BOOL/.test(tensor.datatype);
    const make = (): unknown => (tensor.datatype === "BOOL" ? false : value.how === "zeros" || whole ? 0 : Math.round(Math.random() * 1e4) / 1e4);
    return nested(rowShape(view, tensor), make);
  }
  if (value.kind === "json") {
    try {
      return JSON.parse(value.text);
    } catch {
      throw new Error(`Input ${tensor.name}: expected JSON such as ${sampleText(view, tensor).slice(0, 60)}, got ${value.text.slice(0, 40) || "nothing"}.`);
    }
  }
  throw new Error(`Input ${tensor.name} is a file.`);
}

async function base64(blob: Blob): Promise<string> {
  const data = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let i = 0; i < data.length; i += 0x8000) text += String.fromCharCode(...data.subarray(i, i + 0x8000));
  return btoa(text);
}

/** Values as the JSON body of generate. Files become base64. */
export async function plainBody(view: ModelView, values: Values): Promise<Record<string, unknown>> {
  const body: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    const tensor = view.inputs.find((each) => each.name === name);
    if (tensor) body[name] = value.kind === "file" ? await base64(value.file) : jsonOf(view, tensor, value);
  }
  return body;
}

/** Values as the JSON body of infer, with one row. */
export async function inferBody(view: ModelView, values: Values): Promise<{ inputs: unknown[] }> {
  const inputs: unknown[] = [];
  for (const [name, value] of Object.entries(values)) {
    const tensor = view.inputs.find((each) => each.name === name);
    if (!tensor) continue;
    if (value.kind === "file") {
      const parameters = { content_type: "base64" };
      inputs.push({ name, datatype: tensor.datatype, shape: [1], parameters, data: [await base64(value.file)] });
      continue;
    }
    const content = jsonOf(view, tensor, value);
    const row = rowShape(view, tensor);
    let shape: number[] = [];
    for (let at = content; Array.isArray(at); at = at[0]) shape.push(at.length);
    if (shape.length < row.length && row.every((size) => size === 1 || size === -1)) shape = row.map(() => 1);
    if (view.max_batch_size > 0) shape = [1, ...shape];
    inputs.push({ name, datatype: tensor.datatype, shape, data: Array.isArray(content) ? content.flat(Infinity) : [content] });
  }
  return { inputs };
}

/** The values of an example. */
export async function exampleValues(view: ModelView, example: ModelView["examples"][number]): Promise<Values> {
  const values: Values = {};
  const file = async (path: string): Promise<Value> => {
    const blob = await (await send(path)).blob();
    return { kind: "file", file: blob, name: decodeURIComponent(path.split("/").pop() ?? "file") };
  };
  if (example.kind === "file" && example.file) values[view.form.input] = await file(example.file);
  for (const [name, path] of Object.entries(example.files ?? {})) values[name] = await file(path);
  for (const [name, content] of Object.entries(example.json ?? {})) {
    const tensor = view.inputs.find((each) => each.name === name);
    const plain = tensor && isText(tensor) && typeof content === "string";
    values[name] = plain ? { kind: "text", text: content } : { kind: "json", text: JSON.stringify(content) };
  }
  return values;
}

/** Values that need no person: for each required input something of its shape. */
export function sampleValues(view: ModelView): Values {
  const values: Values = {};
  for (const tensor of view.inputs) {
    if (tensor.optional || view.form.files.includes(tensor.name)) continue;
    if (elements(rowShape(view, tensor)) > MOST_TYPED) values[tensor.name] = { kind: "fill", how: "random" };
    else if (isText(tensor) && rowShape(view, tensor).every((size) => size === 1 || size === -1)) values[tensor.name] = { kind: "text", text: "text" };
    else values[tensor.name] = { kind: "json", text: sampleText(view, tensor) };
  }
  return values;
}

/** Says which request `lastTried` gives. */
export function whatIsTried(view: ModelView): string {
  if (remembered(view)) return "the request that you tried last";
  return view.examples[0] ? `the example ${view.examples[0].title}` : "made-up values";
}

/** The body of the request that was tried last; without one, that of the first example, or of made-up values. */
export async function lastTried(view: ModelView): Promise<{ inputs: unknown[] }> {
  let values = remembered(view);
  if (!values && view.examples[0]) values = await exampleValues(view, view.examples[0]);
  if (!values && view.form.files.length) throw new Error("Try the model once first: the request that you tried last is measured.");
  return inferBody(view, values ?? sampleValues(view));
}

