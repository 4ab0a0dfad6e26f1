"""Files that a run cannot do without, and what is said when a disk refuses them.

Most of a record may lack something, and says so. What a run goes on from may not: the coordinator's
log, checkpoints, a judge that was taught.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DiskFailed(Exception):
    """The message names the file and its disk, and says what to do."""


@contextmanager
def needed_on_disk(path: Path, *refusals: type[Exception]) -> Iterator[None]:
    """Inside, a file or folder is written: that the disk refuses it is `DiskFailed`.

    `refusals`: what writers raise then beside OSError.
    """
    refused: tuple[type[Exception], ...] = (OSError, *refusals)
    try:
        yield
    except refused as error:
        disk = next(p for p in (path, *path.parents) if p.is_mount())
        free_mib = shutil.disk_usage(disk).free >> 20
        raise DiskFailed(
            f"could not write {path}: {error}; {free_mib} MiB of the disk at {disk} are free; make "
            "room there, or mend it, and go on from the newest checkpoint with "
            "`agentrl train --resume`"
        ) from error
