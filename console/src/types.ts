// What the gateway tells the console.

export interface Hello {
  version: string;
  python: string;
  onnxruntime: string;
  bounds_s: number[];
  batch_bounds: number[];
  control_mode: string;
  can_load: boolean;
  why_not: string;
  bodies: boolean;
  workers: number;
  limits: Record<string, number>;
}

export interface ModelRow {
  name: string;
  version: string;
  state: string;
  reason: string;
  requests?: number;
  failures?: number;
  inferences?: number;
  executions?: number;
  pending?: number;
  request_ns?: number;
  queue_ns?: number;
  input_ns?: number;
  infer_ns?: number;
  output_ns?: number;
  request_counts?: number[];
  queue_counts?: number[];
  infer_counts?: number[];
  batch_counts?: number[];
  instances?: number;
  processes?: number;
  deaths?: number;
  memory_bytes?: number | null; // null if it is not in memory
  load_seconds?: number;
  last_ms?: number;
  cache_hits?: number;
  cache_misses?: number;
}

export interface Process {
  pid: number;
  role: string;
  model: string;
  rss_bytes: number;
  cpu_seconds: number;
  threads: number;
}

export interface ServerState {
  processes: Process[];
  http_connections: number;
  grpc_connections: number;
  running: number;
  held_bytes: number;
  held_limit: number;
  model_bytes: number;
  model_budget: number;
  concurrent_limit: number;
  memory_limit_bytes: number;
  deaths: number;
  machine: { cpus: number; load1: number; memory_bytes: number; available_bytes: number };
}

export interface Phase {
  name: string;
  begin_us: number;
  us: number;
}

export interface OpCall {
  op: string;
  node: string;
  begin_us: number;
  us: number;
  inputs: string[];
  outputs: string[];
}

export interface Step {
  model: string;
  begin_us: number;
  us: number;
  failed?: boolean;
  phases: Phase[];
  ops?: OpCall[];
}

export interface RequestRow {
  id: number;
  pid?: number;
  at: number;
  protocol: string;
  route: string;
  code: string;
  ms: number;
  model: string;
  version: string;
  client: string;
  request_id: string;
  rows: number;
  error: string;
  phases: Phase[];
  steps: Step[];
  ops?: OpCall[];
  inputs?: Record<string, string>;
  outputs?: Record<string, string>;
}

export interface LogLine {
  at: number;
  level: string;
  logger: string;
  message: string;
  fields?: Record<string, string>;
}

export interface Tick {
  at: number;
  models: ModelRow[];
  gone: [string, string][];
  server: ServerState;
  requests: RequestRow[];
  log?: LogLine[];
}

export interface TensorInfo {
  name: string;
  datatype: string;
  shape: number[];
  optional: boolean;
  labels?: string[];
}

export interface GraphNode {
  id: number;
  name: string;
  op: string;
  domain: string;
  custom: boolean;
  inputs: string[];
  constants?: string[];
  outputs: string[];
  attributes: Record<string, string>;
}

export interface Graph {
  nodes: GraphNode[];
  inputs: string[];
  outputs: string[];
  left_out: number;
}

export interface Form {
  kind: "picture" | "sound" | "text" | "table" | "bytes" | "tensors" | "points";
  input: string;
  files: string[];
  media: string[];
  parameters: { name: string; datatype: string; shape?: number[] }[];
  picture_model: string;
}

export interface Example {
  title: string;
  kind: "file" | "json" | "files";
  file?: string;
  media?: string;
  json?: Record<string, unknown>;
  files?: Record<string, string>;
}

export interface ModelView {
  name: string;
  version: string;
  platform: string;
  backend: string;
  batching: string;
  max_batch_size: number;
  instances: Record<string, unknown>[];
  libraries: { name: string; sha256: string; trusted_by: string }[];
  completed: { field: string; value: string }[];
  config: Record<string, unknown>;
  config_text: string;
  inputs: TensorInfo[];
  outputs: TensorInfo[];
  streams: boolean;
  form: Form;
  examples: Example[];
  steps: { model: string; version: string; inputs: Record<string, string>; outputs: Record<string, string> }[];
  graph: Graph | null;
}

export interface OpTime {
  op: string;
  node: string;
  count: number;
  seconds: number;
  p50: number;
  p99: number;
}

export interface Operator {
  name: string;
  op: string;
  domain: string;
  provider: string;
  begin_us: number;
  duration_us: number;
  inputs?: string[];
  outputs?: string[];
}

export interface Op {
  name: string;
  domain: string;
  library: string;
  sha256: string;
  trusted_by: string;
  signature: string;
  document: string;
  inputs: { name: string; type: string; optional: boolean; variadic?: boolean }[];
  outputs: { name: string; type: string; optional: boolean }[];
  attributes: { name: string; type: string; required: boolean; default: unknown }[];
  dtypes: string[];
  devices: string[];
  engines: string[];
  used_by: [string, string][];
}
