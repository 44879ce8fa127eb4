# The image of the gateway: what is locked, what is ours, a Python, and nothing else.
#
#   docker build -t weirgate .                          the gateway (the last stage)
#   docker build -t weirgate-demo-model --target demo-model .   the small model of `make demo`, for compose.yaml
#
# A mirror of the package index: --secret id=pip,src=pip.conf. It leaves no trace in the image.
#
# tests/test_image.py runs scripts/image.sh, which does all the work of the first stage, and then the gateway as a user
# without rights on a file system that cannot be written. docs/deploying.md says what else was run, and what was not.
#
# Python 3.11, because that is what every test runs with. The digest could not be looked up without a registry: for a
# build that is the same each time, pin it: --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# -- what is built ---------------------------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY scripts/image.sh scripts/
COPY requirements/runtime.txt requirements/build.txt requirements/
# The libraries before the source: they change less often, and the layer is kept.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf scripts/image.sh libraries /opt/weirgate
COPY pyproject.toml README.md LICENSE ./
COPY policies policies
COPY proxy proxy
RUN --mount=type=secret,id=pip,target=/etc/pip.conf scripts/image.sh gateway /opt/weirgate

# -- the model of the demo, which compose.yaml serves ----------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS demo-model
COPY requirements/demo.txt /tmp/
# Its server is compiled with OpenMP. The version is the base image's own.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --no-cache-dir --no-deps --require-hashes --only-binary :all: -r /tmp/demo.txt
COPY demo/model_server.py /opt/demo/
USER 10001:10001
STOPSIGNAL SIGTERM
# Port, window, threads. It listens on 127.0.0.1: in compose.yaml it shares the gateway's network.
CMD ["python", "/opt/demo/model_server.py", "8080", "2048", "2"]

# -- what runs -------------------------------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weirgate" \
      org.opencontainers.image.description="An OpenAI-compatible gateway that keeps every conversation inside its model's context window" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Nothing that installs; a folder that the user below may write, for SQLite and as home.
RUN python -m pip uninstall --quiet --yes --root-user-action ignore pip setuptools wheel \
    && rm -rf /usr/local/lib/python3.*/ensurepip \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/lib/weirgate
COPY --from=build /opt/weirgate /opt/weirgate
ENV PATH=/opt/weirgate/bin:$PATH \
    HOME=/var/lib/weirgate \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/weirgate
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8400
STOPSIGNAL SIGTERM
# None: Kubernetes does not read it, compose.yaml states its own, and a Python that starts every few seconds to ask
# /readyz costs more than an idle gateway.
HEALTHCHECK NONE
ENTRYPOINT ["weirgate"]
CMD ["serve", "--config", "/etc/weirgate/weirgate.yaml"]
