"""The record of a run on disk: one writer, lazy readers, plain files.

Public: `RunWriter`, `RunReader`, `create_run_folder`, `RunLayout`, `Fate`, `IndexRow`.
"""

from agentrl.record.codec import Fate
from agentrl.record.index import IndexRow
from agentrl.record.layout import RunLayout, create_run_folder
from agentrl.record.reader import RunReader
from agentrl.record.writer import RunWriter, WriterLimits

__all__ = [
    "Fate",
    "IndexRow",
    "RunLayout",
    "RunReader",
    "RunWriter",
    "WriterLimits",
    "create_run_folder",
]
