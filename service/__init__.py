"""The gateway: a Triton model repository served over HTTP and gRPC."""
