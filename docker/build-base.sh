#!/bin/sh
# Builds the base image of boxes: docker/build-base.sh [TAG [auto|dockerfile|packages]]
# TAG is agentrl-base. From base.Dockerfile where its registry answers; else (auto), or only
# (packages), the same root file system is made from this machine's own Debian package sources with
# mmdebstrap (needs root) and imported.
set -eu

TAG=${1:-agentrl-base}
HOW=${2:-auto}
HERE=$(cd "$(dirname "$0")" && pwd)
PACKAGES=git,procps,python3
BUILD_S=600
PULL_S=60

from_dockerfile() {
    base=$(sed -n 's/^FROM //p' "$HERE/base.Dockerfile")
    docker image inspect "$base" >/dev/null 2>&1 || timeout $PULL_S docker pull -q "$base" || return 1
    timeout $BUILD_S docker build -q -t "$TAG" -f "$HERE/base.Dockerfile" "$HERE"
}

from_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "building from packages needs root on a Debian machine; else make a registry reachable" >&2
        exit 1
    fi
    if ! command -v mmdebstrap >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends mmdebstrap
    fi
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
        2>/dev/null >"$folder/sources" || true
    timeout $BUILD_S mmdebstrap --quiet --variant=minbase --include="$PACKAGES" \
        --customize-hook='chroot "$1" useradd --uid 1000 --create-home --shell /bin/sh agent' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
        "" "$folder/root.tar" - <"$folder/sources"
    docker import -c 'ENV LANG=C.UTF-8' -c 'USER 1000:1000' \
        -c 'CMD ["/bin/sh"]' "$folder/root.tar" "$TAG"
}

case $HOW in
auto | dockerfile | packages) ;;
*)
    echo "build from what? got '$HOW', wanted auto, dockerfile or packages" >&2
    exit 2
    ;;
esac
if [ "$HOW" != packages ]; then
    if from_dockerfile; then
        echo "built $TAG from base.Dockerfile"
        exit 0
    fi
    if [ "$HOW" = dockerfile ]; then
        echo "base.Dockerfile could not be built; where no registry answers, build from packages" >&2
        exit 1
    fi
    echo "no registry answers; building $TAG from Debian packages"
fi
from_packages
echo "built $TAG from Debian packages"
