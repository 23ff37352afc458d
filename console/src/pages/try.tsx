// Sends a request to a model from a form that is made for it, and shows the answer.

import type { JSX } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, headersWithTokens, messageOf, parse, send } from "../api";
import { bytes, digits, plural } from "../format";
import { Choice, Code, Problem } from "../parts";
import { events } from "../sse";
import { elements, exampleValues, isText, MOST_TYPED, jsonOf, plainBody, remember, remembered, rowShape, sampleText, sampleValues, type Value, type Values } from "../tried";
import { type Cloud, readCloud } from "../try/cloud";
import { type Language, LANGUAGES, type Sent, snippet } from "../try/snippets";
import { record, type Recording } from "../try/sound";
import { areInPicture, asMap, cell, Found, Heard, MapView, Points, Records, type Row } from "../try/views";
import type { Form, ModelView, TensorInfo } from "../types";

interface Answer {
  status: number;
  error: string;
  ms: number;
  size: number;
  text: string;
  content: unknown;
  picture: Blob | null;
  parts: { at: number; content: unknown }[]; // of a stream
  done: boolean;
}

const NOTHING: Answer = { status: 0, error: "", ms: 0, size: 0, text: "", content: null, picture: null, parts: [], done: false };

/** The kind of file that a request says it has. */
const mediaOf = (file: Blob): string => file.type || "application/octet-stream";

export function TryTab({ view }: { view: ModelView }): JSX.Element {
  const { form } = view;
  const [values, setValues] = useState<Values>(() => remembered(view) ?? sampleValues(view));
  const [parameters, setParameters] = useState<Record<string, string>>({});
  const [draw, setDraw] = useState(false);
  const [streaming, setStreaming] = useState(view.streams);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [asked, setAsked] = useState<{ sent: Sent; values: Values } | null>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const required = view.inputs.filter((tensor) => !tensor.optional || form.files.includes(tensor.name));
  const set = (name: string, value: Value | null): void => {
    setProblem("");
    setValues((own) => {
      const next = { ...own };
      if (value) next[name] = value;
      else delete next[name];
      return next;
    });
  };

  const go = async (given: Values, csv?: File): Promise<void> => {
    setProblem("");
    abort.current?.abort();
    const control = new AbortController();
    abort.current = control;
    let request: Request;
    try {
      const missing = !csv && required.find((tensor) => !tensor.optional && !given[tensor.name]);
      if (missing) throw new Error(`Choose a file for ${missing.name} first, or take an example.`);
      request = csv ? ofRows(view, csv, parameters) : await build(view, given, parameters, draw, streaming);
    } catch (error) {
      setProblem(messageOf(error));
      setAnswer(null);
      setAsked(null);
      return;
    }
    setAsked({ sent: request.sent, values: given });
    setBusy(true);
    setAnswer(null);
    const began = performance.now();
    const own = { ...NOTHING };
    try {
      const response = await send(request.sent.path, { method: "POST", body: request.body, headers: request.headers, signal: control.signal });
      own.status = response.status;
      const media = response.headers.get("content-type") ?? "";
      if (media.startsWith("text/event-stream") && response.body) {
        for await (const event of events(response.body)) {
          own.parts = [...own.parts, { at: performance.now() - began, content: tryParse(event.data) }];
          own.text += `${event.data}\n`;
          setAnswer({ ...own, ms: performance.now() - began });
        }
        own.size = own.text.length;
      } else if (media.startsWith("image/")) {
        own.picture = await response.blob();
        own.size = own.picture.size;
      } else {
        own.text = await response.text();
        own.size = own.text.length;
        own.content = parse(own.text);
      }
      own.ms = performance.now() - began;
    } catch (error) {
      if (control.signal.aborted) return;
      own.ms = performance.now() - began;
      own.status = error instanceof ApiError ? error.status : 0;
      own.error = messageOf(error);
    }
    own.done = true;
    if (!csv && own.status === 200) remember(view, given);
    setAnswer(own);
    setBusy(false);
  };

  const take = async (place: number): Promise<void> => {
    const example = view.examples[place];
    if (!example) return;
    try {
      const found = { ...sampleValues(view), ...(await exampleValues(view, example)) };
      setValues(found);
      await go(found);
    } catch (error) {
      setProblem(messageOf(error));
    }
  };

  return (
    <div class="try">
      <section aria-labelledby="request-title">
        <h2 id="request-title">Request</h2>
        {view.examples.length > 0 && (
          <div class="row tight examples" role="group" aria-label="Examples">
            <span class="muted">Examples:</span>
            {view.examples.map((example, i) => (
              <button key={example.title} type="button" class="small" disabled={busy} onClick={() => void take(i)}>
                {example.title}
              </button>
            ))}
          </div>
        )}
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void go(values);
          }}
        >
          {required.map((tensor) =>
            form.files.includes(tensor.name) ? (
              <FileField key={tensor.name} tensor={tensor} form={form} value={values[tensor.name]} set={(value) => set(tensor.name, value)} />
            ) : (
              <TensorField key={tensor.name} view={view} tensor={tensor} value={values[tensor.name]} set={(value) => set(tensor.name, value)} />
            ),
          )}
          {form.kind === "table" && <Rows send={(file) => void go(values, file)} />}
          {form.parameters.filter((each) => !form.files.includes(each.name)).length > 0 && (
            <details>
              <summary>Optional inputs</summary>
              {form.parameters
                .filter((each) => !form.files.includes(each.name))
                .map((each) => (
                  <label key={each.name} class="field">
                    <span>
                      <span class="mono">{each.name}</span> <span class="muted">{each.datatype}, the model's own value if empty</span>
                    </span>
                    <input
                      value={parameters[each.name] ?? ""}
                      autocomplete="off"
                      onInput={(event) => setParameters({ ...parameters, [each.name]: event.currentTarget.value })}
                    />
                  </label>
                ))}
            </details>
          )}
          {form.picture_model && (
            <label class="check">
              <input type="checkbox" checked={draw} onChange={(event) => setDraw(event.currentTarget.checked)} />
              Answer with the picture that the model draws
            </label>
          )}
          {view.streams && (
            <label class="check">
              <input type="checkbox" checked={streaming} onChange={(event) => setStreaming(event.currentTarget.checked)} />
              Show the responses as they come
            </label>
          )}
          <Problem text={problem} />
          <div class="row">
            <button type="submit" class="primary" disabled={busy}>
              {busy ? "Waiting for the answer" : "Send"}
            </button>
            {busy && (
              <button
                type="button"
                onClick={() => {
                  abort.current?.abort();
                  setBusy(false);
                }}
              >
                Cancel
              </button>
            )}
          </div>
        </form>
      </section>
      <section aria-labelledby="answer-title">
        <h2 id="answer-title">Answer</h2>
        <div aria-live="polite">
          {answer?.done && (
            <p class="num">
              {answer.error ? (
                <strong class="bad-text">{answer.status ? `Status ${answer.status}` : "No answer"}</strong>
              ) : (
                <strong>Status {answer.status}</strong>
              )}{" "}
              after {digits(answer.ms)} ms{answer.size > 0 && `, ${bytes(answer.size)}`}
              {answer.parts.length > 0 && `, ${plural(answer.parts.length, "response")}`}
            </p>
          )}
          {answer?.error && <p class="note bad">{answer.error}</p>}
        </div>
        {!answer && <p class="muted">{busy ? "The request is under way." : "Send a request, and the answer appears here."}</p>}
        {answer && asked && !answer.error && <AnswerView answer={answer} values={asked.values} form={form} />}
        {asked && <Snippets view={view} sent={asked.sent} values={asked.values} />}
      </section>
    </div>
  );
}

const tryParse = (text: string): unknown => {
  try {
    return parse(text);
  } catch {
    return text;
  }
};

interface Request {
  sent: Sent;
  body: BodyInit;
  headers: Record<string, string>;
}

/** The address of a version below /predict, with values of optional inputs in its query. */
function predictPath(view: ModelView, given: [string, string][]): string {
  const query = given.length ? `?${new URLSearchParams(given).toString()}` : "";
  return `predict/${encodeURIComponent(view.name)}/versions/${encodeURIComponent(view.version)}${query}`;
}

const filled = (parameters: Record<string, string>): [string, string][] => Object.entries(parameters).filter(([, text]) => text !== "");

/** The request of a CSV file, which has a row for each line. */
function ofRows(view: ModelView, csv: File, parameters: Record<string, string>): Request {
  const media = "text/csv";
  const sent: Sent = {
    path: predictPath(view, filled(parameters)),
    accept: "",
    body: { kind: "file", name: csv.name, media },
    headers: [...headersWithTokens().keys()],
  };
  return { sent, body: csv, headers: { "Content-Type": media } };
}

async function build(
  view: ModelView,
  values: Values,
  parameters: Record<string, string>,
  draw: boolean,
  streaming: boolean,
): Promise<Request> {
  const name = encodeURIComponent(view.name);
  const given = filled(parameters);
  const headers: Record<string, string> = draw ? { Accept: "image/*" } : {};
  const names = [...headersWithTokens().keys()];
  const sent: Sent = { path: predictPath(view, []), accept: draw ? "image/*" : "", body: { kind: "json", text: "" }, headers: names };
  if (streaming) {
    const body = await plainBody(view, values);
    for (const [key, text] of given) body[key] = tryParse(text);
    sent.path = `v2/models/${name}/versions/${encodeURIComponent(view.version)}/generate_stream`;
    sent.body = { kind: "json", text: JSON.stringify(body) };
    return { sent, body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } };
  }
  const files = Object.entries(values).filter(([, value]) => value.kind === "file");
  const [only] = files;
  if (only?.[1].kind === "file" && Object.keys(values).length === 1 && view.form.input === only[0]) {
    const media = mediaOf(only[1].file);
    sent.path = predictPath(view, given);
    sent.body = { kind: "file", name: only[1].name, media };
    return { sent, body: only[1].file, headers: { ...headers, "Content-Type": media } };
  }
  if (files.length) {
    const body = new FormData();
    const fields: Record<string, string> = {};
    const paths: Record<string, string> = {};
    for (const [key, value] of Object.entries(values)) {
      if (value.kind === "file") {
        body.append(key, value.file, value.name);
        paths[key] = value.name;
      } else {
        const tensor = view.inputs.find((each) => each.name === key);
        fields[key] = value.kind === "text" ? value.text : JSON.stringify(tensor ? jsonOf(view, tensor, value) : null);
      }
    }
    for (const [key, text] of given) fields[key] = text;
    for (const [key, text] of Object.entries(fields)) body.append(key, text);
    sent.body = { kind: "form", files: paths, fields };
    return { sent, body, headers };
  }
  const body = await plainBody(view, values);
  sent.path = predictPath(view, given);
  const text = JSON.stringify(body);
  sent.body = { kind: "json", text };
  return { sent, body: text, headers: { ...headers, "Content-Type": "application/json" } };
}

const KINDS: Record<Form["kind"], string> = { picture: "a picture", sound: "a sound", points: "a point cloud", bytes: "a file", text: "a file", table: "a file", tensors: "a file" };

function FileField({ tensor, form, value, set }: { tensor: TensorInfo; form: Form; value: Value | undefined; set: (value: Value | null) => void }): JSX.Element {
  const id = useId();
  const [over, setOver] = useState(false);
  const [recording, setRecording] = useState<Recording | null>(null);
  const [problem, setProblem] = useState("");
  const accept = form.kind === "points" ? ".ply,.npy,.xyz,.txt,.csv" : form.kind === "bytes" ? "" : form.media.join(",");
  const use = async (file: File | undefined): Promise<void> => {
    setProblem("");
    if (!file) return;
    let blob: Blob = file;
    if (form.kind === "points") {
      try {
        blob = readCloud(await file.arrayBuffer()).upload ?? file;
      } catch (error) {
        setProblem(messageOf(error));
        return;
      }
    }
    set({ kind: "file", file: blob, name: file.name });
  };
  const file = value?.kind === "file" ? value : null;
  return (
    <div class="field">
      <label for={id}>
        <span class="mono">{tensor.name}</span> <span class="muted">{KINDS[form.kind]}{tensor.optional && ", optional"}</span>
      </label>
      <div
        class={`drop ${over ? "over" : ""}`}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          void use(event.dataTransfer?.files[0]);
        }}
      >
        <input id={id} class="hidden" type="file" accept={accept} onChange={(event) => void use(event.currentTarget.files?.[0])} />
        <span class="row tight">
        <label for={id} class="button small" aria-hidden="true">
          Choose a file
        </label>
        {form.kind === "sound" && (
          <button
            type="button"
            class="small"
            onClick={() => {
              setProblem("");
              if (recording) {
                void recording.stop().then((blob) => set({ kind: "file", file: blob, name: "recording.wav" }), (error: unknown) => setProblem(messageOf(error)));
                setRecording(null);
              } else record().then(setRecording, (error: unknown) => setProblem(error instanceof DOMException ? `The browser gives no microphone: ${error.message}` : messageOf(error)));
            }}
          >
            {recording ? "Stop recording" : "Record"}
          </button>
        )}
        </span>
        <p class="muted">{file ? `${file.name}, ${bytes(file.file.size)}` : `Drop ${KINDS[form.kind]} here, or choose one.`}</p>
        {file && form.kind === "picture" && <Thumb file={file.file} />}
      </div>
      <Problem text={problem} />
    </div>
  );
}

/** Several rows at once, from a CSV file whose first line names the inputs. */
function Rows({ send }: { send: (file: File) => void }): JSX.Element {
  const id = useId();
  return (
    <details>
      <summary>Rows from a CSV file</summary>
      <label class="field" for={id}>
        <span class="muted">The first line names the inputs. The file is sent as soon as it is chosen.</span>
        <input
          id={id}
          type="file"
          accept=".csv,text/csv"
          onChange={(event) => {
            const [file] = event.currentTarget.files ?? [];
            if (file) send(file);
            event.currentTarget.value = "";
          }}
        />
      </label>
    </details>
  );
}

function Thumb({ file }: { file: Blob }): JSX.Element {
  const url = useMemo(() => URL.createObjectURL(file), [file]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  return <img class="thumb" src={url} alt="The chosen picture" />;
}

function TensorField({ view, tensor, value, set }: { view: ModelView; tensor: TensorInfo; value: Value | undefined; set: (value: Value) => void }): JSX.Element {
  const id = useId();
  const shape = rowShape(view, tensor);
  const large = elements(shape) > MOST_TYPED;
  const one = shape.every((size) => size === 1) && !isText(tensor);
  const note = `${tensor.datatype}${shape.length ? `, shape [${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]` : ""}`;
  const kind = value?.kind ?? "json";
  return (
    <div class="field">
      <label for={id}>
        <span class="mono">{tensor.name}</span> <span class="muted">{note}</span>
      </label>
      {large && (
        <select
          aria-label={`Values of ${tensor.name}`}
          value={value?.kind === "fill" ? value.how : "typed"}
          onChange={(event) => {
            const how = event.currentTarget.value;
            set(how === "typed" ? { kind: "json", text: "" } : { kind: "fill", how: how === "zeros" ? "zeros" : "random" });
          }}
        >
          <option value="random">Random numbers from 0 to 1</option>
          <option value="zeros">Zeros</option>
          <option value="typed">JSON that I paste</option>
        </select>
      )}
      {kind === "fill" ? (
        <p id={id} class="hint">The console makes the {plural(elements(shape), "element")} when it sends the request.</p>
      ) : one && value?.kind === "json" ? (
        <input id={id} value={value.text.replace(/^\[+|\]+$/g, "")} autocomplete="off" inputMode="decimal" onInput={(event) => set({ kind: "json", text: `${"[".repeat(shape.length)}${event.currentTarget.value}${"]".repeat(shape.length)}` })} />
      ) : (
        <textarea
          id={id}
          rows={value?.kind === "text" ? 3 : Math.min(8, 2 + shape.length)}
          spellcheck={false}
          value={value && "text" in value ? value.text : ""}
          onInput={(event) => set({ kind: kind === "text" ? "text" : "json", text: event.currentTarget.value })}
        />
      )}
      {!large && !one && kind === "json" && (
        <button type="button" class="small" onClick={() => set({ kind: "json", text: sampleText(view, tensor) })}>
          Fill in an example
        </button>
      )}
    </div>
  );
}

interface Result {
  predictions?: Row[];
  outputs?: Record<string, unknown>;
  error?: string;
}

/** What one of several rows got: its best record, its outputs, or its error. */
const rowOf = (result: Result): Row => (result.error ? { error: result.error } : (result.predictions?.[0] ?? result.outputs ?? {}));

function AnswerView({ answer, values, form }: { answer: Answer; values: Values; form: Form }): JSX.Element {
  const [chosen, choose] = useState<number | null>(null);
  const content = answer.content as (Result & { results?: Result[] }) | null;
  const rows = useMemo(() => {
    if (Array.isArray(content?.results)) return content.results.map(rowOf);
    return Array.isArray(content?.predictions) ? content.predictions : null;
  }, [content]);
  const outputs = content?.outputs ?? null;
  const file = Object.values(values).find((value) => value.kind === "file");
  const picture = useMemo(() => answer.picture ?? pictureOf(outputs), [answer.picture, outputs]);
  const url = useMemo(() => (picture ? URL.createObjectURL(picture) : ""), [picture]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  const text = useMemo(() => (answer.content ? shorten(JSON.stringify(answer.content, null, 1)) : answer.text), [answer.content, answer.text]);
  const points = form.kind === "points" && file?.kind === "file" ? file.file : null;
  const maps = Object.entries(outputs ?? {}).flatMap(([name, value]) => {
    const map = asMap(value);
    return map ? [{ name, map }] : [];
  });
  return (
    <>
      {picture && <img class="shown" src={url} alt="The picture that the model drew" />}
      {rows && form.kind === "picture" && file?.kind === "file" && areInPicture(rows) && <Found file={file.file} rows={rows} chosen={chosen} />}
      {form.kind === "sound" && file?.kind === "file" && <Heard file={file.file} rows={rows ?? []} />}
      {points && <CloudView file={points} rows={rows ?? []} />}
      {maps.map(({ name, map }) => <MapView key={name} name={name} rows={map} />)}
      {rows && rows.length === 1 && typeof rows[0]?.["text"] === "string" && <p class="said">{rows[0]["text"]}</p>}
      {rows && !points && <Records rows={rows} {...(areInPicture(rows) && form.kind === "picture" ? { choose } : {})} />}
      {outputs && !picture && (
        <dl class="facts list">
          {Object.entries(outputs).filter(([name]) => !maps.some((map) => map.name === name)).map(([name, value]) => (
            <div key={name}>
              <dt class="mono">{name}</dt>
              <dd class="mono wrap">{cell(value)}</dd>
            </div>
          ))}
        </dl>
      )}
      {answer.parts.length > 0 && (
        <ol class="parts">
          {answer.parts.map((part, i) => (
            <li key={i}>
              <span class="num muted">{digits(part.at)} ms</span> <span class="mono wrap">{typeof part.content === "string" ? part.content : streamText(part.content)}</span>
            </li>
          ))}
        </ol>
      )}
      {text && (
        <details>
          <summary>JSON</summary>
          <Code text={text} what="the answer as JSON" tall />
        </details>
      )}
    </>
  );
}

/** The outputs of one response of a stream, without what each of them repeats. */
function streamText(content: unknown): string {
  if (typeof content !== "object" || content === null) return String(content);
  const { model_name: _, model_version: __, ...rest } = content as Record<string, unknown>;
  const text = JSON.stringify(rest);
  return text.length > 600 ? `${text.slice(0, 600)}...` : text;
}

const LONGEST = 200_000;
const shorten = (text: string): string => (text.length > LONGEST ? `${text.slice(0, LONGEST)}\n... and ${plural(text.length - LONGEST, "more character")}` : text);

/** The picture in outputs of one UINT8 tensor, null if there is none. */
function pictureOf(outputs: Record<string, unknown> | null): Blob | null {
  const all = Object.values(outputs ?? {});
  const data = all.length === 1 ? all[0] : null;
  if (!Array.isArray(data) || data.length < 100 || typeof data[0] !== "number") return null;
  const isPng = data[0] === 0x89 && data[1] === 0x50;
  if (!isPng && !(data[0] === 0xff && data[1] === 0xd8)) return null;
  return new Blob([new Uint8Array(data as number[])], { type: isPng ? "image/png" : "image/jpeg" });
}

function CloudView({ file, rows }: { file: Blob; rows: readonly Row[] }): JSX.Element | null {
  const [cloud, setCloud] = useState<Cloud | null>(null);
  const [problem, setProblem] = useState("");
  const labels = useMemo(() => rows.map((row) => String(row["label"] ?? "")), [rows]);
  useEffect(() => {
    let gone = false;
    setCloud(null);
    file
      .arrayBuffer()
      .then((data) => !gone && setCloud(readCloud(data)))
      .catch((error: unknown) => !gone && setProblem(messageOf(error)));
    return () => {
      gone = true;
    };
  }, [file]);
  if (problem) return <Problem text={problem} />;
  return cloud && <Points cloud={cloud} labels={labels} />;
}

function Snippets({ view, sent, values }: { view: ModelView; sent: Sent; values: Values }): JSX.Element {
  const [language, setLanguage] = useState<Language>("curl");
  const text = snippet(language, sent, view, values);
  return (
    <section aria-labelledby="snippet-title">
      <h3 id="snippet-title">The same request in code</h3>
      <Choice label="Language" options={LANGUAGES} value={language} choose={setLanguage} />
      <Code text={text} what="the request in code" />
    </section>
  );
}

