"""A person as the policy: shows what a model would read, and reads what it would say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.console import Console

from agentrl.chat.calls import read_call
from agentrl.env import Env
from agentrl.inspect.blocks import Block, Facts, Heading, Note, Passage, show, visible
from agentrl.inspect.trajectory import answers
from agentrl.schema import ToolSchema
from agentrl.types import ToolCall, Trajectory, Turn

HELP = """\
Type what the assistant says. A line that begins with / is a call: /TOOL ARGUMENTS, where the
arguments are a JSON object, or plain text for a tool that takes one text. End a line with \\ to
add more to the same turn. Ctrl-D says nothing more."""


class Player:
    """`turns` is a script for `ScriptedRollouts`; it runs in a thread and blocks on `read`."""

    def __init__(
        self,
        console: Console,
        tools: Mapping[str, ToolSchema],
        *,
        read: Callable[[str], str] = input,
    ) -> None:
        self._console = console
        self._tools = tools
        self._read = read
        self._num_shown = 0

    def turns(self, env: Env) -> Iterator[Turn]:
        self._show(self._opening(env))
        while True:
            for played in env.turns[self._num_shown :]:
                self._show(answers(played))
                self._num_shown += 1
            turn = self._read_turn()
            if turn is None:
                return
            yield turn

    def show_last(self, trajectory: Trajectory) -> None:
        """Answers that came when no further turn was asked for, and what went wrong."""
        for played in trajectory.turns[self._num_shown :]:
            self._show(answers(played))
        if trajectory.error:
            self._show([Passage("error", visible(trajectory.error))])

    def _opening(self, env: Env) -> Iterator[Block]:
        yield Note(HELP)
        if self._tools:
            yield Heading("tools")
            yield Facts(tuple((tool.name, _usage(tool)) for tool in self._tools.values()))
        for message in env.opening:
            yield Passage(f"\n{message.role}", visible(message.content))

    def _read_turn(self) -> Turn | None:
        """None when there is nothing more to be said."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        is_open = True
        while is_open:
            try:
                line = self._read("> ")
            except EOFError:
                return None
            is_open = line.endswith("\\")
            said = line.removesuffix("\\").rstrip() if is_open else line
            if said.startswith("/"):
                calls.append(read_call(said[1:], self._tools, str(len(calls))))
            else:
                texts.append(said)
        return Turn("\n".join(texts), calls)

    def _show(self, blocks: Iterator[Block] | list[Block]) -> None:
        show(blocks, self._console)


def _usage(tool: ToolSchema) -> str:
    parameters = ", ".join(tool.parameters.get("properties", {}))
    bare = ", or plain text" if tool.bare_parameter else ""
    return f"{{{parameters}}}{bare}: {tool.description}"
