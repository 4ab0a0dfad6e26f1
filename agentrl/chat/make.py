"""Chooses the chat format that a run file names."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from agentrl.chat.format import ChatFormat
from agentrl.chat.plain import PlainFormat
from agentrl.config.sections import ChatSection
from agentrl.schema import ToolSchema


def make_chat(
    section: ChatSection, tokenizer: Tokenizer, tools: Sequence[ToolSchema]
) -> ChatFormat:
    """A format for one environment's tools; raises ValueError when the tokenizer does not fit."""
    match section.format:
        case "plain":
            return PlainFormat(tokenizer, tools)
