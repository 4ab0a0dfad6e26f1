"""How a command fails: one clear message for what its user can mend, a traceback for the rest.

By the rule of the code base a ValueError raised by our own code says what a person gave and what
was wanted. A ValueError from anywhere else, numpy or an environment's own code, is a bug somewhere
and keeps its traceback. A SandboxError speaks of this machine, and says what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxes.sandbox import SandboxError

USAGE_ERROR = 2
"""Exit code of everything that is put right by calling the command differently."""

_OURS = ("agentrl", "sandboxes", "scheduler")


@contextmanager
def told_plainly() -> Iterator[None]:
    """Ends the program with code 2 and a message on stderr for expected errors."""
    try:
        yield
    except (ValueError, SandboxError) as error:
        if not is_expected(error):
            raise
        # Ray gives an error of a worker its own text, a traceback, and keeps the worker's as cause.
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


def is_expected(error: BaseException) -> bool:
    """Whether the message of an error is meant for the user as it is."""
    if isinstance(error, SandboxError):
        return True
    trace = error.__traceback__
    if not isinstance(error, ValueError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in _OURS
