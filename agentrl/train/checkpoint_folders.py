"""Where checkpoints lie: `checkpoints/step-000050/`, whole or not there at all.

A folder is filled under another name, flushed to disk, given a marker that lists its files and
sizes, and renamed. What a crash leaves behind is therefore never taken for a checkpoint, and
neither is a folder that was copied only in part. One of the same step is moved aside until the new
one is in its place, and stands for it meanwhile. Imports nothing heavy, so that a driver can look
for a checkpoint without loading torch.

Invariants
- One process writes below a root.
- The newest complete checkpoints and the best one are never removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.types import Json

FORMAT_VERSION = 1

_HEADER = "checkpoint.json"
_MARKER = "complete.json"
_WRITING = ".writing-"
_REPLACED = ".replaced-"
_NAME = re.compile(rf"(?:{re.escape(_REPLACED)})?step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """What a checkpoint says of itself."""

    step: int
    progress: Mapping[str, Json]
    """The run's own counters and cursors, as it gave them."""
    trainer: Mapping[str, Json]
    """Plain numbers of the trainer's state."""


@contextmanager
def new_checkpoint(root: Path, header: CheckpointHeader) -> Iterator[Path]:
    """Yields a folder to fill; it becomes the checkpoint of its step when the block ends well."""
    name = f"step-{header.step:06d}"
    _tidy(root)
    folder = root / f"{_WRITING}{name}"
    folder.mkdir(parents=True)
    try:
        yield folder
        content = {
            "format_version": FORMAT_VERSION,
            "step": header.step,
            "progress": header.progress,
            "trainer": header.trainer,
        }
        (folder / _HEADER).write_text(json.dumps(content, indent=1))
        (folder / _MARKER).write_text(json.dumps(_sizes(folder)))
        _flush(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    final, replaced = root / name, root / f"{_REPLACED}{name}"
    if final.exists():
        # Saved before, left by a copy in part, or by a launch whose later steps were given up.
        final.rename(replaced)
    folder.rename(final)
    _flush_folder(root)
    if replaced.exists():
        shutil.rmtree(replaced)


def _tidy(root: Path) -> None:
    """Put right what a process that was killed left behind."""
    for written in root.glob(f"{_WRITING}*"):
        shutil.rmtree(written)
    for replaced in root.glob(f"{_REPLACED}*"):
        final = root / replaced.name.removeprefix(_REPLACED)
        if final.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(final)


def complete_checkpoints(root: Path) -> dict[int, Path]:
    """Step to folder, the oldest first."""
    found = {
        int(match[1]): folder
        for folder in sorted(root.glob("*"))  # what was replaced before what replaces it
        if (match := _NAME.fullmatch(folder.name)) and is_complete(folder)
    }
    return dict(sorted(found.items()))


def latest_checkpoint(root: Path) -> Path | None:
    return next(reversed(complete_checkpoints(root).values()), None)


def is_complete(folder: Path) -> bool:
    marker = folder / _MARKER
    return marker.is_file() and json.loads(marker.read_text()) == _sizes(folder)


def read_header(folder: Path) -> CheckpointHeader:
    if not is_complete(folder):
        raise ValueError(
            f"checkpoint {folder}: it is not complete (a file is missing or of another size than "
            f"{_MARKER} says); resume from another one"
        )
    content = json.loads((folder / _HEADER).read_text())
    version = content["format_version"]
    if version != FORMAT_VERSION:
        raise ValueError(
            f"checkpoint {folder}: format version {version}, wanted {FORMAT_VERSION}; resume with "
            "the version of agentrl that wrote it, or use its model as model.path of a new run"
        )
    return CheckpointHeader(
        step=content["step"], progress=content["progress"], trainer=content["trainer"]
    )


def prune_checkpoints(root: Path, *, keep: int, best_step: int | None) -> None:
    """Remove all but the newest `keep`, and the best."""
    for step, folder in list(complete_checkpoints(root).items())[:-keep]:
        if step != best_step:
            shutil.rmtree(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _MARKER
    }


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            _flush_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Makes the names in it durable, not only what the files hold."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
