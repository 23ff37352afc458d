// Reads point clouds: PLY (text and binary), NPY, and rows of numbers.

export interface Cloud {
  positions: Float32Array; // x, y, z of each point
  count: number;
  /** What the gateway is sent if it is not the file itself. */
  upload: Blob | null;
}

const SIZES: Record<string, number> = {
  char: 1, int8: 1, uchar: 1, uint8: 1, short: 2, int16: 2, ushort: 2, uint16: 2, int: 4, int32: 4, uint: 4, uint32: 4, float: 4, float32: 4, double: 8, float64: 8,
};

function readNumber(view: DataView, at: number, type: string, little: boolean): number {
  switch (type) {
    case "char": case "int8": return view.getInt8(at);
    case "uchar": case "uint8": return view.getUint8(at);
    case "short": case "int16": return view.getInt16(at, little);
    case "ushort": case "uint16": return view.getUint16(at, little);
    case "int": case "int32": return view.getInt32(at, little);
    case "uint": case "uint32": return view.getUint32(at, little);
    case "double": case "float64": return view.getFloat64(at, little);
    default: return view.getFloat32(at, little);
  }
}

function readPly(data: ArrayBuffer): Cloud {
  const head = new TextDecoder("latin1").decode(data.slice(0, 65536));
  const end = /end_header[ \t]*\r?\n/.exec(head);
  if (!end) throw new Error("The PLY file has no end_header.");
  const begin = end.index + end[0].length;
  const format = /format\s+(\S+)/.exec(head)?.[1] ?? "ascii";
  let count = 0;
  let inVertex = false;
  const properties: { name: string; type: string }[] = [];
  for (const line of head.slice(0, end.index).split(/\r?\n/)) {
    const words = line.trim().split(/\s+/);
    if (words[0] === "element") {
      if (words[1] !== "vertex" && !count) throw new Error("The first element of the PLY file is not vertex.");
      inVertex = words[1] === "vertex";
      if (inVertex) count = Number(words[2]);
    } else if (words[0] === "property" && inVertex) {
      if (words[1] === "list") throw new Error("The vertices of the PLY file have lists.");
      properties.push({ type: words[1] ?? "float", name: words[2] ?? "" });
    }
  }
  const places = ["x", "y", "z"].map((name) => properties.findIndex((property) => property.name === name));
  if (places.some((place) => place < 0)) throw new Error("The PLY file has no x, y and z.");
  const positions = new Float32Array(count * 3);
  if (format === "ascii") {
    const numbers = new TextDecoder().decode(data.slice(begin)).trim().split(/\s+/);
    for (let i = 0; i < count; i++) {
      places.forEach((place, axis) => (positions[i * 3 + axis] = Number(numbers[i * properties.length + place])));
    }
  } else {
    const little = format === "binary_little_endian";
    const offsets: number[] = [];
    let stride = 0;
    for (const property of properties) {
      offsets.push(stride);
      stride += SIZES[property.type] ?? 4;
    }
    const view = new DataView(data, begin);
    if (view.byteLength < stride * count) throw new Error(`The PLY file ends early: ${count} points need ${stride * count} bytes.`);
    for (let i = 0; i < count; i++) {
      places.forEach((place, axis) => {
        positions[i * 3 + axis] = readNumber(view, i * stride + (offsets[place] ?? 0), properties[place]?.type ?? "float", little);
      });
    }
  }
  return { positions, count, upload: null };
}

function readNpy(data: ArrayBuffer): Cloud {
  const view = new DataView(data);
  const long = view.getUint8(6) > 1;
  const size = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const begin = (long ? 12 : 10) + size;
  const head = new TextDecoder("latin1").decode(data.slice(long ? 12 : 10, begin));
  const type = /'descr':\s*'([<>|])(f[48])'/.exec(head);
  const shape = /'shape':\s*\((\d+),\s*(\d+),?\s*\)/.exec(head);
  if (!type || !shape || /'fortran_order':\s*True/.test(head)) throw new Error("Expected an NPY of floats with the shape [points, 3 or more].");
  const [count, columns] = [Number(shape[1]), Number(shape[2])];
  const width = type[2] === "f8" ? 8 : 4;
  const positions = new Float32Array(count * 3);
  for (let i = 0; i < count; i++) {
    for (let axis = 0; axis < 3; axis++) {
      positions[i * 3 + axis] = readNumber(view, begin + (i * columns + axis) * width, width === 8 ? "double" : "float", type[1] !== ">");
    }
  }
  return { positions, count, upload: null };
}

function readRows(text: string): Cloud {
  const rows = text
    .split(/\r?\n/)
    .map((line) => line.trim().split(/[\s,;]+/).map(Number))
    .filter((row) => row.length >= 3 && row.slice(0, 3).every(Number.isFinite));
  if (!rows.length) throw new Error("Expected a PLY, an NPY, or rows of numbers x y z.");
  const positions = new Float32Array(rows.flatMap((row) => row.slice(0, 3)));
  const head = `ply\nformat binary_little_endian 1.0\nelement vertex ${rows.length}\nproperty float x\nproperty float y\nproperty float z\nend_header\n`;
  const body = new DataView(new ArrayBuffer(positions.length * 4));
  positions.forEach((value, i) => body.setFloat32(i * 4, value, true));
  return { positions, count: rows.length, upload: new Blob([head, body.buffer], { type: "application/ply" }) };
}

/** Reads a cloud of any of these kinds. Throws an Error that says what was expected. */
export function readCloud(data: ArrayBuffer): Cloud {
  const magic = new TextDecoder("latin1").decode(data.slice(0, 6));
  if (magic.startsWith("ply")) return readPly(data);
  if (magic.endsWith("NUMPY")) return readNpy(data);
  return readRows(new TextDecoder().decode(data));
}
