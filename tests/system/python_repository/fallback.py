"""Asks a model that isn't there, and then another one, as a model with a fall-back does."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            found, used = None, b"none"
            for model in ("large_pipeline", "pipeline"):
                asked = pb_utils.InferenceRequest(
                    model_name=model, requested_output_names=["LABEL", "SHARE"], inputs=[text]
                )
                found = asked.exec()
                if not found.has_error():
                    used = model.encode()
                    break
            if found.has_error():
                responses.append(pb_utils.InferenceResponse(error=found.error()))
                continue
            tensors = [
                *found.output_tensors(),
                pb_utils.Tensor("USED", np.array([[used]] * len(text.as_numpy()), np.object_)),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
