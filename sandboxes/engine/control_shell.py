"""The main process of a box without python: a shell that does what only somebody inside can.

It reads lines from the attached stream, and what it is asked for are builtins, so it needs no
other program and no further process: it can kill every process of the box when none can be started
any more. Its end is the box's end, and it ends with our connection.

It runs as the box's user, so code in the box can kill it (the box is then lost) or speak in its
name. Only whether the box lives and whether it ran out of memory is learnt from it.
"""

from __future__ import annotations

import asyncio
import itertools

from sandboxes.client import BoxClient
from sandboxes.engine.container import MainProcess

MAIN = MainProcess(
    argv=("/bin/sh", "-c", 'while read -r line; do eval "$line"; done'),
    first_bytes=b"echo 0.\n",
    needs_init=True,
)
KILL_ALL = "kill -9 -1"
"""Every process but the init and the shell itself."""
_MAX_ANSWER_BYTES = 4096


class ControlShell(BoxClient):
    def __init__(self) -> None:
        super().__init__()
        self._text = b""
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Event] = {}
        self._said: list[str] = []
        self.gone = asyncio.Event()

    async def ask(self, script: str) -> list[str]:
        """The lines that a script of builtins prints. One at a time; raises `SandboxLost`."""
        number = next(self._numbers)
        answered = self._asked[number] = asyncio.Event()
        try:
            self.write(f"{script}; echo {number}.\n".encode())
            await answered.wait()
        finally:
            del self._asked[number]
        self.raise_if_lost()
        said, self._said = self._said, []
        return said

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        said_bytes = sum(len(line) + 1 for line in self._said)
        if len(self._text) + said_bytes > _MAX_ANSWER_BYTES:
            self.close("the box's main process talks without being asked")
            return
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))

    def _on_line(self, line: str) -> None:
        number = line.removesuffix(".")
        if number == line or not number.isdecimal():
            self._said.append(line)
        elif number == "0":
            self._ready.set()
        elif answered := self._asked.get(int(number)):
            answered.set()
        else:
            self._said.clear()  # of somebody who did not wait for it

    def _lose(self, reason: str) -> None:
        super()._lose(reason)
        self.gone.set()
        for answered in self._asked.values():
            answered.set()


def oom_kills(oom_file: str) -> str:
    """A script that prints how often the kernel has killed for want of memory."""
    return f'while read -r k v; do [ "$k" = oom_kill ] && echo "$v"; done < {oom_file} 2>/dev/null'
