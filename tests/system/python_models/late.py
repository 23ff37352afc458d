"""A model that isn't decoupled answers by its senders: a negative number from a thread, when `execute` has returned."""

import threading
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x.as_numpy())])
            first = float(x.as_numpy()[0])
            if first < 0:
                threading.Thread(target=self.send, args=(request.get_response_sender(), response)).start()
                responses.append(None)
            elif first == 0:
                request.get_response_sender().send(response)
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                responses.append(None)
            else:
                responses.append(response)
        return responses

    def send(self, sender, response):
        time.sleep(0.05)
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
