"""Asks for a request again and again: it counts to the number that the request has, one step in each run."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}
        self.together = 0

    def execute(self, requests):
        self.together = max(self.together, len(requests))
        responses = []
        for request in requests:
            (number,) = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy().reshape(-1)
            id = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.counts[id] = 0
            self.counts[id] += 1
            if self.counts[id] < number:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            told = np.array([[self.counts.pop(id), self.together]], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("COUNTED", told)]))
        return responses
