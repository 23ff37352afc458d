"""What is sent over gRPC: messages of every method, with changes of their fields and of their bytes."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.fuzz import configs
from tests.fuzz.gateway import MODELS, REGION, Fuzzed
from tests.fuzz.strategies import DATATYPES, EDITS, edited, messages, rarely

METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
UNARY = [name for name in METHODS if name not in ("ModelStreamInfer", "ModelInfer")]
# Of one model all is changed; the others must answer the good requests.
HINTS = {
    "model_name": st.sampled_from(["scratch", "scratch", "none"]),
    "ModelInferRequest.model_name": st.sampled_from(MODELS),
    "RepositoryModelLoadRequest.parameters.key": st.sampled_from(["config", "file:1/model.onnx"]),
    "version": st.sampled_from(["", "1"]),
    "model_version": st.sampled_from(["", "1"]),
    "InferInputTensor.name": st.just("x"),
    "InferRequestedOutputTensor.name": st.just("y"),
    "datatype": st.sampled_from(DATATYPES),
    "shape": st.sampled_from([1, 2, 4]),
    "raw_input_contents": st.sampled_from([bytes(16), bytes(4), bytes(32), b"\1\0\0\0a" * 4]),
    "bytes_contents": st.sampled_from([b"text", b"\xff"]),
    "parameters.key": st.sampled_from([
        "sequence_id", "sequence_start", "priority", "timeout", "classification", "shared_memory_region", "binary_data_size",
        "shared_memory_byte_size", "shared_memory_offset", "triton_enable_empty_final_response", "content_type", "unload_dependents",
    ]),
    "settings.key": st.sampled_from(["log_info", "log_verbose_level", "log_format", "trace_level", "trace_rate", "trace_count"]),
    "string_param": configs.CONFIGS.map(json_format.MessageToJson),
    "key": st.sampled_from(["/none", "none"]),
    "byte_size": st.sampled_from([4, 16]),
}  # fmt: skip


@st.composite
def _good(draw: st.DrawFn) -> Any:
    """Draws an inference request that is right, or almost."""
    message = draw(messages(service_pb2.ModelInferRequest, HINTS, most=2))
    del message.inputs[1:]
    tensor = message.inputs[0] if message.inputs else message.inputs.add()
    tensor.name, tensor.datatype = "x", draw(rarely(st.just("FP32"), st.sampled_from(DATATYPES)))
    tensor.shape[:] = draw(rarely(st.just([1, 4]), st.lists(st.integers(-1, 5), max_size=4)))
    message.model_name = draw(st.sampled_from(MODELS))
    for shared in draw(st.sampled_from([[], [], [], [tensor], [*message.outputs]])):
        shared.parameters["shared_memory_region"].string_param = REGION
        shared.parameters["shared_memory_byte_size"].int64_param = draw(st.sampled_from([16, 32, 4, 0, 4097]))
    if not tensor.HasField("contents"):
        message.raw_input_contents[:] = [bytes(draw(rarely(st.just(16), st.integers(0, 40))))]
    return message


INFER = st.one_of(messages(service_pb2.ModelInferRequest, HINTS, most=6), _good())
INFER_BYTES = st.tuples(INFER.map(lambda message: message.SerializeToString()), rarely(st.just([]), EDITS)).map(
    lambda pair: edited(*pair)
)


def _any_call(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
    kind = GetMessageClass(METHODS[name].input_type)
    usual = messages(kind, HINTS).map(lambda message: message.SerializeToString())
    return st.tuples(
        st.just(name), st.tuples(usual, rarely(st.just([]), EDITS)).map(lambda pair: edited(pair[0], pair[1]))
    )


CALLS = st.one_of(
    st.tuples(st.just("ModelInfer"), INFER_BYTES),
    st.sampled_from(UNARY).flatmap(_any_call),
    st.tuples(st.sampled_from(UNARY), st.binary(max_size=40)),
    st.tuples(st.just("ModelStreamInfer"), st.lists(INFER_BYTES, max_size=3)),
)


def call(gateway: Fuzzed, example: tuple[str, Any]) -> None:
    """Calls a method."""
    method, sent = example
    if method == "ModelStreamInfer":
        code, answers = gateway.stream(sent)
        gateway.check_call(code, answers)
        if isinstance(answers, list):
            for answer in answers:
                text = service_pb2.ModelStreamInferResponse.FromString(answer).error_message
                gateway.check_call(code, text)
        return
    code, answer = gateway.call(method, sent)
    gateway.check_call(code, answer)
    if isinstance(answer, bytes):
        GetMessageClass(METHODS[method].output_type).FromString(answer)
