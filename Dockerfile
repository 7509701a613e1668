# syntax=docker/dockerfile:1
# The pipeline (`lockstep capture`, `lockstep apply`) with Python packages, jars and Java; the servers come from other images.

# For a reproducible image name it by digest: docker build --build-arg BASE=python@sha256:...
ARG BASE=python:3.11-slim-trixie

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 XDG_CACHE_HOME=/opt/lockstep/cache
# For the compiled row kernel. The compiler stays in this stage.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/lockstep
WORKDIR /build
COPY requirements-build.lock requirements.lock ./
# PySpark is built from source; packing its 490 MB of jars without compression saves most of that time.
RUN printf '[bdist_wheel]\ncompression = stored\n' > wheel.cfg \
    && /opt/lockstep/bin/pip install --require-hashes -r requirements-build.lock \
    && DIST_EXTRA_CONFIG=/build/wheel.cfg /opt/lockstep/bin/pip install --require-hashes --no-build-isolation -r requirements.lock
COPY . .
RUN LOCKSTEP_KERNEL=require /opt/lockstep/bin/pip install --no-deps --no-build-isolation . \
    && cd / && /opt/lockstep/bin/python -m stack.jars fetch spark

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-21-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/lockstep lockstep \
    && install -d -o lockstep -g lockstep /var/lib/lockstep /var/lib/lockstep/.lockstep
COPY --from=build /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:$PATH XDG_CACHE_HOME=/opt/lockstep/cache PYTHONUNBUFFERED=1
# It fits only the Java that wrote it, so it is made here, and halves the time of Spark's start.
RUN python -m lockstep.class_archive
USER lockstep
# Configuration and checkpoints: relative paths in lockstep.toml count from here.
WORKDIR /var/lib/lockstep
ENTRYPOINT ["lockstep"]
CMD ["--help"]
