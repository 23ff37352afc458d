"""Tensors to and from bytes: JSON, the binary extension, gRPC raw contents, compressed bodies."""
