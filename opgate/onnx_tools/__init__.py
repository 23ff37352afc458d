"""Tools for ONNX models: made from other formats, rewritten, looked at, run."""
