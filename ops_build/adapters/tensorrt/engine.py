"""Running an op's plugin, for verification."""

from __future__ import annotations

from collections.abc import Iterator

from ops_build.build import BuildOptions, why_not_built
from ops_build.toolchain import NO_GPU, gpus
from ops_build.verify import Absent, Engine


def engines(options: BuildOptions) -> Iterator[Engine | Absent]:
    """The plugins of a build, or why they can't run."""
    if not options.library("tensorrt").is_file():
        yield Absent("tensorrt", "cuda", why_not_built(options, "tensorrt"))
    elif not gpus():
        yield Absent("tensorrt", "cuda", NO_GPU)
