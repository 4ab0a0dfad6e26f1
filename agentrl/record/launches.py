"""What a run is and each time it was started: `run.json`.

A run that is resumed goes on in the same folder and may do again the steps behind its newest
checkpoint. Nothing is deleted then: the new launch says from which step on it writes, and rows of
earlier launches for those steps are superseded.
"""

from __future__ import annotations

import platform
import socket
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

import orjson
import psutil

from agentrl.record.jsonl import to_line, write_whole
from agentrl.record.layout import SCHEMA_VERSION, RunLayout
from agentrl.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process that wrote the run."""

    first_step: int
    """Rows of earlier launches for this step and later ones no longer count."""
    started_s: float
    ended_s: float | None = None
    """None: still going, or lost without a farewell."""
    host: str = ""
    pid: int = 0
    process_started_s: float = 0.0
    """With the pid, the identity of the process."""
    agentrl_version: str = ""
    python_version: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    """What the record lost because it could not keep up, by kind."""
    failed: dict[str, int] = field(default_factory=dict)
    """What could not be written, by kind."""
    resumed: dict[str, Json] = field(default_factory=dict)
    """What became of the attempts that lost processes had left behind: how many were continued,
    were taken as they had ended, and were started anew, by reason."""

    @classmethod
    def here(cls, *, first_step: int, now_s: float) -> Launch:
        process = psutil.Process()
        return cls(
            first_step=first_step,
            started_s=now_s,
            host=socket.gethostname(),
            pid=process.pid,
            process_started_s=process.create_time(),
            agentrl_version=version("agentrl-runtime"),
            python_version=platform.python_version(),
        )

    @property
    def is_alive(self) -> bool | None:
        """Whether its process still runs; None when that cannot be told from this machine."""
        if self.ended_s is not None:
            return False
        if self.host != socket.gethostname():
            return None
        try:
            started_s = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started_s - self.process_started_s) < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    name: str
    launches: tuple[Launch, ...]

    def superseded_from(self, launch: int) -> float:
        """The first step for which rows of `launch` no longer count."""
        later = (later.first_step for later in self.launches[launch + 1 :])
        return min(later, default=float("inf"))

    def with_last(self, launch: Launch) -> RunInfo:
        return replace(self, launches=(*self.launches[:-1], launch))


def read_run(layout: RunLayout) -> RunInfo:
    """Raises ValueError when the folder is not a run, or one of another format."""
    try:
        data = layout.run.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{layout.root} is not a run folder: it has no {layout.run.name}"
        ) from None
    try:
        return _parsed(orjson.loads(data), layout)
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{layout.run} is none that agentrl wrote ({error!r}); give the folder of a run"
        ) from error


def _parsed(run: dict[str, Any], layout: RunLayout) -> RunInfo:
    if run["schema_version"] != SCHEMA_VERSION:
        raise ValueError(
            f"{layout.root} has record format {run['schema_version']}, and this agentrl reads "
            f"format {SCHEMA_VERSION}; open it with agentrl {run['launches'][-1]['agentrl_version']}"
        )
    launches = tuple(Launch(**launch) for launch in run["launches"])
    return RunInfo(name=run["name"], launches=launches)


def write_run(layout: RunLayout, run: RunInfo) -> None:
    write_whole(layout.run, to_line({"schema_version": SCHEMA_VERSION, **asdict(run)}))
