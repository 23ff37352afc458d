# The gateway with ONNX Runtime inside, on the CPU. Build it in the top folder of the repository:
#   docker compose build gateway

FROM debian:12.12-slim AS build
WORKDIR /src
COPY deploy/system-packages.sh deploy/
RUN sh deploy/system-packages.sh venv && sh deploy/system-packages.sh serve && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE ./
COPY opgate opgate
RUN python3 -m venv /opt/opgate/venv && /opt/opgate/venv/bin/pip install --no-cache-dir '.[cpu,otel]'

# The wheel has brought the op library and the libraries that it is linked with.
FROM debian:12.12-slim
RUN apt-get update && \
    apt-get install -y --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --system --uid 10001 --no-create-home opgate && \
    install -d -o 10001 -g 10001 /var/cache/opgate
COPY --from=build /opt/opgate/venv /opt/opgate/venv
ENV PATH=/opt/opgate/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
    OPGATE_MODEL_REPOSITORY=/models OPGATE_MODEL_CACHE=/var/cache/opgate/models OPGATE_HTTP_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=3)"]
ENTRYPOINT ["opgate"]
CMD ["serve"]
