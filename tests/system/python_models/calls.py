"""Calls other models in each of the ways that there are, and tells what came of it as JSON."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def call(model, outputs=("Y",), **more):
    inputs = more.pop("inputs", None) or [pb_utils.Tensor("X", np.ones(1, np.float32))]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=list(outputs), inputs=inputs, **more)


def words(*given):
    return [pb_utils.Tensor("WORDS", np.array(given, np.object_))]


def told(response):
    if response.has_error():
        return response.error().message()
    return [int(value) for tensor in response.output_tensors() for value in tensor.as_numpy().reshape(-1)]


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            (how,) = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()
            found = await getattr(self, how.decode())()
            text = np.array([json.dumps(found).encode()], np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]))
        return responses

    async def side_by_side(self):
        """The first call ends when the second one has come."""
        first, second = (
            call("chat", ["ENDED"], inputs=[pb_utils.Tensor("ENDS", np.array([name], np.object_))], request_id=id)
            for name, id in ((b"", "called"), (b"called", ""))
        )

        def all_of(asked):
            return [told(response) for response in asked.exec(decoupled=True)]

        return await asyncio.gather(asyncio.to_thread(all_of, first), asyncio.to_thread(all_of, second))

    async def streamed(self):
        asked = call("several", ["NUMBER"], inputs=words("1", "2", "3", "!"))
        return [told(response) for response in asked.exec(decoupled=True)]

    async def streamed_on_the_loop(self):
        asked = call("several", ["NUMBER"], inputs=words("1", "2", "3!"))
        return [told(response) for response in await asked.async_exec(decoupled=True)]

    async def error_in_a_stream(self):
        asked = call("several", ["NUMBER"], inputs=words("1", "error", "3!"))
        return [told(response) for response in asked.exec(decoupled=True)]

    async def not_streamed(self):
        return told(call("several", ["NUMBER"], inputs=words("1!")).exec())

    async def nobody(self):
        return told(call("none").exec())

    async def with_bytes(self):
        return told(call(b"late", [b"Y"], request_id=b"r").exec())
