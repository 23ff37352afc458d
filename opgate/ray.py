"""The gateway as an application of Ray Serve: replicas on many machines behind Serve's HTTP proxies.

    serve run opgate.ray:gateway model_repository=/models

Ray starts and stops replicas by load, replaces those that die or hang, and rolls out a new version without losing a
request. Only HTTP goes through its proxies. Needs the extra `ray`. deploy/ray/README.md has the details.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, field_validator
from ray import get_runtime_context, serve

from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from opgate.service.telemetry import logs


class Arguments(BaseModel):
    """What `args` of the application may say. A change of them replaces every replica.

    `model_repository` is a folder that every machine sees under this path. A new `version`, any text, rolls out new
    replicas, which read the repository again. `settings` are those of the gateway, without the prefix OPGATE_:
    {"max_queue_size": 256}.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), coerce_numbers_to_str=True)

    model_repository: str = "/models"
    version: str = ""
    settings: dict[str, Any] = {}

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, values: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(values.keys() - Settings.model_fields.keys()):
            raise ValueError(f"there is no setting {unknown[0]}")
        settings = Settings(**values)
        if settings.model_control_mode != "none":
            mode = settings.model_control_mode
            raise ValueError(f"model_control_mode '{mode}': expected none, a new version rolls out changed models")
        return values


# deploy/ray/serve.yaml overrides the numbers. Ray asks a replica that ends every half second whether it has answered
# what it has accepted, and ends it then.
@serve.deployment(
    name="gateway",
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 1},
    autoscaling_config={"min_replicas": 1, "max_replicas": 10, "target_ongoing_requests": 16},
    health_check_period_s=5,
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.5,
    graceful_shutdown_timeout_s=30,
)
@serve.ingress()
class Replica:
    """One gateway. Its start fails if a model can't be served, so that a broken version is never rolled out."""

    def __init__(self, arguments: Arguments) -> None:
        # Ray's cores are numbers in its books: a process sees all cores of its machine.
        cores = math.ceil(get_runtime_context().get_assigned_resources().get("CPU", 1))
        chosen = {"model_repository": arguments.model_repository, "intra_op_threads": cores, **arguments.settings}
        settings = Settings(**chosen)
        logs.configure(settings.log_level, settings.log_format)
        self._gateway = Gateway(settings)
        self._gateway.catalog.load_all()
        if settings.strict_readiness and (failed := self._gateway.catalog.unavailable()):
            reasons = [f"{name}: {reason}" for name, _, _, reason in self._gateway.catalog.index() if name in failed]
            raise RuntimeError("; ".join(reasons))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._gateway)

    def check_health(self) -> None:
        """Raises RuntimeError while a run of a model takes too long, so that Ray replaces the replica."""
        for model in self._gateway.catalog.models():
            if model.executor.overdue:
                raise RuntimeError(model.executor.overdue)

    async def __del__(self) -> None:
        await self._gateway.catalog.close()


def gateway(args: Mapping[str, Any]) -> serve.Application:
    """Builds the application. `serve run` and `serve deploy` call it with `args`.

    Raises pydantic.ValidationError that names what was expected of which argument.
    """
    return Replica.bind(Arguments.model_validate(args))  # type: ignore[attr-defined]
