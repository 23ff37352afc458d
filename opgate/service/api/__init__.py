"""The interfaces for clients: the KServe protocol over HTTP and gRPC, /predict, and administration."""
