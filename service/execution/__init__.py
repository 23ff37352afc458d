"""Queue, batcher, ONNX Runtime sessions, pipelines. Knows nothing of HTTP or gRPC."""
