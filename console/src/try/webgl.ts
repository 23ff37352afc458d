// Draws points with WebGL.

import type { Cloud } from "./cloud";

const VERTEX = `
attribute vec3 place;
attribute vec3 tone;
uniform vec4 turn;
uniform vec2 scale;
varying vec3 colour;
void main() {
  vec2 flat_ = vec2(turn.x * place.x - turn.y * place.y, turn.y * place.x + turn.x * place.y);
  float up = turn.z * place.z - turn.w * flat_.y;
  float depth = turn.w * place.z + turn.z * flat_.y;
  gl_Position = vec4(vec2(flat_.x, up) * scale, depth * 0.2, 1.0 + depth * 0.25);
  gl_PointSize = clamp(4.0 * scale.y * (1.0 - depth * 0.3), 2.0, 12.0);
  colour = tone;
}`;
const FRAGMENT = `
precision mediump float;
varying vec3 colour;
void main() {
  if (length(gl_PointCoord - 0.5) > 0.5) discard;
  gl_FragColor = vec4(colour, 1.0);
}`;

export interface Scene {
  draw: (turn: { yaw: number; pitch: number; zoom: number }) => void;
  end: () => void;
}

/** Prepares a canvas for a cloud, with a colour "#rrggbb" for each point. Null without WebGL. */
export function drawCloud(canvas: HTMLCanvasElement, cloud: Cloud, tones: readonly string[] | null): Scene | null {
  const gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
    const shader = gl.createShader(kind);
    if (!shader) return null;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
  gl.useProgram(program);
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  cloud.positions.forEach((value, i) => {
    low[i % 3] = Math.min(low[i % 3] ?? 0, value);
    high[i % 3] = Math.max(high[i % 3] ?? 0, value);
  });
  const size = Math.max(...high.map((value, i) => value - (low[i] ?? 0)), 1e-9);
  const places = cloud.positions.map((value, i) => ((value - ((low[i % 3] ?? 0) + (high[i % 3] ?? 0)) / 2) / size) * 1.5);
  const colours = new Float32Array(cloud.count * 3);
  for (let i = 0; i < cloud.count; i++) {
    // Without labels a point is the lighter, the higher it is.
    const up = ((places[i * 3 + 2] ?? 0) + 0.75) / 1.5;
    const tone = tones?.[i];
    for (let part = 0; part < 3; part++) {
      colours[i * 3 + part] = tone ? Number.parseInt(tone.slice(1 + part * 2, 3 + part * 2), 16) / 255 : [0.1, 0.35, 0.75][part]! + 0.25 * up;
    }
  }
  const buffers = ([["place", places], ["tone", colours]] as const).map(([name, data]) => {
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    const at = gl.getAttribLocation(program, name);
    gl.enableVertexAttribArray(at);
    gl.vertexAttribPointer(at, 3, gl.FLOAT, false, 0, 0);
    return buffer;
  });
  gl.enable(gl.DEPTH_TEST);
  return {
    draw: ({ yaw, pitch, zoom }) => {
      const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
      const height = Math.max(1, Math.round(canvas.clientHeight * devicePixelRatio));
      if (canvas.width !== width || canvas.height !== height) {
        canvas.width = width;
        canvas.height = height;
      }
      gl.viewport(0, 0, width, height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
      gl.uniform4f(gl.getUniformLocation(program, "turn"), Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch));
      gl.uniform2f(gl.getUniformLocation(program, "scale"), (zoom * height) / width, zoom);
      gl.drawArrays(gl.POINTS, 0, cloud.count);
    },
    end: () => {
      for (const buffer of buffers) gl.deleteBuffer(buffer);
      gl.deleteProgram(program);
    },
  };
}
