"""Returns its strings in capitals, and what its request says of itself."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            loud = np.array([element.decode().upper().encode() for element in text.reshape(-1)], dtype=np.object_)
            told = {
                "id": request.request_id(),
                "outputs": sorted(request.requested_output_names()),
                "parameters": json.loads(request.parameters()),
                "cancelled": request.is_cancelled(),
            }
            tensors = [
                pb_utils.Tensor("LOUD", loud.reshape(text.shape)),
                pb_utils.Tensor("TOLD", np.array([json.dumps(told, sort_keys=True).encode()], dtype=np.object_)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
