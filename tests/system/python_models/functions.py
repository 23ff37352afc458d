"""Uses functions of `pb_utils` that public models use, and helpers beside it, and tells what they give as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from .beside import NAME


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(max_batch_size=0)
        config.add_output(output={"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        import above

        numbers = np.array([1, None, 2.5, b"x", "y"], np.object_)
        packed = pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"], np.object_))
        found = {
            "helpers": [NAME, above.NAME],
            "packed": len(packed),
            "unpacked": [element.decode() for element in pb_utils.deserialize_bytes_tensor(packed)],
            "empty": len(pb_utils.serialize_byte_tensor(np.zeros(0, np.object_))),
            "table": pb_utils.TRITON_STRING_TO_NUMPY["TYPE_FP32"] is np.float32,
            "unknown": pb_utils.triton_to_numpy_type(99) is None,
            "strings": pb_utils.numpy_to_triton_type(np.object_),
            "release": [pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE],
            "names": sorted(requests[0].requested_output_names()),
            "instances": self.config["instance_group"][0]["count"],
            "left out": pb_utils.get_output_tensor_by_name(
                pb_utils.InferenceResponse(error=pb_utils.TritonError("no")), "Y"
            )
            is None,
        }
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("TOLD", np.array([json.dumps(found).encode()], np.object_)),
                pb_utils.Tensor("NUMBERS", numbers),
                pb_utils.Tensor("nobody wants this", np.ones(3, np.int8)),
            ]
        )
        return [response for _ in requests]
