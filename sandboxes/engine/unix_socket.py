"""Unix sockets for the `docker` SDK. Its own stay open where nobody listens, until collected.

While an engine is down each request costs one, so a run that waits for its engine would run out of
file descriptors as soon as anything keeps the errors.
"""

from __future__ import annotations

import socket

from docker.transport.unixconn import (
    UnixHTTPAdapter,
    UnixHTTPConnection,
    UnixHTTPConnectionPool,
)


class _Connection(UnixHTTPConnection):  # type: ignore[misc]  # the SDK has no types
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):  # type: ignore[misc]  # the SDK has no types
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class UnixAdapter(UnixHTTPAdapter):  # type: ignore[misc]  # the SDK has no types
    """To be mounted in the place of a client's own."""

    def get_connection(self, url: str, proxies: object = None) -> _Pool:
        with self.pools.lock:
            pool: _Pool | None = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
                self.pools[url] = pool
            return pool
