"""A gRPC server for asyncio on nghttp2. It knows nothing of models. See README.md."""
