# locust with the clients that the load tests use. Build it in the top folder of the repository:
#   docker compose build locust

FROM debian:12.12-slim AS build
RUN apt-get update && \
    apt-get install -y --no-install-recommends python3 python3-venv && \
    python3 -m venv /opt/locust/venv && \
    /opt/locust/venv/bin/pip install --no-cache-dir 'locust==2.47.*' 'pillow==12.*' 'tritonclient[grpc]==2.73.*'

FROM debian:12.12-slim
RUN apt-get update && \
    apt-get install -y --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --system --uid 10001 --no-create-home locust
COPY --from=build /opt/locust/venv /opt/locust/venv
ENV PATH=/opt/locust/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8089
ENTRYPOINT ["locust"]
CMD ["--help"]
