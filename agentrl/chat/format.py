"""What turns messages into token ids, and sampled ids into a message.

A format only ever renders what is *new*: the opening, the results of a turn's calls, a reply. The
ids a model has seen or sampled are kept by the token builder and never rendered again, so a
format cannot change the past. One instance belongs to one environment's tools.

Invariants
- Text never becomes a special token, whoever wrote it.
- `render_results` and `render_reply` begin where the sampled stop id left off, and end where the
  assistant's next turn begins.
- `parse` takes any ids at all: what cannot be read becomes a call with an `error`, or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentrl.types import AssistantMessage, Message, ToolResult, Turn


class ChatFormat(Protocol):
    stop_ids: tuple[int, ...]
    """Sampling one of these ends a turn; it is part of the turn."""
    scaffold_ids: tuple[int, ...]
    """What the template puts between a stop id and the next message, such as a newline."""
    max_token_chars: int
    """No id stands for more characters of a text than this."""

    def render_start(self, messages: Sequence[Message]) -> list[int]:
        """The opening, up to where the assistant's first turn begins."""
        ...

    def render_results(self, results: Sequence[ToolResult]) -> list[int]:
        """The answers to all calls of a turn, in call order."""
        ...

    def render_reply(self, text: str) -> list[int]:
        """The answer to a turn without calls."""
        ...

    def render_assistant(self, turn: Turn) -> list[int]:
        """The ids a model would have sampled to say this, the stop id included."""
        ...

    def parse(self, ids: Sequence[int]) -> AssistantMessage:
        """What sampled ids say. Call ids are the positions of the calls in the turn."""
        ...
