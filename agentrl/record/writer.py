"""The one writer of a run's record: everything is handed over at once and written by a thread.

Invariants
- No method but `flush` and `close` waits, none raises for the disk's sake, and none holds up
  training. What does not fit into the bounded queue is dropped and counted in `dropped`; what the
  disk refuses is counted in `failed`.
  Metrics and the summary are small and are only dropped when the queue is full of them.
- One process writes a run at a time (a lock on the folder), and one thread all its files.
- Everything handed over before `close()` is on disk when it returns, unless its deadline passes.
"""

from __future__ import annotations

import fcntl
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from agentrl.record.chunks import CHUNK_BYTES, ChunkWriter, write_columns
from agentrl.record.codec import TOKEN, Fate
from agentrl.record.jsonl import AppendFile, to_line, write_whole
from agentrl.record.launches import Launch, RunInfo, read_run, write_run
from agentrl.record.layout import RunLayout
from agentrl.types import Json, Trajectory

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    queued_bytes: int = 512 * 1024 * 1024
    """Trajectories and training columns that wait to be written; more are dropped."""
    queued_items: int = 100_000
    sync_every_s: float = 5.0
    """How much a crash of the machine may cost; a crash of the process costs nothing written."""
    chunk_bytes: int = CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class _Job:
    kind: str
    num_bytes: int
    write: Callable[[], object]


_NOTHING = _Job("nothing", 0, lambda: None)


class RunWriter:
    """Writes the record of one launch into a run folder, made by `create_run_folder`."""

    def __init__(
        self,
        path: Path,
        config_yaml: str,
        *,
        name: str | None = None,
        first_step: int = 0,
        limits: WriterLimits | None = None,
    ) -> None:
        """A folder that already holds a run is continued: `first_step` is the first step that
        this launch does, and what earlier launches wrote for it and later ones is superseded."""
        self.layout = RunLayout(path)
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._limits = limits or WriterLimits()
        self._lock_file = _lock(self.layout)
        earlier = read_run(self.layout).launches if self.layout.run.exists() else ()
        launch = Launch.here(first_step=first_step, now_s=time.time())
        self._run = RunInfo(name=name or path.name, launches=(*earlier, launch))
        self._launch = len(earlier)
        self.layout.trajectories.mkdir(exist_ok=True)
        self.layout.training.mkdir(exist_ok=True)
        write_whole(self.layout.config, config_yaml.encode())
        self.layout.summary.unlink(missing_ok=True)
        self._chunks = ChunkWriter(
            self.layout, launch=self._launch, chunk_bytes=self._limits.chunk_bytes
        )
        self._metrics = AppendFile(self.layout.metrics)
        self._replayed = AppendFile(self.layout.replayed)
        write_run(self.layout, self._run)

        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._queued_bytes = 0
        self._queued_items = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._run_jobs, name="record-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ handing over

    def trajectory(
        self,
        trajectory: Trajectory,
        *,
        step: int,
        dropped: str | None = None,
        advantage: float | None = None,
    ) -> None:
        """A finished trajectory, once its fate is known."""
        fate = Fate(step=step, dropped=dropped, advantage=advantage)
        num_bytes = trajectory.num_tokens * TOKEN.itemsize + _text_bytes(trajectory)
        self._offer("trajectory", num_bytes, lambda: self._chunks.append(trajectory, fate))

    def metrics(self, values: Mapping[str, Json]) -> None:
        """A line of metrics; `values` has a `step`."""
        assert "step" in values, "a line of metrics needs its step"
        line = {"launch": self._launch, "time_s": time.time(), **values}
        self._offer("metrics", 0, lambda: self._metrics.append(to_line(line)))

    def training(
        self,
        step: int,
        arrays: Mapping[str, NDArray[Any]],
        *,
        samples: Sequence[tuple[str, int]] = (),
    ) -> None:
        """What the trainer saw in a step, a value a token in each array.

        `samples` says whose tokens they are: (trajectory id, number of tokens), in array order.
        """
        columns = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        metadata = {"samples": to_line(samples).decode()}
        path = self.layout.training_step(step)
        num_bytes = sum(column.nbytes for column in columns.values())
        self._offer("training", num_bytes, lambda: write_columns(path, columns, metadata))

    def replayed(self, step: int, group_id: str, *, reuse: int, staleness: int) -> None:
        """A group that a step trained on again (`Replay` of the reader says what is meant)."""
        line = {
            "launch": self._launch,
            "step": step,
            "group_id": group_id,
            "reuse": reuse,
            "staleness": staleness,
        }
        self._offer("replayed", 0, lambda: self._replayed.append(to_line(line)))

    def summary(self, values: Mapping[str, Json]) -> None:
        """What the run came to. Its presence says that the run ended well."""
        line = to_line(dict(values))
        self._offer("summary", 0, lambda: write_whole(self.layout.summary, line))

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Return when all that was handed over before is on disk, or the deadline has passed.

        It is the one method that waits, so it belongs into a thread of its own.
        """
        is_written = threading.Event()
        with self._mutex:
            if not self._is_open:
                return
            for job in (_Job("sync", 0, self._sync), _Job("sync", 0, is_written.set)):
                self._queued_items += 1
                self._queue.put(job)
        is_written.wait(timeout_s)

    def resumed(self, counts: Mapping[str, Json]) -> None:
        """What became of attempts that lost processes had left; the newest counts replace others."""
        self._offer("run", 0, lambda: self._note_resumed(dict(counts)))

    def failed_elsewhere(self, kind: str, num_failed: int) -> None:
        """What other processes could not write into the run folder, in all."""
        if num_failed:
            self.failed[kind] = num_failed

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Write what is queued, seal the open chunk and let go of the folder.

        Past the deadline the rest counts as dropped and is written only as far as the process
        lives on. A second call does nothing.
        """
        with self._mutex:
            if not self._is_open:
                return
            self._is_open = False
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._mutex:
                self.dropped["closing"] += self._queued_items
            log.warning(
                "the record could not be written in time; the run folder lacks the rest",
                timeout_s=timeout_s,
                items=self._queued_items,
            )

    def _offer(self, kind: str, num_bytes: int, write: Callable[[], object]) -> None:
        with self._mutex:
            is_full = self._queued_items >= self._limits.queued_items or (
                num_bytes > 0
                and self._queued_bytes > 0
                and self._queued_bytes + num_bytes > self._limits.queued_bytes
            )
            if is_full or not self._is_open:
                self.dropped[kind] += 1
                return
            self._queued_items += 1
            self._queued_bytes += num_bytes
            self._queue.put(_Job(kind, num_bytes, write))

    # ------------------------------------------------------------------ the thread

    def _run_jobs(self) -> None:
        synced_s = time.monotonic()
        is_synced = True
        while True:
            try:
                job = self._queue.get(timeout=self._limits.sync_every_s)
            except queue.Empty:
                job = _NOTHING
            if job is None:
                break
            if job is not _NOTHING:
                self._do(job)
                is_synced = False
            if not is_synced and time.monotonic() - synced_s >= self._limits.sync_every_s:
                self._attempt("sync", self._sync)
                synced_s, is_synced = time.monotonic(), True
        self._attempt("seal", self._chunks.close)
        self._attempt("metrics", self._metrics.close)
        self._attempt("replayed", self._replayed.close)
        self._attempt("run", self._farewell)
        self._lock_file.close()

    def _do(self, job: _Job) -> None:
        self._attempt(job.kind, job.write)
        if self._chunks.is_full:
            self._attempt("seal", self._chunks.roll)
        with self._mutex:
            self._queued_items -= 1
            self._queued_bytes -= job.num_bytes

    def _attempt(self, kind: str, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the policy is: a record never ends a run
            self.failed[kind] += 1
            if self.failed[kind] == 1:
                log.warning("the record could not be written", kind=kind, error=repr(error))

    def _sync(self) -> None:
        self._chunks.sync()
        self._metrics.sync()
        self._replayed.sync()

    def _note_resumed(self, counts: dict[str, Json]) -> None:
        self._run = self._run.with_last(replace(self._run.launches[-1], resumed=counts))
        write_run(self.layout, self._run)

    def _farewell(self) -> None:
        launch = replace(
            self._run.launches[-1],
            ended_s=time.time(),
            dropped=dict(self.dropped),
            failed=dict(self.failed),
        )
        write_run(self.layout, self._run.with_last(launch))


def _text_bytes(trajectory: Trajectory) -> int:
    """About how much text a trajectory holds; enough to bound the queue."""
    turns = sum(
        len(turn.text) + len(turn.reasoning) + sum(len(result.text) for result in turn.results)
        for turn in trajectory.turns
    )
    return turns + sum(len(message.content) for message in trajectory.messages)


def _lock(layout: RunLayout) -> Any:
    file = layout.lock.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"{layout.root} is being written by another process; wait for it or choose another name"
        ) from None
    return file
