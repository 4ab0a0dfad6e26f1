"""The subprocess backend: a folder and some process limits. It isolates nothing.

Commands run as the user who runs the trainer, see the host's files, network and processes, and
can outlive their box. It is for trusted tools on machines where nothing else works, and is never
chosen unless it is asked for by name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandboxes.bundle import PYTHON, boot_argv
from sandboxes.local import LocalBackend, LocalBox, await_end
from sandboxes.ownership import local_name_may_live
from sandboxes.sandbox import Capabilities
from sandboxes.spec import SandboxSpec

PREFIX = "agentrl-box-"


class ProcessBox(LocalBox):
    @property
    def _workdir(self) -> Path:
        return Path(tempfile.gettempdir(), PREFIX + self.box_id)

    def popen(self, stream: socket.socket) -> subprocess.Popen[bytes]:
        self._workdir.mkdir(mode=0o700)
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._workdir),
            "LANG": "C.UTF-8",
            **self.spec.env,
        }
        return subprocess.Popen(
            boot_argv(PYTHON, *self._limits()),
            stdin=stream.fileno(),
            stdout=stream.fileno(),
            stderr=subprocess.PIPE,
            env=env,
            cwd=self._workdir,
            start_new_session=True,
        )

    def _limits(self) -> Iterator[str]:
        yield f"RLIMIT_AS={self.spec.memory_bytes}"
        yield f"RLIMIT_FSIZE={self.spec.disk_bytes}"
        yield "RLIMIT_CORE=0"

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """boxd kills what it started when its stream ends; it alone knows what that is."""
        await_end(process)

    def clean_up(self) -> None:
        if self._workdir.exists():
            shutil.rmtree(self._workdir)


class ProcessBackend(LocalBackend):
    name = "subprocess"

    def __init__(self) -> None:
        """Removes the folders of workers that were killed."""
        super().__init__()
        for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
            if not local_name_may_live(folder.name.removeprefix(PREFIX)):
                shutil.rmtree(folder, ignore_errors=True)

    def new_host(self, spec: SandboxSpec) -> ProcessBox:
        return ProcessBox(self, spec)

    def capabilities(self, spec: SandboxSpec | None = None) -> Capabilities:
        return Capabilities(
            network=False,
            memory=False,
            pids=False,
            cpus=False,
            disk=False,
            notes=(
                "Nothing is isolated: commands are processes of this user with the host's files "
                "and network.",
                "Memory and file sizes are limited for each process only.",
                "A process that kills its box's daemon can outlive the box.",
            ),
        )
