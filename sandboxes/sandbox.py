"""The two protocols of this package: a box, and the backend that makes boxes.

Failures come in two kinds that are never mixed up. What a *command* does wrong (a non-zero exit,
a time-out, running out of memory, too much output, a NUL in its text) is an `ExecResult`. What
the *box or its backend* does wrong is a `SandboxError`: the rollout is not to blame and must not
be scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from sandboxes.spec import SandboxSpec

if TYPE_CHECKING:
    from sandboxes.background import Background
    from sandboxes.session import Session

READ_LIMIT_BYTES = 64 * 1024 * 1024
"""Of what is read at once, unless a caller says otherwise."""


class SandboxError(Exception):
    """The box or its backend failed; the command, if any, may or may not have run."""


class SandboxLost(SandboxError):
    """The box is gone or unusable (killed, exhausted, connection broken). Get another one."""


class BackendUnavailable(SandboxError):
    """The backend cannot be used on this machine; the message says what to do about it."""


class Unsupported(ValueError):
    """What a box of this kind cannot do; the message says why, and what to do instead."""


class UnsafePath(ValueError):
    """A path or archive member that would leave the workdir or is not a plain file or folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecUsage:
    cpu_seconds: float
    max_rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command did. `out` and `err` hold head and tail when `is_truncated`."""

    rc: int
    """Exit code; 128 + signal number when killed by a signal."""
    out: bytes
    err: bytes
    out_bytes: int
    """True size of stdout, before any cut."""
    err_bytes: int
    timed_out: bool = False
    oom: bool = False
    seconds: float = 0.0
    usage: ExecUsage | None = None

    @property
    def ok(self) -> bool:
        return self.rc == 0 and not self.timed_out

    @property
    def is_truncated(self) -> bool:
        return self.out_bytes > len(self.out) or self.err_bytes > len(self.err)

    @property
    def text(self) -> str:
        """Both streams, readable: stdout, then stderr; bytes that are not UTF-8 are replaced."""
        return (self.out + self.err).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend enforces on this machine, told truthfully."""

    network: bool
    memory: bool
    """The sum over all processes of a box."""
    pids: bool
    disk: bool
    cpus: bool
    kernel_isolation: bool = False
    allow_list: bool = False
    outlives_commands: bool = True
    """A command that meets the limit of memory or processes, or kills all that it can, fails alone;
    else its box is lost with it."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing that is weaker than asked, and why."""


class Sandbox(Protocol):
    """One box; serves one rollout and is deleted. Paths are relative to the workdir or absolute.

    All methods but `alive` and `close` raise `SandboxLost` when the box is gone, or goes meanwhile.
    Those of files raise `OSError` for what the box's file system refuses (`FileNotFoundError`,
    `IsADirectoryError`, `PermissionError`, no space left ...) and `UnsafePath` for a path with `..` or
    over a link, and for what is no plain file. In an image without python3 they need its `tar` and
    `head`, and raise `Unsupported` where there are none.
    """

    spec: SandboxSpec
    sandbox_id: str

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: int | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Run a command to its end. A string goes to `sh -c`; a list is run as it is. One that
        cannot be run is a result with rc 126 or 127, and `err` says why.

        `user` other than the box's own raises `Unsupported`: a box has one user, its spec's.
        Another one's processes could not be killed at a deadline, since nothing in a box has the
        right to; and as root a box's code would own the image's files.

        At the deadline every process the command started is killed, and the caller is back
        within two seconds. Raises `SandboxLost`.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = READ_LIMIT_BYTES) -> bytes:
        """What a plain file holds. Over `max_bytes` it is an `OSError` (EFBIG)."""
        ...

    async def read_text(self, path: str, *, max_bytes: int = READ_LIMIT_BYTES) -> str:
        """As `read`; bytes that are not UTF-8 are replaced, so that they raise nothing."""
        ...

    async def write(self, path: str, data: bytes | str) -> None:
        """Make a file, and the folders on the way to it, or replace what it holds.

        Text is written as UTF-8; what that cannot express (half of a surrogate pair) is a
        `UnicodeEncodeError`. A write that fails may leave the file cut.
        """
        ...

    async def upload(self, files: Mapping[str, str | bytes] | Path) -> None:
        """Put a mapping of paths to contents, or a local tree, under the workdir.

        `ValueError` for over 10 000 files or 256 MiB. An upload that fails leaves what was put
        before.
        """
        ...

    async def download(
        self, path: str = ".", *, max_bytes: int = READ_LIMIT_BYTES
    ) -> dict[str, bytes]:
        """Plain files under `path`, keyed by path relative to it; links are not followed.

        Over `max_bytes`, or 10 000 files, it is an `OSError` (EFBIG); `NotADirectoryError` for a file.
        """
        ...

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Background:
        """Start a command that runs on; look at its logs, wait for it, kill it."""
        ...

    async def session(self, shell: str = "bash") -> Session:
        """A shell that keeps its folder, variables and functions from script to script."""
        ...

    def verifier(self, keep: Sequence[str] = ()) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh box of the same spec with these files and folders of this one, to grade in.

        What runs in it runs the model's code: believe only what that code cannot know or make.
        The box is not counted by a pool.
        """
        ...

    async def alive(self) -> bool:
        """Whether the box answers, within five seconds; one that does not is deleted."""
        ...

    async def close(self) -> None:
        """Delete the box and end all that runs in it. May be called again.

        A caller who is cancelled does not stop that. Raises `SandboxError` when the box could
        not be deleted.
        """
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


class SandboxBackend(Protocol):
    """Makes boxes of one kind."""

    name: str

    def capabilities(self, spec: SandboxSpec | None = None) -> Capabilities:
        """Of boxes of this spec, which may name a runtime; without one, of an ordinary box."""
        ...

    async def prepare(self, spec: SandboxSpec) -> None:
        """Get what boxes of this spec need and the machine lacks, such as an image.

        May take minutes, and goes on for the next caller when this one gives up. `create` does it
        too, where nobody has. Raises `SandboxError`.
        """
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh box with its files in place.

        Raises `SandboxError`; for a spec that no box of this backend can meet, `ValueError`; for
        its files, what `Sandbox.upload` raises.
        """
        ...

    async def close(self) -> None:
        """Delete every box that is still open."""
        ...
