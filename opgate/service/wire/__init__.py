"""Converts tensors to and from bytes: JSON, Triton's binary extension, gRPC raw contents, compressed bodies."""
