"""Builds the site of docs/: python docs/site/build.py OUTPUT. `make docs` does so, once the op library is there.

It copies the pages of the repository into a folder of sources, with links that fit there, adds the pages that are made
from the code (reference.py), and calls Sphinx. A warning of Sphinx is an error: a link or an anchor that leads nowhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

import figures
import reference
from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "opgate" / "ops_build" / "ops"

#: The pages of each part in its order. Every page that no part names is in the last one.
PARTS = {
    "Start": ["start", "write-an-op", "engines", "install"],
    "From what you have": [
        *("from-a-model", "from-an-idea", "from-pytorch", "from-tensorflow"),
        *("from-litert", "from-onnx", "from-a-library"),
    ],
    "Ops": ["ops", "signatures", "numpy", "jax", "openvino", "tvm-ffi", "versions"],
    "Serving": ["gateway", "workers", "triton-python", "triton-differences", "console", "limits", "models"],
    "Operating": ["operations", "load", "scaling", "deploy/*"],
    "Reference": ["reference/*"],
    "Design and decisions": ["compares", "rooms", "testing", "decisions", "results", "*"],
}
#: Folders whose pages have one of their own that lists them.
LISTS = {
    "decisions": ("Decisions", "Why opgate is as it is, one page for each decision."),
    "models": ("Models of the repository", "What `make serve` serves, each with its own page."),
    "results": ("Results of benchmarks", "One page for each benchmark, with the command that made it."),
}
_LINK = re.compile(r"(```.*?```|`[^`\n]*`)|\]\(([^)\s]+)\)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Returns the pages of the repository, each with its name in the site."""
    found = {ROOT / "README.md": "index"}
    found |= {path: str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    found |= {path: f"ops/{path.parent.name}" for path in OPS.glob("*/README.md")}
    found |= {path: f"results/{path.stem}" for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    for folder, part in (("models", "models"), ("deploy", "deploy"), ("tests", "design"), ("opgate", "design")):
        for path in sorted((ROOT / folder).rglob("README.md")):
            found.setdefault(path, f"{part}/{path.parent.relative_to(ROOT / folder).as_posix().replace('/', '-')}")
    found[ROOT / "console" / "README.md"] = "design/console"
    return found | {path: path.stem.lower() for path in ROOT.glob("*.md") if path.name != "README.md"}


def with_links_of_the_site(text: str, page: Path, names: dict[Path, str], sources: Path) -> str:
    """Returns the text of a page with links that fit in the sources. A file that is no page is copied there. A folder
    is its list of pages, or else the page of the folders."""
    here = Path(names[page]).parent

    def link(match: re.Match[str]) -> str:
        if match[1] or re.match(r"[a-z]+:|#", match[2]):
            return match[0]
        path, _, anchor = match[2].partition("#")
        target = (page.parent / path).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.relative_to(ROOT)}: {match[2]} leads nowhere")
        if target.is_dir():
            own = {"decisions": "decisions.md"}.get(target.name, "rooms.md")
        elif target in names:
            own = f"{names[target]}.md"
        else:
            # As text, because the browser would save most of them instead of showing them.
            shown = target.suffix in (".png", ".jpg", ".svg", ".html")
            own = f"files/{target.relative_to(ROOT)}{'' if shown else '.txt'}"
            (sources / own).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, sources / own)
        return f"]({os.path.relpath(own, here)}{'#' + anchor if anchor else ''})"

    return _LINK.sub(link, text)


def toctree(names: list[str], caption: str = "", hidden: bool = False) -> str:
    """Returns a table of contents for MyST."""
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n".join(["```{toctree}", *options, "", *names, "```", ""])


def write_sources(sources: Path, library: Path) -> None:
    """Writes every page of the site as Markdown."""
    shutil.rmtree(sources, ignore_errors=True)
    texts: dict[str, str] = {}
    names = pages()
    for page, name in names.items():
        texts[name] = with_links_of_the_site(page.read_text(), page, names, sources)
    texts |= reference.reference_pages(ROOT, library)
    listed = (ROOT / "docs" / "ops.md").read_text()
    texts["ops"] = (
        reference.ops_table(listed) + "\n" + toctree(sorted(n for n in texts if n.startswith("ops/")), "", True)
    )
    for op, more in reference.op_sections(library, listed).items():
        texts[f"ops/{op}"] += more
    for op, pictures in figures.figures(library).items():
        shown = "".join(f"\n![{text}]({op}_{name}.svg)\n" for name, (text, _) in pictures.items())
        title, _, rest = texts[f"ops/{op}"].partition("\n")
        texts[f"ops/{op}"] = f"{title}\n{shown}{rest}"
        (sources / "ops").mkdir(exist_ok=True)
        for name, (_, picture) in pictures.items():
            (sources / "ops" / f"{op}_{name}.svg").write_text(picture)
    for folder, (title, text) in LISTS.items():
        within = sorted(name for name in texts if name.startswith(f"{folder}/"))
        texts[folder] = f"# {title}\n\n{text}\n\n{toctree(within)}"
    texts["index"] += "".join("\n" + toctree(members, part, True) for part, members in parts(texts).items())
    for name, text in texts.items():
        path = sources / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def parts(names: dict[str, str]) -> dict[str, list[str]]:
    """Returns the pages of each part. Those of LISTS and of the ops are below the page that lists them."""
    left = [name for name in sorted(names) if name.partition("/")[0] not in (*LISTS, "ops", "index") or name in LISTS]
    left.append("ops")
    found: dict[str, list[str]] = {}
    for part, patterns in PARTS.items():
        found[part] = []
        for pattern in patterns:
            start = pattern.removesuffix("*")
            taken = [name for name in left if name == pattern or (pattern.endswith("*") and name.startswith(start))]
            found[part] += taken
            left = [name for name in left if name not in taken]
    return found


def main() -> int:
    """Returns the exit status of Sphinx."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--library", type=Path, default=reference.built_library(), help="the op library of the pages")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    sources = output.with_name(f"{output.name}-source")
    write_sources(sources, arguments.library)
    conf = str(Path(__file__).parent)
    status = sphinx(
        ["-q", "-W", "--keep-going", "-E", "-d", f"{sources}/.doctrees", "-c", conf, str(sources), str(output)]
    )
    print(f"the site is {output}/index.html" if status == 0 else "the site has the faults above")
    return status


if __name__ == "__main__":
    sys.exit(main())
