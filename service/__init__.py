"""The gateway: serves a Triton model repository over HTTP and gRPC."""
