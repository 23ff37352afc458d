"""Sends what a request asks for, one word after the other: a number as a response, "error", "empty"; "!" marks it as
the last one."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy().reshape(-1)
            for said in [word.decode() for word in words]:
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if said.endswith("!") else 0
                word = said.rstrip("!")
                if word == "error":
                    response = pb_utils.InferenceResponse(error=pb_utils.TritonError("as it was asked for"))
                elif word == "empty":
                    response = pb_utils.InferenceResponse([])
                elif word:
                    response = pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([int(word)], np.int32))])
                else:
                    response = None
                sender.send(response, flags=flags)
