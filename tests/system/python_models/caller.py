"""Calls the model add_sub, and passes its tensors on by DLPack."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            inputs = [pb_utils.Tensor.from_dlpack(name, x.to_dlpack()) for name in ("INPUT0", "INPUT1")]
            inner = pb_utils.InferenceRequest(
                model_name="add_sub", requested_output_names=["OUTPUT0"], inputs=inputs, request_id=request.request_id()
            )
            answer = await inner.async_exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=answer.error()))
                continue
            total = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", total.as_numpy())]))
        return responses
