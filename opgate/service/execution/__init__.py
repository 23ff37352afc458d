"""Queue, batcher, ONNX Runtime sessions and pipelines. Nothing here depends on HTTP or gRPC."""
