#!/bin/sh
# Makes sure that a Docker engine answers: for development and CI on machines without one.
# Installs it from the distribution's packages and starts it by hand; does nothing where one runs.
# Needs root. Ends within two minutes, with the engine's last words if it did not start.
set -eu

LOG=${AGENTRL_ENGINE_LOG:-/tmp/agentrl-dockerd.log}
WAIT_S=60

answers() { timeout 5 docker version >/dev/null 2>&1; }

if answers; then
    echo "a Docker engine answers already"
    exit 0
fi
if [ -n "${DOCKER_HOST:-}" ]; then
    echo "DOCKER_HOST is set to $DOCKER_HOST, but nothing answers there" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "no Docker engine answers, and only root can start one; run: sudo $0" >&2
    exit 1
fi
if ! command -v dockerd >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends docker.io >/dev/null
fi

# Boxes have no network, so neither a bridge nor firewall rules are needed.
setsid nohup dockerd --bridge=none --iptables=false --ip6tables=false >"$LOG" 2>&1 </dev/null &

i=0
while [ $i -lt $WAIT_S ]; do
    if answers; then
        echo "the Docker engine runs; its log is $LOG"
        exit 0
    fi
    sleep 1
    i=$((i + 1))
done
echo "the Docker engine did not start within $WAIT_S s:" >&2
tail -n 20 "$LOG" >&2
exit 1
