"""Triton's messages, model_config.proto and grpc_service.proto: those of tritonclient, loaded without its client.

Its package imports the client, and with that the gRPC library: 22 MB and a tenth of a second for each process.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import tritonclient

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2, service_pb2
    from tritonclient.grpc.model_config_pb2 import (
        DataType,
        ModelConfig,
        ModelDynamicBatching,
        ModelInput,
        ModelInstanceGroup,
        ModelOutput,
        ModelQueuePolicy,
        ModelSequenceBatching,
        ModelWarmup,
    )
else:
    _PACKAGE = "tritonclient.grpc"
    _is_there = _PACKAGE in sys.modules
    if not _is_there:  # the modules of messages look for each other in it, and nothing else
        sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
        sys.modules[_PACKAGE].__path__ = [str(Path(folder, "grpc")) for folder in tritonclient.__path__]
    try:
        model_config_pb2 = importlib.import_module(f"{_PACKAGE}.model_config_pb2")
        service_pb2 = importlib.import_module(f"{_PACKAGE}.service_pb2")
    finally:
        if not _is_there:  # whoever wants the client imports it
            del sys.modules[_PACKAGE]
    DataType = model_config_pb2.DataType
    ModelConfig = model_config_pb2.ModelConfig
    ModelDynamicBatching = model_config_pb2.ModelDynamicBatching
    ModelInput = model_config_pb2.ModelInput
    ModelInstanceGroup = model_config_pb2.ModelInstanceGroup
    ModelOutput = model_config_pb2.ModelOutput
    ModelQueuePolicy = model_config_pb2.ModelQueuePolicy
    ModelSequenceBatching = model_config_pb2.ModelSequenceBatching
    ModelWarmup = model_config_pb2.ModelWarmup

__all__ = [
    "DataType",
    "ModelConfig",
    "ModelDynamicBatching",
    "ModelInput",
    "ModelInstanceGroup",
    "ModelOutput",
    "ModelQueuePolicy",
    "ModelSequenceBatching",
    "ModelWarmup",
    "model_config_pb2",
    "service_pb2",
]
