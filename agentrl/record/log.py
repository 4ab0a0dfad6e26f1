"""The structured log: one JSON line an event in the run folder, readable lines for a person.

Everything that logs through structlog or the standard library comes here. A line of the file
holds whatever was logged (see `jsonl`), and a person is shown warnings and worse.

One process writes the file. Others keep their warnings as lines, which it repeats in its own log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from structlog.stdlib import ProcessorFormatter

from agentrl.record.jsonl import AppendFile, to_line

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


_IS_KNOWN = "agentrl_is_known"
"""Of a record: a person has seen its like."""


@contextmanager
def logging_to(
    path: Path,
    *,
    level: int = logging.INFO,
    terminal_level: int = logging.WARNING,
    print_line: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Inside, everything logged goes to the file at `path` and to `print_line` (default: stderr)."""
    _configure()
    show = print_line or _print_to_stderr
    file = _LogFile(path, show)
    handlers = [
        _handler(level, _json_line, file.write),
        _handler(terminal_level, _plain_line, show),
    ]
    handlers[1].addFilter(lambda record: not getattr(record, _IS_KNOWN, False))
    root = logging.getLogger()
    level_before = root.level
    root.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level_before)
        file.close()
        structlog.reset_defaults()


def keep_warnings(keep: Callable[[str], None]) -> None:
    """From now on, `keep` gets what this process logs at warning or worse: lines of JSON, each an
    event for `repeat`.

    All that it logs goes to stderr as before.
    """
    _configure()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(_handler(logging.WARNING, _json_line, keep))
    root.addHandler(_handler(logging.INFO, _plain_line, _print_to_stderr))


def repeat(event: Mapping[str, Any], *, process: str, is_known: bool) -> None:
    """Log what another process logged, as of when and where it did. `is_known`: a person has seen
    its like, and finds this one in the file."""
    logging.getLogger(event["logger"]).log(
        logging.getLevelNamesMapping()[event["level"].upper()],
        {**event, "process": process},
        # by these two a formatter knows that it gets an event and no text
        extra={"_logger": None, "_name": event["level"], _IS_KNOWN: is_known},
    )


def _configure() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class _LogFile:
    """That the disk refuses lines is shown to a person, once."""

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        self._path = path
        self._show = show
        self._file = AppendFile(path)
        self._is_whole = True

    def write(self, text: str) -> None:
        try:
            self._file.append(f"{text}\n".encode())
        except OSError as error:
            if self._is_whole:
                self._is_whole = False
                self._show(f"warning: {self._path} lacks some lines from here on: {error}")

    def close(self) -> None:
        self._file.close()


class _LineHandler(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except Exception:  # noqa: BLE001 - as the standard handlers do: report, never raise
            self.handleError(record)


def _handler(
    level: int, render: Callable[..., str], write: Callable[[str], object]
) -> logging.Handler:
    handler = _LineHandler(write)
    handler.setLevel(level)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[ProcessorFormatter.remove_processors_meta, render],
        )
    )
    return handler


def _json_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return to_line(dict(event)).decode().rstrip("\n")


def _plain_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """`warning: what happened (key=value ...)`, then a traceback if there is one."""
    fields = dict(event)
    level, text, trace = fields.pop("level"), fields.pop("event"), fields.pop("exception", "")
    for name in ("timestamp", "logger"):
        fields.pop(name, None)
    details = " ".join(f"{name}={value}" for name, value in fields.items())
    head = f"{level}: {text}" + (f" ({details})" if details else "")
    return f"{head}\n{trace}" if trace else head


def _print_to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
