// Bundles the console into opgate/service/console/files. The same sources give the same bytes.
import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = resolve(process.argv[2] ?? join(here, "../opgate/service/console/files"));

/** The files below a folder, as sorted paths relative to console/. */
async function sources(folder) {
  const found = [];
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) found.push(...(await sources(path)));
    else found.push(relative(here, path));
  }
  return found.sort();
}

const sum = (data) => createHash("sha256").update(data).digest("hex");

/** The license texts of the packages that the bundle has parts of. */
async function licenses(inputs) {
  const packages = new Set();
  for (const path of inputs) {
    const match = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
    if (match) packages.add(match[1]);
  }
  const texts = [];
  for (const name of [...packages].sort()) {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).sort().find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no license file`);
    texts.push(`${name} ${version}\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

const result = await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx", icon: "src/icon.svg" },
  outdir: "out", // the names must not depend on where the files go
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  loader: { ".svg": "copy" },
  preserveSymlinks: true, // the names must not depend on where the packages lie either
  metafile: true,
  write: false,
});

const files = new Map(result.outputFiles.map((file) => [basename(file.path), Buffer.from(file.contents)]));
const named = (ending) => [...files.keys()].find((name) => name.endsWith(ending));
const page = (await readFile(join(here, "index.html"), "utf8"))
  .replace("ICON", named(".svg"))
  .replace("STYLES", named(".css"))
  .replace("SCRIPT", named(".js"));
files.set("index.html", Buffer.from(page));
files.set("LICENSES.txt", Buffer.from(await licenses(Object.keys(result.metafile.inputs))));

// A test compares these sums without node, and so finds files that are older than their sources.
const own = ["build.mjs", "index.html", "package-lock.json", "package.json", "tsconfig.json"];
const lines = [];
for (const path of [...own, ...(await sources(join(here, "src")))]) {
  lines.push(`${sum(await readFile(join(here, path)))}  console/${path}`);
}
for (const name of [...files.keys()].sort()) lines.push(`${sum(files.get(name))}  files/${name}`);
files.set("sources.sha256", Buffer.from(`${lines.join("\n")}\n`));

await rm(output, { recursive: true, force: true });
await mkdir(output, { recursive: true });
for (const [name, data] of files) await writeFile(join(output, name), data);
const loaded = [...files].filter(([name]) => /\.(js|css|svg|html)$/.test(name));
const { gzipSync } = await import("node:zlib");
const packed = loaded.reduce((total, [, data]) => total + gzipSync(data, { level: 9 }).length, 0);
console.log(`${loaded.length} files of the page, ${(packed / 1000).toFixed(1)} kB with gzip`);
