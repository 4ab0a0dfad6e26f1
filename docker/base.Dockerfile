# The base box: a shell, coreutils, git and python3 (which boxd needs), and a user without rights.
# Build it with docker/build-base.sh, which makes the same without a registry where none answers.
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends git procps python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --shell /bin/sh agent

# No WORKDIR: an image that works somewhere itself keeps that folder on disk, without a limit.
ENV LANG=C.UTF-8
USER 1000:1000
CMD ["/bin/sh"]
