"""Gives a vector for each text: the mean of what its ids stand for."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dtype = pb_utils.triton_string_to_numpy(
            pb_utils.get_output_config_by_name(config, "embedding")["data_type"]
        )
        self.size = int(config["parameters"]["size"]["string_value"])
        self.table = np.random.default_rng(5).normal(size=(64, self.size)).astype(self.dtype)

    def execute(self, requests):
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()[..., None]
            total = (self.table[ids % 64] * mask).sum(1) / np.maximum(mask.sum(1), 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", total.astype(self.dtype))]))
        return responses
