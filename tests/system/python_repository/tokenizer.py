"""Turns texts into ids: a word's id is its length, 0 pads a row, and a mask says what is a word."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.logger = pb_utils.Logger

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            words = [row[0].decode("utf-8").lower().split() for row in texts]
            longest = max(map(len, words), default=0)
            ids = np.zeros((len(words), longest), np.int64)
            for row, own in zip(ids, words, strict=True):
                row[: len(own)] = [len(word) for word in own]
            self.logger.log_verbose(f"{len(words)} texts, the longest has {longest} words")
            tensors = [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", (ids > 0).astype(np.int64))]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
