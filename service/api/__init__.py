"""What a client sees: HTTP and gRPC, the friendly door, administration."""
