// Pictures of answers: boxes on a picture, segments of a sound, labels of points, maps, records.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, digits, plural, seconds } from "../format";
import { Bars } from "../parts";
import type { Cloud } from "./cloud";
import { drawCloud } from "./webgl";
import { decode } from "./sound";

export type Row = Record<string, unknown>;

// Colours that differ on a light and on a dark ground, and on photographs.
const COLOURS = ["#e6194b", "#3c8dff", "#1fab55", "#f58231", "#a24bd6", "#00a5a5", "#d633a8", "#8a6d1d", "#6a7de0", "#7a9a01", "#c0562f", "#5a6b7b"];

/** The colour of each label. Equal labels have one colour. */
export function colours(labels: readonly string[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const label of labels) if (!found.has(label)) found.set(label, COLOURS[found.size % COLOURS.length] ?? "#3c8dff");
  return found;
}

const labelOf = (row: Row): string => String(row["label"] ?? row["class"] ?? row["text"] ?? "");
const numbers = (value: unknown): number[] | null => (Array.isArray(value) && value.every((each) => typeof each === "number") ? (value as number[]) : null);
const pairs = (value: unknown): number[][] | null =>
  Array.isArray(value) && value.length > 0 && value.every((each) => numbers(each) !== null && (each as number[]).length >= 2) ? (value as number[][]) : null;

/** Whether records say where in a picture things are. */
export const areInPicture = (rows: readonly Row[]): boolean =>
  rows.some((row) => (numbers(row["box"])?.length ?? 0) >= 4 || pairs(row["polygon"]) || pairs(row["keypoints"]) || isMask(row["mask"]));

interface Mask {
  size: [number, number];
  counts: number[];
}
const isMask = (value: unknown): value is Mask => typeof value === "object" && value !== null && "counts" in value && "size" in value;

/** Paints the run lengths of a mask: pixels outside and inside in turn, column by column. */
function paintMask(context: CanvasRenderingContext2D, mask: Mask, colour: string, scale: number): void {
  const [height, width] = mask.size;
  if (!height || !width || height * width > 64e6) return;
  const layer = document.createElement("canvas");
  layer.width = width;
  layer.height = height;
  const own = layer.getContext("2d");
  if (!own) return;
  const pixels = own.createImageData(width, height);
  const tone = [1, 3, 5].map((place) => Number.parseInt(colour.slice(place, place + 2), 16));
  let at = 0;
  mask.counts.forEach((run, i) => {
    if (i % 2) {
      for (let pixel = at; pixel < at + run; pixel++) {
        const place = ((pixel % height) * width + Math.floor(pixel / height)) * 4;
        pixels.data[place] = tone[0] ?? 0;
        pixels.data[place + 1] = tone[1] ?? 0;
        pixels.data[place + 2] = tone[2] ?? 0;
        pixels.data[place + 3] = 110;
      }
    }
    at += run;
  });
  own.putImageData(pixels, 0, 0);
  context.drawImage(layer, 0, 0, width * scale, height * scale);
}

const WIDEST = 1400;

/** What a file holds, null until it is decoded, and what to say if the browser can't decode it. */
function useDecoded<T>(file: Blob, decoded: (file: Blob) => Promise<T>, otherwise: string): { content: T | null; problem: string } {
  const [content, setContent] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let gone = false;
    setContent(null);
    setProblem("");
    decoded(file)
      .then((found) => !gone && setContent(() => found))
      .catch(() => !gone && setProblem(otherwise));
    return () => {
      gone = true;
    };
  }, [file]);
  return { content, problem };
}

/** A picture with what was found in it. */
export function Found({ file, rows, chosen }: { file: Blob; rows: readonly Row[]; chosen: number | null }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { content: picture, problem } = useDecoded(file, (picture) => createImageBitmap(picture), "The browser can't show this kind of picture. The records are below.");
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || !picture) return;
    const scale = Math.min(1, WIDEST / picture.width);
    element.width = Math.round(picture.width * scale);
    element.height = Math.round(picture.height * scale);
    context.drawImage(picture, 0, 0, element.width, element.height);
    const tones = colours(rows.map(labelOf));
    const line = Math.max(2, element.width / 400);
    const size = Math.max(12, Math.round(element.width / 50));
    context.font = `600 ${size}px system-ui, sans-serif`;
    context.textBaseline = "top";
    rows.forEach((row, i) => {
      const tone = tones.get(labelOf(row)) ?? "#3c8dff";
      context.globalAlpha = chosen === null || chosen === i ? 1 : 0.25;
      context.strokeStyle = tone;
      context.lineWidth = chosen === i ? line * 2 : line;
      if (isMask(row["mask"])) paintMask(context, row["mask"], tone, scale);
      const box = numbers(row["box"]);
      const polygon = pairs(row["polygon"]);
      let corner: [number, number] | null = null;
      if (box && box.length >= 4) {
        const [x1 = 0, y1 = 0, x2 = 0, y2 = 0] = box.map((value) => value * scale);
        context.strokeRect(x1, y1, x2 - x1, y2 - y1);
        corner = [x1, y1];
      }
      if (polygon) {
        context.beginPath();
        polygon.forEach(([x = 0, y = 0], place) => (place ? context.lineTo(x * scale, y * scale) : context.moveTo(x * scale, y * scale)));
        context.closePath();
        context.stroke();
        corner ??= [(polygon[0]?.[0] ?? 0) * scale, (polygon[0]?.[1] ?? 0) * scale];
      }
      for (const [x = 0, y = 0, score = 1] of pairs(row["keypoints"]) ?? []) {
        if (score <= 0) continue;
        context.beginPath();
        context.arc(x * scale, y * scale, line * 1.8, 0, 7);
        context.fillStyle = tone;
        context.fill();
      }
      const score = typeof row["score"] === "number" ? ` ${row["score"].toFixed(2)}` : "";
      const text = `${labelOf(row)}${score}`.trim();
      if (corner && text) {
        const width = context.measureText(text).width + 8;
        const top = Math.max(0, corner[1] - size - 5);
        context.fillStyle = tone;
        context.fillRect(corner[0] - line / 2, top, width, size + 5);
        context.fillStyle = "#fff";
        context.fillText(text, corner[0] + 4 - line / 2, top + 3);
      }
    });
    context.globalAlpha = 1;
  }, [picture, rows, chosen]);
  if (problem) return <p class="hint">{problem}</p>;
  return (
    <canvas
      ref={canvas}
      class="shown"
      role="img"
      aria-label={rows.length ? `The picture with ${plural(rows.length, "thing")} marked: ${rows.slice(0, 20).map(labelOf).filter(Boolean).join(", ")}` : "The picture. Nothing was found in it."}
    />
  );
}

/** A sound as a waveform, with the segments of it that were found. */
export function Heard({ file, rows }: { file: Blob; rows: readonly Row[] }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { content: sound, problem } = useDecoded(file, (sound) => decode(sound), "The browser can't draw this kind of sound. The gateway may still read it.");
  const url = useMemo(() => URL.createObjectURL(file), [file]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || !sound) return;
    const width = (element.width = Math.max(300, element.clientWidth * devicePixelRatio));
    const height = (element.height = 96 * devicePixelRatio);
    const style = getComputedStyle(element);
    context.clearRect(0, 0, width, height);
    const tones = colours(rows.map(labelOf));
    context.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    context.textBaseline = "top";
    for (const row of rows) {
      const [start, end] = [Number(row["start"]), Number(row["end"])];
      if (!(end > start)) continue;
      const [left, right] = [(start / sound.seconds) * width, (end / sound.seconds) * width];
      context.globalAlpha = 0.28;
      context.fillStyle = tones.get(labelOf(row)) ?? "#3c8dff";
      context.fillRect(left, 0, right - left, height);
      context.globalAlpha = 1;
      context.fillStyle = style.color;
      context.fillText(labelOf(row), left + 3, 3);
    }
    context.strokeStyle = style.color;
    context.beginPath();
    const step = sound.samples.length / width;
    for (let x = 0; x < width; x++) {
      let [low, high] = [0, 0];
      for (let i = Math.floor(x * step); i < Math.min(sound.samples.length, Math.ceil((x + 1) * step)); i++) {
        low = Math.min(low, sound.samples[i] ?? 0);
        high = Math.max(high, sound.samples[i] ?? 0);
      }
      context.moveTo(x + 0.5, ((1 - high) / 2) * height);
      context.lineTo(x + 0.5, ((1 - low) / 2) * height + 1);
    }
    context.stroke();
  }, [sound, rows]);
  const segments = rows.filter((row) => Number(row["end"]) > Number(row["start"])).length;
  return (
    <div>
      {problem ? (
        <p class="hint">{problem}</p>
      ) : (
        <canvas ref={canvas} class="wave" role="img" aria-label={`Waveform${sound ? ` of ${seconds(sound.seconds)}` : ""}${segments ? ` with ${plural(segments, "segment")}` : ""}`} />
      )}
      {/* Nobody has captions for a sound that has just been dropped here. */}
      <audio controls src={url} />
    </div>
  );
}

/** A point cloud that can be turned, with a colour for each label. */
export function Points({ cloud, labels }: { cloud: Cloud; labels: readonly string[] }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [problem, setProblem] = useState("");
  const turn = useRef({ yaw: 0.7, pitch: 0.5, zoom: 1.5 });
  const draw = useRef<(() => void) | null>(null);
  const drag = useRef<{ x: number; y: number } | null>(null);
  const tones = useMemo(() => colours([...new Set(labels)].sort()), [labels]);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const tone = labels.length === cloud.count ? labels.map((label) => tones.get(label) ?? "#5a6b7b") : null;
    const scene = drawCloud(element, cloud, tone);
    if (!scene) {
      setProblem("The browser has no WebGL, so the points can't be drawn.");
      return;
    }
    draw.current = () => scene.draw(turn.current);
    draw.current();
    const watch = new ResizeObserver(() => draw.current?.());
    watch.observe(element);
    const wheel = (event: WheelEvent): void => {
      if (document.activeElement !== element) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 500));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => {
      watch.disconnect();
      element.removeEventListener("wheel", wheel);
      scene.end();
    };
  }, [cloud, labels]);
  const zoom = (by: number): void => {
    turn.current.zoom = Math.min(20, Math.max(0.2, turn.current.zoom * by));
    draw.current?.();
  };
  const rotate = (yaw: number, pitch: number): void => {
    turn.current.yaw += yaw;
    turn.current.pitch = Math.min(1.57, Math.max(-1.57, turn.current.pitch + pitch));
    draw.current?.();
  };
  const totals = new Map<string, number>();
  for (const label of labels) totals.set(label, (totals.get(label) ?? 0) + 1);
  if (problem) return <p class="hint">{problem}</p>;
  return (
    <div>
      <canvas
        ref={canvas}
        class="points"
        tabIndex={0}
        role="application"
        aria-label={`${plural(cloud.count, "point")}. Arrows turn the cloud, plus and minus zoom.`}
        onKeyDown={(event) => {
          const by: Record<string, [number, number]> = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
          const move = by[event.key];
          if (move) rotate(...move);
          else if (event.key === "+" || event.key === "=") zoom(1.2);
          else if (event.key === "-") zoom(0.83);
          else return;
          event.preventDefault();
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          if (!drag.current) return;
          rotate((event.clientX - drag.current.x) / 150, (event.clientY - drag.current.y) / 150);
          drag.current = { x: event.clientX, y: event.clientY };
        }}
        onPointerUp={() => (drag.current = null)}
        onPointerCancel={() => (drag.current = null)}
      />
      <div class="row tight">
        <button type="button" class="small" aria-label="Turn left" onClick={() => rotate(-0.3, 0)}>←</button>
        <button type="button" class="small" aria-label="Turn right" onClick={() => rotate(0.3, 0)}>→</button>
        <button type="button" class="small" aria-label="Tilt up" onClick={() => rotate(0, -0.3)}>↑</button>
        <button type="button" class="small" aria-label="Tilt down" onClick={() => rotate(0, 0.3)}>↓</button>
        <button type="button" class="small" aria-label="Zoom in" onClick={() => zoom(1.25)}>+</button>
        <button type="button" class="small" aria-label="Zoom out" onClick={() => zoom(0.8)}>−</button>
        <span class="muted num">{plural(cloud.count, "point")}</span>
      </div>
      {totals.size > 0 && (
        <ul class="legend">
          {[...totals].sort((one, other) => other[1] - one[1]).map(([label, number]) => (
            <li key={label}>
              <span class="swatch" style={{ background: tones.get(label) ?? "" }} aria-hidden="true" />
              {label} <span class="num">{plural(number, "point")}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** The rows of a matrix of numbers or labels, null if a value is none that is worth a picture. */
export function asMap(value: unknown): (number | string)[][] | null {
  let rows = value;
  while (Array.isArray(rows) && rows.length === 1 && Array.isArray(rows[0]) && Array.isArray((rows[0] as unknown[])[0])) rows = rows[0];
  if (!Array.isArray(rows) || rows.length < 8) return null;
  const width = Array.isArray(rows[0]) ? (rows[0] as unknown[]).length : 0;
  if (width < 8 || width > 4096 || rows.length > 4096) return null;
  const flat = rows.every((row) => Array.isArray(row) && row.length === width && ["number", "string"].includes(typeof row[0]));
  return flat ? (rows as (number | string)[][]) : null;
}

/** A matrix as a picture: the larger a number, the brighter, or a colour for each label. */
export function MapView({ name, rows }: { name: string; rows: (number | string)[][] }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = rows[0]?.length ?? 0;
  const flat = useMemo(() => rows.flat(), [rows]);
  const labels = typeof flat[0] === "string" ? colours([...new Set(flat as string[])].sort()) : null;
  const values = labels ? [] : (flat as number[]).filter(Number.isFinite);
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const pixels = context.createImageData(width, rows.length);
    flat.forEach((value, i) => {
      let tone: number[];
      if (labels) tone = [1, 3, 5].map((place) => Number.parseInt((labels.get(String(value)) ?? "#5a6b7b").slice(place, place + 2), 16));
      else {
        const part = high > low ? (Number(value) - low) / (high - low) : 0;
        tone = [255 * Math.min(1, Math.max(0, 1.6 * part - 0.5)), 255 * part ** 0.8 * 0.9, 80 + 140 * Math.sin(Math.PI * Math.min(1, part + 0.2))];
      }
      pixels.data.set([...tone, 255], i * 4);
    });
    context.putImageData(pixels, 0, 0);
  }, [rows]);
  return (
    <figure>
      <canvas ref={canvas} class="map" width={width} height={rows.length} role="img" aria-label={`${name} as a map of ${rows.length} rows and ${width} columns`} />
      <figcaption>
        <span class="mono">{name}</span>, {rows.length} rows of {width}
        {!labels && values.length > 0 && `, from ${digits(low)} (dark) to ${digits(high)} (bright)`}
      </figcaption>
      {labels && (
        <ul class="legend">
          {[...labels].map(([label, tone]) => (
            <li key={label}><span class="swatch" style={{ background: tone }} aria-hidden="true" />{label}</li>
          ))}
        </ul>
      )}
    </figure>
  );
}

export function cell(value: unknown): string {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
  if (Array.isArray(value)) {
    const text = value.slice(0, 8).map(cell).join(", ");
    return `[${text}${value.length > 8 ? `, ... ${count(value.length)}` : ""}]`;
  }
  if (isMask(value)) return `mask of ${count(value.counts.filter((_, i) => i % 2).reduce((sum, run) => sum + run, 0))} pixels`;
  if (value === null || value === undefined) return "-";
  return typeof value === "object" ? JSON.stringify(value).slice(0, 120) : String(value);
}

const MOST_ROWS = 100;

/** Records as a table. A record that has the focus or the pointer is the chosen one. */
export function Records({ rows, choose }: { rows: readonly Row[]; choose?: (place: number | null) => void }): JSX.Element {
  if (!rows.length) return <p class="empty-title">The model found nothing.</p>;
  const names = [...new Set(rows.slice(0, MOST_ROWS).flatMap((row) => Object.keys(row)))];
  const scored = names.every((name) => name === "label" || name === "score") && rows.every((row) => typeof row["score"] === "number");
  if (scored && rows.length <= 20) {
    return (
      <Bars
        most={Math.max(1, ...rows.map((row) => Number(row["score"])))}
        bars={rows.map((row, i) => ({ key: String(i), name: String(row["label"] ?? i), value: Number(row["score"]), text: Number(row["score"]).toFixed(4) }))}
      />
    );
  }
  return (
    <>
      <div class="scroll half" tabIndex={0} role="region" aria-label="Records">
        <table>
          <thead>
            <tr>
              <th scope="col">No.</th>
              {names.map((name) => <th key={name} scope="col" class={typeof rows[0]?.[name] === "number" ? "num" : ""}>{name}</th>)}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, MOST_ROWS).map((row, i) => (
              <tr key={i} onPointerEnter={() => choose?.(i)} onPointerLeave={() => choose?.(null)}>
                <th scope="row" class="num">
                  {choose ? (
                    <button type="button" class="plain-button" aria-label={`Show record ${i + 1} alone`} onFocus={() => choose(i)} onBlur={() => choose(null)}>
                      {i + 1}
                    </button>
                  ) : (
                    i + 1
                  )}
                </th>
                {names.map((name) => <td key={name} class={typeof row[name] === "number" ? "num" : ""}>{cell(row[name])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > MOST_ROWS && <p class="hint">The first {MOST_ROWS} of {plural(rows.length, "record")}. The JSON has all.</p>}
    </>
  );
}
