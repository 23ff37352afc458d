"""ModelInfer on grpcio's own servers, as one would write it by hand: protobuf's classes and ONNX Runtime.

    python benchmarks/peers/grpcio_server.py aio|threads PORT NAME=MODEL.onnx ...

It serves what a load generator asks for: metadata, config and statistics of its models, and ModelInfer.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import uvloop
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc


class Models:
    """The models, and the answers of the RPCs."""

    def __init__(self, paths: dict[str, str]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = {
            name: ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for name, path in paths.items()
        }
        self._counts = dict.fromkeys(paths, 0)

    def infer(self, request: Any) -> Any:
        session = self._sessions[request.model_name]
        tensor = request.inputs[0]
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tensor.shape)
        (y,) = session.run(["y"], {"x": x})
        self._counts[request.model_name] += 1
        response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        response.outputs.add(name="y", datatype="FP32", shape=y.shape)
        response.raw_output_contents.append(y.tobytes())
        return response

    def metadata(self, request: Any) -> Any:
        session = self._sessions[request.name]
        kind = service_pb2.ModelMetadataResponse.TensorMetadata
        shape = [-1, *session.get_inputs()[0].shape[1:]]
        result = [-1, *session.get_outputs()[0].shape[1:]]
        return service_pb2.ModelMetadataResponse(
            name=request.name,
            versions=["1"],
            platform="onnxruntime_onnx",
            inputs=[kind(name="x", datatype="FP32", shape=shape)],
            outputs=[kind(name="y", datatype="FP32", shape=result)],
        )

    def config(self, request: Any) -> Any:
        session = self._sessions[request.name]
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=16)
        config.input.add(name="x", data_type=model_config_pb2.TYPE_FP32, dims=session.get_inputs()[0].shape[1:])
        config.output.add(name="y", data_type=model_config_pb2.TYPE_FP32, dims=session.get_outputs()[0].shape[1:])
        return service_pb2.ModelConfigResponse(config=config)

    def statistics(self, request: Any) -> Any:
        response = service_pb2.ModelStatisticsResponse()
        count = self._counts[request.name]
        model = response.model_stats.add(name=request.name, version="1", inference_count=count, execution_count=count)
        model.inference_stats.success.count = count
        return response


RPCS = {
    "ModelInfer": Models.infer,
    "ModelMetadata": Models.metadata,
    "ModelConfig": Models.config,
    "ModelStatistics": Models.statistics,
    "ServerLive": lambda models, request: service_pb2.ServerLiveResponse(live=True),
    "ServerReady": lambda models, request: service_pb2.ServerReadyResponse(ready=True),
    "ModelReady": lambda models, request: service_pb2.ModelReadyResponse(ready=True),
    "ServerMetadata": lambda models, request: service_pb2.ServerMetadataResponse(name="grpcio", version="1"),
}
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def serve_aio(models: Models, port: int) -> None:
    server = grpc.aio.server(options=OPTIONS)

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        pass

    for name, function in RPCS.items():

        async def handle(self: Any, request: Any, context: Any, function: Any = function) -> Any:
            return function(models, request)

        setattr(Service, name, handle)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def serve_threads(models: Models, port: int) -> None:
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        pass

    for name, function in RPCS.items():
        setattr(Service, name, lambda self, request, context, function=function: function(models, request))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    found = Models(dict(argument.split("=", 1) for argument in sys.argv[3:]))
    if sys.argv[1] == "aio":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_aio(found, int(sys.argv[2])))
    else:
        serve_threads(found, int(sys.argv[2]))
