"""Gives the name of the largest number of each row, and its share. A row of NaN is an error of its request."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "embedding").as_numpy()
            if np.isnan(scores).any():
                error = pb_utils.TritonError("scores are not numbers", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                continue
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            best = scores.argmax(-1)
            share = (powers / powers.sum(-1, keepdims=True)).max(-1).astype(np.float32)
            labels = np.array([f"class {i}".encode() for i in best], np.object_)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("LABEL", labels[:, None]), pb_utils.Tensor("SHARE", share[:, None])]
                )
            )
        return responses
