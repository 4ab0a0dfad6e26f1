#!/bin/sh
# Builds a small image without python, for tests: docker/build-shell-image.sh [TAG]  (agentrl-shell)
# One static busybox under all its names, from the Debian package (needs root where it is missing).
set -eu

TAG=${1:-agentrl-shell}
if ! [ -x /bin/busybox ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends busybox-static >/dev/null
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -m 755 bin etc proc sys dev usr usr/bin home
mkdir -m 1777 tmp
cp /bin/busybox bin/busybox
for name in $(bin/busybox --list); do
    [ "$name" = busybox ] || ln -s busybox "bin/$name"
done
ln -s /bin/env usr/bin/env
echo 'agent:x:1000:1000::/home:/bin/sh' >etc/passwd
echo 'agent:x:1000:' >etc/group
chmod 755 .
tar -cf - --owner=0 --group=0 . | docker import -c 'USER 1000:1000' -c 'CMD ["/bin/sh"]' - "$TAG"
echo "built $TAG from busybox"
