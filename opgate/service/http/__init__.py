"""HTTP/1.1 on httptools, under uvicorn's server: connections, an ASGI cycle, and requests that need no ASGI."""
