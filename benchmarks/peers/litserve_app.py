"""The server of the benchmark for LitServe: ONNX Runtime on one thread, tensors as base64 in JSON, with batching.

python litserve_app.py PORT MODEL.onnx SIZE [SIZE ...]
"""

from __future__ import annotations

import base64
import sys

import litserve
import numpy as np
import onnxruntime as ort


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
        self._dims = [int(size) for size in sys.argv[3:]]

    def decode_request(self, request: dict) -> np.ndarray:
        return np.frombuffer(base64.b64decode(request["x"]), np.float32).reshape(self._dims)

    def batch(self, inputs: list) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self._session.run(["y"], {"x": x})[0]

    def unbatch(self, output: np.ndarray) -> list:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict:
        return {"y": base64.b64encode(output.tobytes()).decode()}


if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=16, batch_timeout=0.001), accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="warning")
