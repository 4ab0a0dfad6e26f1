"""Engines that are reached by DOCKER_HOST: over tcp, with TLS and without."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from private_engine import PrivateEngine, private_engine

from sandboxes import BackendUnavailable, SandboxSpec, make_backend
from sandboxes.engine.backend import DockerBackend

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CERTIFICATES = """
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca-key.pem -out ca.pem
for name in server client; do
    openssl req -newkey rsa:2048 -nodes -subj /CN=$name -keyout $name-key.pem -out $name.csr
    echo "subjectAltName = IP:127.0.0.1" > $name.ext
    openssl x509 -req -days 2 -in $name.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
        -extfile $name.ext -out $name-cert.pem
done
mkdir client stranger
cp ca.pem client-cert.pem client-key.pem client
cd client; mv client-cert.pem cert.pem; mv client-key.pem key.pem; cd ..
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout stranger/key.pem \
    -out stranger/cert.pem
cp ca.pem stranger
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    command = ["sh", "-ec", CERTIFICATES]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with private_engine(("agentrl-base", "agentrl-shell")) as engine:
        yield engine


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


async def use() -> None:
    """Boxes with and without boxd, stdin and files included."""
    backend = await asyncio.to_thread(make_backend, "docker", run_id="addresses")
    assert isinstance(backend, DockerBackend)
    assert backend.engine.address.url.startswith(("http://127", "https://127"))
    for image in ("agentrl-base", "agentrl-shell"):
        spec = replace(SandboxSpec(), image=image, files={"f": "file"})
        async with await backend.create(spec) as box:
            result = await box.exec("cat f -", stdin=b" and stdin")
            assert (result.out, result.err) == (b"file and stdin", b"")
            assert (await box.exec("sleep 60", timeout_s=0.3)).timed_out
            assert await box.read("f") == b"file"
    await backend.close()


async def test_tcp(engine: PrivateEngine, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.to_thread(engine.stop)
    await asyncio.to_thread(engine.start, "-H", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    await use()


async def test_tcp_with_tls(
    engine: PrivateEngine, port: int, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(engine.stop)
    options = ["--tlsverify", f"--tlscacert={certificates}/ca.pem"]
    options += [f"--tls{what}={certificates}/server-{what}.pem" for what in ("cert", "key")]
    await asyncio.to_thread(engine.start, *options, "-H", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates / "client"))
    await use()
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates / "stranger"))
    with pytest.raises(BackendUnavailable, match="is no Docker engine"):
        make_backend("docker")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates / "nowhere"))
    with pytest.raises(BackendUnavailable, match="DOCKER_CERT_PATH"):
        make_backend("docker")
