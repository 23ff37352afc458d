# Triton with the op library for ONNX Runtime on the CPU. Build it in the top folder of the repository:
#   docker compose build triton
#
# The library is built in the image of the server that loads it, so it fits its C++ library.

FROM nvcr.io/nvidia/tritonserver:25.06-py3 AS build
WORKDIR /src
COPY deploy/system-packages.sh deploy/
RUN sh deploy/system-packages.sh venv && sh deploy/system-packages.sh serve && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE ./
COPY opgate opgate
# The wheel has the op library in opgate/lib, and in opgate.libs those that it is linked with.
RUN python3 -m venv /opt/pip && /opt/pip/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /opt/wheel . && \
    python3 -m zipfile -e /opt/wheel/*.whl /opt/opgate

FROM nvcr.io/nvidia/tritonserver:25.06-py3
COPY --from=build /opt/opgate/opgate/lib /opt/opgate/opgate/lib
COPY --from=build /opt/opgate/opgate.libs /opt/opgate/opgate.libs
# Triton looks for an op library by its file name.
ENV LD_LIBRARY_PATH=/opt/opgate/opgate/lib:/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64
USER 1000:1000
EXPOSE 8010 8011 8012
HEALTHCHECK --interval=5s --timeout=4s --start-period=120s \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8010/v2/health/ready"]
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/models", "--http-port=8010", "--grpc-port=8011", "--metrics-port=8012", "--exit-on-error=false"]
