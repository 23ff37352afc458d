// The same request in other languages.

import type { ModelView } from "../types";
import { rowShape, type Values } from "../tried";

export interface Sent {
  path: string; // relative to the page
  accept: string;
  body: { kind: "file"; name: string; media: string } | { kind: "form"; files: Record<string, string>; fields: Record<string, string> } | { kind: "json"; text: string };
  headers: string[]; // names of headers with tokens
}

const LONG = 3000;
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
const python = (text: string): string => JSON.stringify(text);

const NUMPY: Record<string, string> = {
  BOOL: "bool_", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object_",
};

const bodyText = (sent: Sent): { text: string; file: boolean } =>
  sent.body.kind === "json" && sent.body.text.length <= LONG ? { text: sent.body.text, file: false } : { text: "", file: true };

function curl(sent: Sent, url: string): string {
  const lines: string[] = [];
  if (sent.accept) lines.push(`-H ${quoted(`Accept: ${sent.accept}`)} -o answer`);
  for (const name of sent.headers) lines.push(`-H "${name}: $TOKEN"`);
  const { body } = sent;
  if (body.kind === "file") lines.push(`-H ${quoted(`Content-Type: ${body.media}`)}`, `--data-binary @${quoted(body.name)}`);
  else if (body.kind === "form") {
    for (const [name, file] of Object.entries(body.files)) lines.push(`-F ${quoted(`${name}=@${file}`)}`);
    for (const [name, text] of Object.entries(body.fields)) lines.push(`-F ${quoted(`${name}=${text}`)}`);
  } else {
    const { text, file } = bodyText(sent);
    lines.push("-H 'Content-Type: application/json'", file ? "-d @body.json" : `-d ${quoted(text)}`);
  }
  return [`curl ${sent.path.endsWith("_stream") ? "-N " : ""}${quoted(url)}`, ...lines].join(" \\\n  ");
}

function requests(sent: Sent, url: string): string {
  const { body } = sent;
  const headers: string[] = [];
  if (sent.accept) headers.push(`"Accept": ${python(sent.accept)}`);
  for (const name of sent.headers) headers.push(`${python(name)}: "TOKEN"`);
  const lines = ["import requests", ""];
  let what = "";
  if (body.kind === "file") {
    headers.push(`"Content-Type": ${python(body.media)}`);
    lines.push(`with open(${python(body.name)}, "rb") as file:`, "    data = file.read()");
    what = "data=data";
  } else if (body.kind === "form") {
    const files = Object.entries(body.files).map(([name, file]) => `${python(name)}: open(${python(file)}, "rb")`);
    lines.push(`files = {${files.join(", ")}}`);
    what = "files=files";
    if (Object.keys(body.fields).length) {
      lines.push(`data = ${JSON.stringify(body.fields)}`);
      what += ", data=data";
    }
  } else {
    const { text, file } = bodyText(sent);
    headers.push('"Content-Type": "application/json"');
    lines.push(file ? 'body = open("body.json", "rb").read()' : `body = ${python(text)}`);
    what = "data=body";
  }
  const stream = sent.path.endsWith("_stream");
  lines.push(`answer = requests.post(${python(url)}, ${what}, headers={${headers.join(", ")}}${stream ? ", stream=True" : ""})`, "answer.raise_for_status()");
  if (stream) lines.push("for line in answer.iter_lines():", "    print(line.decode())");
  else lines.push(sent.accept ? 'open("answer", "wb").write(answer.content)' : "print(answer.json())");
  return lines.join("\n");
}

function tritonclient(view: ModelView, values: Values): string {
  const base = new URL(".", location.href);
  const place = `${base.host}${base.pathname.replace(/\/$/, "")}`;
  const ssl = base.protocol === "https:" ? ", ssl=True" : "";
  const lines = ["import numpy as np", "import tritonclient.http as triton", "", `client = triton.InferenceServerClient(${python(place)}${ssl})`, "inputs = []"];
  for (const [name, value] of Object.entries(values)) {
    const tensor = view.inputs.find((each) => each.name === name);
    if (!tensor) continue;
    const type = `np.${NUMPY[tensor.datatype] ?? "float32"}`;
    const batch = view.max_batch_size > 0 || tensor.shape.length > rowShape(view, tensor).length;
    let array = "";
    if (value.kind === "file") array = `np.fromfile(${python(value.name)}, np.uint8)${tensor.shape.length > 1 ? "[None]" : ""}`;
    else if (value.kind === "fill") {
      const shape = tensor.shape.map((size, i) => (size < 0 ? (i === 0 && batch ? 1 : 2) : size));
      array = value.how === "zeros" ? `np.zeros(${JSON.stringify(shape)}, ${type})` : `np.random.rand(${shape.join(", ")}).astype(${type})`;
    } else {
      const text = value.kind === "text" ? python(value.text) : value.text.replaceAll("true", "True").replaceAll("false", "False");
      const scalar = value.kind === "text" || !text.trim().startsWith("[");
      const depth = scalar ? tensor.shape.length : batch ? 1 : 0;
      array = `np.array(${"[".repeat(depth)}${text.length > LONG ? "..." : text}${"]".repeat(depth)}, ${type})`;
    }
    lines.push(`value = ${array}`, `inputs.append(triton.InferInput(${python(name)}, value.shape, ${python(tensor.datatype)}))`, "inputs[-1].set_data_from_numpy(value)");
  }
  lines.push(`answer = client.infer(${python(view.name)}, inputs, model_version=${python(view.version)})`);
  for (const output of view.outputs) lines.push(`print(${python(output.name)}, answer.as_numpy(${python(output.name)}))`);
  return lines.join("\n");
}

function javascript(sent: Sent, url: string): string {
  const { body } = sent;
  const headers: string[] = [];
  if (sent.accept) headers.push(`"Accept": ${JSON.stringify(sent.accept)}`);
  for (const name of sent.headers) headers.push(`${JSON.stringify(name)}: token`);
  const lines: string[] = [];
  if (body.kind === "file") {
    headers.push(`"Content-Type": ${JSON.stringify(body.media)}`);
    lines.push('const body = document.querySelector("input[type=file]").files[0];');
  } else if (body.kind === "form") {
    lines.push("const body = new FormData();");
    for (const name of Object.keys(body.files)) lines.push(`body.append(${JSON.stringify(name)}, document.querySelector("#${name}").files[0]);`);
    for (const [name, text] of Object.entries(body.fields)) lines.push(`body.append(${JSON.stringify(name)}, ${JSON.stringify(text)});`);
  } else {
    const { text, file } = bodyText(sent);
    headers.push('"Content-Type": "application/json"');
    lines.push(file ? "const body = JSON.stringify(values);" : `const body = ${JSON.stringify(text)};`);
  }
  lines.push(`const answer = await fetch(${JSON.stringify(url)}, {`, '  method: "POST",', `  headers: { ${headers.join(", ")} },`, "  body,", "});");
  lines.push("if (!answer.ok) throw new Error((await answer.json()).error);");
  if (sent.path.endsWith("_stream")) lines.push("for await (const part of answer.body.pipeThrough(new TextDecoderStream())) console.log(part);");
  else lines.push(sent.accept ? "const picture = URL.createObjectURL(await answer.blob());" : "console.log(await answer.json());");
  return lines.join("\n");
}

export type Language = "curl" | "requests" | "tritonclient" | "javascript";
export const LANGUAGES: readonly { id: Language; title: string }[] = [
  { id: "curl", title: "curl" },
  { id: "requests", title: "Python, requests" },
  { id: "tritonclient", title: "Python, tritonclient" },
  { id: "javascript", title: "JavaScript" },
];

export function snippet(language: Language, sent: Sent, view: ModelView, values: Values): string {
  const url = new URL(sent.path, location.href.replace(/#.*/, "")).href;
  if (language === "curl") return curl(sent, url);
  if (language === "requests") return requests(sent, url);
  if (language === "tritonclient") return tritonclient(view, values);
  return javascript(sent, url);
}
