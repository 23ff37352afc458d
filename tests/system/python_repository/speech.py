"""Hears a stream of sounds in pieces: it keeps what is left of a frame, and says how loud each whole frame is."""

import numpy as np
import triton_python_backend_utils as pb_utils

FRAME = 4


class TritonPythonModel:
    def initialize(self, args):
        self.rest = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            id = request.correlation_id()
            flags = request.flags()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.rest[id] = np.zeros(0, np.float32)
            sound = np.concatenate([self.rest[id], pb_utils.get_input_tensor_by_name(request, "WAV").as_numpy()[0]])
            whole = len(sound) // FRAME * FRAME
            self.rest[id] = sound[whole:]
            frames = sound[:whole].reshape(-1, FRAME)
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.rest[id]
            loud = np.sqrt((frames**2).mean(1, keepdims=True)).astype(np.float32).reshape(1, -1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("LOUDNESS", loud)]))
        return responses
