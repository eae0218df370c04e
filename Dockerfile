# The image of all processes: docker build --tag responses-platform:local .
# Its argument is a command of manage.py: web, worker, beat, migrate, sandbox, prepare_database, healthcheck…
# tests/deployment/test_image.py executes these instructions in an empty Debian and starts every process from the result.
ARG DEBIAN=trixie

# hadolint ignore=DL3006
FROM docker.io/library/debian:${DEBIAN}-slim AS base
# Without versions, because Debian's security updates replace them. bubblewrap is for `sandbox` only; no program may raise
# the rights of its user.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +

FROM base AS build
WORKDIR /app
# The packages change less often than the sources. Each is checked against its hash in requirements/, the export of
# uv.lock.
COPY manage.py pyproject.toml uv.lock ./
COPY requirements requirements
COPY platform/launcher platform/launcher
RUN python3 manage.py install --telemetry --no-input
COPY . .
# Processes may not write to /app: bytecode and documentation are made here. Static files are served from the packages
# and from static/.
RUN python3 manage.py install --telemetry --no-input --compile \
    && PYTHONPATH=platform:. .venv/bin/python -m guide.build /app/guide \
    && .venv/uv export --quiet --frozen --no-dev --group docs --group telemetry --format cyclonedx1.5 \
        --output-file sbom.cdx.json \
    && rm -rf .venv/uv .venv/cache .venv/installation.log

FROM base
LABEL org.opencontainers.image.title="Responses platform" \
      org.opencontainers.image.description="Hosted, multi-tenant server of the OpenAI Responses API" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 platform \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/platform --shell /usr/sbin/nologin platform \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/platform /run/sandbox
# Owned by root, so that no process can change its own code.
COPY --from=build /app /app
ENV STATE_DIR=/var/lib/platform \
    GUIDE_DIR=/app/guide \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["/app/.venv/bin/python", "/app/manage.py"]
CMD ["web", "--host", "0.0.0.0"]
