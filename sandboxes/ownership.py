"""Who owns a box: enough to tell, later and from elsewhere, whether its owner still lives.

A pid alone is no identity, it is used again; with the host, the boot and the start time it is one.
Containers may share their host's name and have pids of their own, so the pid namespace is part of
the host.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    host: str
    """Its name and the pid namespace, so that pids mean the same in both of two equal ones."""
    boot: str
    pid: int
    started: int
    """Clock ticks between the boot and the start of the process."""

    def __str__(self) -> str:
        return f"{self.host}:{self.boot}:{self.pid}:{self.started}"

    @property
    def local_name(self) -> str:
        """Short and without odd characters, for names that live on this host only."""
        return f"{self.pid}-{self.started}"

    @classmethod
    def parse(cls, text: str) -> Self:
        host, boot, pid, started = text.rsplit(":", 3)
        return cls(host=host, boot=boot, pid=int(pid), started=int(started))

    @property
    def is_here(self) -> bool:
        """Whether it would be seen from here if it lived."""
        return self.host == this_process().host

    def may_live(self) -> bool:
        """False only when it is certain that the process is gone; other hosts cannot be judged."""
        if not self.is_here:
            return True
        return self.boot == this_process().boot and _start_time(self.pid) == self.started


def this_process() -> Owner:
    return _owner_of(os.getpid())


def pid_namespace() -> int:
    """Pids of another one mean nothing here."""
    return os.stat("/proc/self/ns/pid").st_ino


def local_name_may_live(name: str) -> bool:
    """The same for a thing called `<pid>-<started>-...`, made since this host's last boot.

    What is called otherwise is not of our making, and is left alone.
    """
    pid, _, rest = name.partition("-")
    started = rest.partition("-")[0]
    if not (pid.isdecimal() and started.isdecimal()):
        return True
    return _start_time(int(pid)) == int(started)


@functools.lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = _start_time(pid)
    assert started is not None
    host = f"{socket.gethostname()}/{pid_namespace()}"
    return Owner(host=host, boot=boot, pid=pid, started=started)


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets and may hold anything, brackets and blanks too.
    return int(stat.rpartition(")")[2].split()[19])
