"""The gateway: serves a Triton model repository over HTTP and gRPC."""

if __name__ != "opgate.service":
    raise ImportError(f"import opgate.service, not {__name__}: under two names its modules would be loaded twice")
