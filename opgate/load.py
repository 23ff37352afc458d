"""`opgate load`: a quick load test of one model on a running server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opgate.infer import Image, Inputs, Version, read_inputs

if TYPE_CHECKING:
    from opgate.load_latencies import Slo
    from opgate.load_run import Client, Plan, Run
    from service.execution.spec import ModelSpec
