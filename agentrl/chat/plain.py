"""The format of models made from scratch: as few ids as a conversation can have.

    <system>TEXT<end> <user>TEXT<end> <assistant>              rendered
    TEXT <call>NAME ARGUMENTS <call>NAME ARGUMENTS <end>       sampled
    <tool>TEXT<end> <tool>TEXT<end> <assistant>                rendered, one per call

(without the spaces). `<think>` and `</think>` may open a turn; calls are read only after the
reasoning ends. Such a model learns its tools from demonstrations, so their descriptions are in
the prompt only when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from agentrl.chat.calls import read_call, write_call
from agentrl.schema import ToolSchema
from agentrl.types import AssistantMessage, Message, ToolCall, ToolResult, Turn


class PlainFormat:
    """`ChatFormat` over the special tokens of the byte-level tokenizer."""

    scaffold_ids: tuple[int, ...] = ()

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[ToolSchema] = (),
        *,
        describe_tools: bool = False,
    ) -> None:
        # a copy of our own, on which special tokens in text are text
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True
        self._tools = {tool.name: tool for tool in tools}
        self._description = _describe(tools) if describe_tools else ""
        self._roles = {
            role: self._special(f"<{role}>") for role in ("system", "user", "assistant", "tool")
        }
        self._call = self._special("<call>")
        self._think = self._special("<think>")
        self._think_end = self._special("</think>")
        self._end = self._special("<end>")
        self.stop_ids: tuple[int, ...] = (self._end,)
        # a character of a byte-level vocabulary is a byte, and no text becomes a special token
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        self.max_token_chars = max(map(len, vocabulary))

    def render_start(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        if self._description and not any(message.role == "system" for message in messages):
            messages = [Message("system", ""), *messages]
        for message in messages:
            ids.append(self._roles[message.role])
            match message.role:
                case "assistant":
                    ids += self.render_assistant(Turn(message.content, message.calls))
                case "system":
                    text = "\n".join(filter(None, (message.content, self._description)))
                    ids += [*self._encode(text), self._end]
                case "user" | "tool":
                    ids += [*self._encode(message.content), self._end]
        return [*ids, self._roles["assistant"]]

    def render_results(self, results: Sequence[ToolResult]) -> list[int]:
        ids: list[int] = []
        for result in results:
            ids += [self._roles["tool"], *self._encode(result.text), self._end]
        return [*ids, self._roles["assistant"]]

    def render_reply(self, text: str) -> list[int]:
        return [self._roles["user"], *self._encode(text), self._end, self._roles["assistant"]]

    def render_assistant(self, turn: Turn) -> list[int]:
        ids: list[int] = []
        if turn.reasoning:
            ids += [self._think, *self._encode(turn.reasoning), self._think_end]
        ids += self._encode(turn.text)
        for call in turn.calls:
            ids += [self._call, *self._encode(write_call(call, self._tools))]
        return [*ids, self._end]

    def parse(self, ids: Sequence[int]) -> AssistantMessage:
        said = list(ids[:-1] if ids and ids[-1] == self._end else ids)
        reasoning: list[int] = []
        if self._think_end in said:
            cut = said.index(self._think_end)
            reasoning, said = said[:cut], said[cut + 1 :]
        elif self._think in said:
            cut = said.index(self._think)
            reasoning, said = said[cut:], said[:cut]
        text, *calls = self._split(said, self._call)
        return AssistantMessage(
            text=self._decode(text),
            reasoning=self._decode([i for i in reasoning if i != self._think]),
            calls=tuple(self._read_call(call, str(n)) for n, call in enumerate(calls)),
        )

    def _read_call(self, ids: list[int], call_id: str) -> ToolCall:
        return read_call(self._decode(ids), self._tools, call_id)

    @staticmethod
    def _split(ids: list[int], separator: int) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for i in ids:
            if i == separator:
                parts.append([])
            else:
                parts[-1].append(i)
        return parts

    def _encode(self, text: str) -> list[int]:
        # lone surrogates, as in names of files that are not UTF-8, cannot be encoded
        writable = text.encode("utf-8", "replace").decode("utf-8")
        return self._tokenizer.encode(writable, add_special_tokens=False).ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _special(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(
                f"chat.format plain: the tokenizer has no token {token!r}; this format is for "
                "models made with `model.from: scratch`"
            )
        return token_id


def _describe(tools: Sequence[ToolSchema]) -> str:
    """One line a tool: its name, what it does, and what it takes."""
    return "\n".join(
        f"{tool.name}: {' '.join(tool.description.split())} {json.dumps(tool.parameters)}"
        for tool in tools
    )
