"""A Docker engine of a test's own, to stop, kill, freeze and reach in other ways than usual."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from docker.api import APIClient
from docker.errors import APIError

from sandboxes import BackendUnavailable
from sandboxes.engine.connection import Address, Engine

START_TIMEOUT_S = 60


class PrivateEngine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = Address(f"http+unix://{folder}/d.sock")

    def start(self, *options: str) -> None:
        """Its own data, containerd and socket; boxes need neither a bridge nor firewall rules."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("dockerd", "--data-root", f"{self._folder}/data"),
                    *("--exec-root", f"{self._folder}/exec", "--pidfile", f"{self._folder}/pid"),
                    *("--bridge=none", "--iptables=false", "--ip6tables=false"),
                    *("-H", f"unix://{self._folder}/d.sock", *options),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.connect()
        except BackendUnavailable:
            return False
        return True

    def client(self) -> APIClient:
        return APIClient(base_url=self.address.url, version="1.41", timeout=60)

    def connect(self) -> Engine:
        return Engine(self.address)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self.send(signal.SIGCONT)
            self.send(how)
            self._process.wait(60)
            self._process = None
        if how == signal.SIGKILL:
            self._end_containerd()

    def _end_containerd(self) -> None:
        """Else the next start finds it half dead and gives up."""
        pid_file = self._folder / "exec/containerd/containerd.pid"
        pid = int(pid_file.read_text())
        cmdline = Path(f"/proc/{pid}/cmdline")
        with suppress(ProcessLookupError, FileNotFoundError):
            while str(self._folder) in cmdline.read_text():
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
        pid_file.unlink(missing_ok=True)

    def boxes(self) -> list[str]:
        """Without those that an engine lists after a kill and knows no more, which have no name."""
        with closing(self.client()) as client:
            return [box["Id"] for box in client.containers(all=True) if box["Names"]]

    def take_images(self, source: APIClient, names: Sequence[str]) -> None:
        with closing(self.client()) as client:
            for name in names:
                client.load_image(source.get_image(name))

    def clean_up(self) -> None:
        """Containers first: they would live on without an engine."""
        try:
            if self._process is not None:
                with closing(self.client()) as client:
                    for box in client.containers(all=True):
                        with suppress(APIError):  # it is going already
                            client.remove_container(box["Id"], force=True)
            self.stop()
        finally:
            remove_engine_folder(self._folder)


def remove_engine_folder(folder: Path) -> None:
    """With the helpers of an engine that was killed, and what they have mounted."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):
            if str(folder).encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([path for path in mounts if path.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def private_engine(images: Sequence[str]) -> Iterator[PrivateEngine]:
    """With images of the usual engine. Skips the test where none can be started."""
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start an engine, and dockerd must be installed")
    source = APIClient(version="auto", timeout=120)
    engine = PrivateEngine(Path(tempfile.mkdtemp(prefix="agentrl-engine-")))
    try:
        engine.start()
        engine.take_images(source, images)
        yield engine
    finally:
        source.close()
        engine.clean_up()
