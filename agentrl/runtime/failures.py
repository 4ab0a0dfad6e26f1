"""Why a run ends before its last step.

    RunFailed               told to the user as it is, without a traceback
    +-- StalledRun          nothing moved for too long
    +-- FailingEnv          too many attempts end in env_error or without a reward
    +-- FailingEngines      every engine breaks, again and again
    +-- NoSignal            too many steps had nothing to learn from
    +-- ProcessLost         a process died whose state only a checkpoint has
    StopRequested           a person asked the run to end

A bad rollout is none of these: it is data. A bug of ours is none of these either, and keeps its
traceback.
"""

from __future__ import annotations


class RunFailed(RuntimeError):
    """The message says what happened and what to do."""


class StalledRun(RunFailed):
    """The message names what was waited for, and since when."""


class FailingEnv(RunFailed):
    """The message holds one of the errors."""


class FailingEngines(RunFailed):
    """The message holds the newest error."""


class NoSignal(RunFailed):
    """Steps, one after another, whose groups all had equal rewards."""


class ProcessLost(RunFailed):
    """The run can go on from its newest checkpoint."""


class StopRequested(Exception):
    """Everything up to the last step is saved."""


def message_of(trace: str) -> str:
    """Of an error that is kept as text, with its traceback or without: the line that names it."""
    lines = trace.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in after if not line.startswith("    ")), "")


def in_short(error: BaseException) -> str:
    """The first line: Ray goes on at length, with advice that does not fit a process of ours."""
    return str(error).partition("\n")[0]
