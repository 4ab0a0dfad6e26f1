from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console

from agentrl import Env, Task, reward, tool
from agentrl.chat.make import make_chat
from agentrl.cli.player import Player
from agentrl.cli.stage import ROOMY
from agentrl.config.sections import ChatSection
from agentrl.models.tokenizer import byte_backend
from agentrl.rollout.local import ScriptedRollouts
from agentrl.types import Outcome, Trajectory, Turn


class Doubling(Env):
    system = "Double\x1b[31m it."
    max_turns = 4

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        return [Task("t", prompt="21")]

    @tool
    def double(self, number: str) -> str:
        """Twice the number."""
        return str(2 * int(number))

    async def reply(self, turn: Turn) -> str | None:
        return None if turn.text.isdigit() else "a number, please"

    @reward
    def right(self) -> float:
        return float(self.turns[-1].text == "42")


async def play(*lines: str) -> tuple[Trajectory, str]:
    typed = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    schemas = Doubling.definition().schemas
    out = io.StringIO()
    player = Player(Console(file=out, width=120), {tool.name: tool for tool in schemas}, read=read)
    chat = make_chat(ChatSection(), byte_backend(), schemas)
    (task,) = Doubling.tasks("train")
    played = await ScriptedRollouts(Doubling, chat, ROOMY).play(task, player.turns)
    player.show_last(played)
    return played, out.getvalue()


async def test_a_person_reads_what_a_model_would_read_and_plays() -> None:
    played, shown = await play("let me see", "/double 21", "42")
    assert played.reward == 1.0
    assert [turn.text for turn in played.turns] == ["let me see", "", "42"]
    assert played.turns[1].calls[0].arguments == {"number": "21"}
    assert "double  {number}, or plain text: Twice the number." in shown
    assert r"Double\x1b[31m it." in shown
    assert shown.index("a number, please") < shown.index("result of double")


async def test_several_calls_of_a_turn() -> None:
    played, shown = await play("both:\\", '/double {"number": "1"}\\', "/double 2", "/nope")
    assert [call.name for call in played.turns[0].calls] == ["double", "double"]
    assert played.turns[0].text == "both:"
    assert [result.text for result in played.turns[0].results] == ["2", "4"]
    assert "no tool 'nope'" in shown


async def test_leaving_says_nothing_more() -> None:
    played, _ = await play()
    assert played.reward == 0.0
    assert {turn.text for turn in played.turns} == {""}


async def test_a_tool_that_breaks_is_shown_in_the_end() -> None:
    played, shown = await play("/double x")
    assert played.outcome is Outcome.ENV_ERROR
    assert "ValueError" in shown
