"""Compares the requests/s and the CPU time a request of the gateways of two checkouts.

    python benchmarks/trees.py BEFORE [AFTER] [--rounds 5]

Each checkout is a folder with a virtual environment `.venv` in which its opgate is installed. AFTER is this checkout
by default. h2load (Debian's nghttp2-client) sends the requests. Both gateways run on one core and the load on the
other, and they take turns in short rounds, so that other work of the machine slows both alike. The table, with medians
over the rounds, goes to standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.grpc_overhead import REQUESTS, Measured, Server, calls, h2load, median, over_http
from benchmarks.serve_overhead import Case, free_port, json_request, machine, make_models, server

ROOT = Path(__file__).resolve().parent.parent
CONCURRENCIES = (1, 16)


def over_json(one: Server, case: Case, concurrency: int, folder: Path) -> Measured:
    """Measures requests with tensors in JSON over HTTP/1.1."""
    body = json_request(case).partition(b"\r\n\r\n")[2]
    url = f"http://127.0.0.1:{one.http}/v2/models/{case.name}/infer"
    count = REQUESTS[case.name][concurrency] // (4 if case.name == "cnn" else 1)
    return h2load(one, url, body, ["content-type: application/json"], count, concurrency, 0, folder)


LOADS = {"HTTP, binary": over_http, "HTTP, JSON": over_json, "gRPC": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[-1]})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cases = make_models(folder / "repository")
        servers = []
        for tree in (options.before.resolve(), options.after.resolve()):
            http, rpc = free_port(), free_port()
            command = [str(tree / ".venv/bin/python"), "-P", "-m", "opgate", "serve", "--log-level", "warning"]
            command += ["--model-repository", str(folder / "repository")]
            command += ["--http-port", str(http), "--grpc-port", str(rpc)]
            ready = f"http://127.0.0.1:{http}/v2/health/ready"
            group = stack.enter_context(server(command, ready, usable[0], dict(os.environ)))
            servers.append(Server(str(tree), rpc, group, http))
        results: dict[tuple[str, str, int], tuple[list[Measured], ...]] = {}
        for turn in range(-1, options.rounds):  # the first round warms up and is not counted
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for wire, load in LOADS.items():
                for case in cases:
                    for concurrency in CONCURRENCIES:
                        found = results.setdefault((wire, case.name, concurrency), ([], []))
                        for one, values in zip(servers, found, strict=True):
                            with one.running():
                                got = load(one, case, concurrency, folder)
                            if turn >= 0:
                                values.append(got)
    print(f"{machine()}; medians of {options.rounds} interleaved rounds\n")
    print("| wire | model | concurrency | before | after | after / before | CPU us before | CPU us after |")
    print("|---|---|---|---|---|---|---|---|")
    for (wire, model, concurrency), found in results.items():
        before, after = map(median, found)
        cells = [wire, model, f"{concurrency}", f"{before.rate:,.0f}", f"{after.rate:,.0f}"]
        cells += [f"{after.rate / before.rate:.2f}", f"{before.cpu:.0f}", f"{after.cpu:.0f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
