"""The app that a good engineer writes by hand in 30 lines: raw bytes in and out around onnxruntime, no batching.

    python benchmarks/handwritten_app.py MODEL.onnx PORT SIZE [SIZE ...]

POST /infer with the float32 input's bytes; the sizes are the input's dimensions without the batch.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI, Request, Response

path, port, dims = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
app = FastAPI()


@app.post("/infer")
async def infer(request: Request) -> Response:
    x = np.frombuffer(await request.body(), np.float32).reshape(-1, *dims)
    (y,) = session.run(["y"], {"x": x})
    return Response(y.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
