# Triton on GPUs with the op libraries for ONNX Runtime and TensorRT, and, as target `plan`, the program that compiles
# models with TensorRT. Build them in the top folder of the repository:
#   docker compose build triton-gpu plan
#
# Both containers of a release of NVIDIA have the same TensorRT, and a compiled model needs the one that compiled it.

FROM nvcr.io/nvidia/tensorrt:25.06-py3 AS build
WORKDIR /src
COPY deploy/system-packages.sh deploy/
RUN sh deploy/system-packages.sh venv && sh deploy/system-packages.sh serve && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE ./
COPY opgate opgate
ENV PATH=/opt/opgate/venv/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV XDG_CACHE_HOME=/opt/opgate/cache
RUN python3 -m venv /opt/opgate/venv && /opt/opgate/venv/bin/pip install --no-cache-dir '.[cpu]' && \
    opgate build --engine onnxruntime --engine tensorrt --cuda all && \
    mkdir /opt/opgate/ops && \
    cp "$XDG_CACHE_HOME"/opgate/*/ops/libopgate_tensorrt.so /opt/opgate/ops && \
    cp "$XDG_CACHE_HOME"/opgate/*/ops/libopgate_onnxruntime_cuda.so /opt/opgate/ops/libopgate_onnxruntime.so && \
    mkdir /plans && chown 1000:1000 /plans

FROM build AS plan
ENV PATH=/opt/opgate/venv/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/opt/opgate/cache
USER 1000:1000
ENTRYPOINT ["opgate", "plan"]
CMD ["--help"]

# The library for CUDA has the kernels for the CPU too. It has the name that the models' configs state.
FROM nvcr.io/nvidia/tritonserver:25.06-py3
RUN apt-get update && \
    apt-get install -y --no-install-recommends \
      libdeflate0 libjpeg-turbo8 libonig5 libpng16-16 libsndfile1 libsoxr0 libwebp7 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/opgate/ops /opt/opgate/ops
# Triton looks for an op library by its file name. It loads the plugins before it loads a model, and they register
# themselves in the library of TensorRT that the variable names.
ENV LD_LIBRARY_PATH=/opt/opgate/ops:/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    OPGATE_TENSORRT_REGISTRY=libnvinfer.so.10
USER 1000:1000
EXPOSE 8010 8011 8012
HEALTHCHECK --interval=5s --timeout=4s --start-period=120s \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8010/v2/health/ready"]
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/models", "--http-port=8010", "--grpc-port=8011", "--metrics-port=8012", \
     "--exit-on-error=false", "--backend-config=tensorrt,plugins=/opt/opgate/ops/libopgate_tensorrt.so"]
