"""A request waits until another one names its id, and then both end. So several must be under way at once."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.stops = {}

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (ends,) = pb_utils.get_input_tensor_by_name(request, "ENDS").as_numpy()
            if ends:
                self.stop_of(ends.decode()).set()
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                stop = self.stop_of(request.request_id())
                threading.Thread(target=self.wait, args=(stop, sender), daemon=True).start()

    def stop_of(self, id):
        return self.stops.setdefault(id, threading.Event())

    def wait(self, stop, sender):
        said = np.array([stop.wait(20)])
        response = pb_utils.InferenceResponse([pb_utils.Tensor("ENDED", said)])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
