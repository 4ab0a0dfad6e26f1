"""One attempt's part in the journal: what is new is written down, what is known is gone by.

An attempt whose process was lost is played again from its start, in a fresh box, with the turns
that the journal knows in place of sampled ones. Its tool calls and replies really run, because that
is what makes box and environment what they were, and each answer is held against the old one.

Invariants
- No token that is known is sampled again, and none is written twice.
- Whatever differs from what is known raises `Diverged`: a context that was never seen is never
  sampled from, nor trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl.record.journal import Answer, JournaledAttempt, SampledTurn
from agentrl.record.journal_writer import JournalWriter
from agentrl.rollout.attempt import Attempt
from agentrl.rollout.tokens import TokenBuilder
from agentrl.types import Message, StopReason, ToolResult, Trajectory, Turn

SHOWN_CHARS = 80


class Diverged(Exception):
    """The text says what was answered, and what had been answered before."""


class Chronicle:
    def __init__(
        self,
        attempt: Attempt,
        *,
        journal: JournalWriter | None,
        past: JournaledAttempt | None,
        clock: Callable[[], float],
        started_s: float,
    ) -> None:
        """`journal` may be None: nothing is written then. `started_s` is wall-clock time."""
        self._attempt = attempt
        self._journal = journal
        self._past = past
        self._known = past.turns if past else ()
        self._clock = clock
        self._begun = clock()
        self.started_s = past.started_s if past else started_s
        self.continued = past.continued + 1 if past else 0

    @property
    def known_turn_tokens(self) -> tuple[int, ...]:
        return tuple(len(turn.ids) for turn in self._known)

    @property
    def seconds(self) -> float:
        """Spent on the attempt in all processes."""
        return self._clock() - self._begun + (self._past.seconds if self._past else 0.0)

    @property
    def earlier_tool_seconds(self) -> float:
        return self._past.tool_seconds if self._past else 0.0

    def known(self, turn: int) -> SampledTurn | None:
        return self._known[turn] if turn < len(self._known) else None

    def is_answer_known(self, turn: int) -> bool:
        known = self.known(turn)
        return known is not None and known.answer is not None

    def opened(self, ids: Sequence[int], messages: tuple[Message, ...]) -> None:
        attempt = self._attempt
        if self._past is not None:
            if list(ids) != list(self._past.prompt_ids):
                raise Diverged("the opening is another one")
            opening = replace(self._past, continued=self.continued)
        else:
            opening = JournaledAttempt(
                trajectory_id=attempt.trajectory_id,
                task_id=attempt.task.id,
                group_id=attempt.group_id,
                sibling=attempt.sibling,
                attempt=attempt.attempt,
                split=attempt.split,
                prompt_ids=ids,
                messages=messages,
                started_s=self.started_s,
            )
        if self._journal is not None:
            self._journal.opened(opening)

    def spoke(
        self, turn: int, tokens: TokenBuilder, said: Turn, cut: StopReason | None, tool_s: float
    ) -> None:
        """A turn was sampled, and nothing that it asks for has been done yet."""
        if self._journal is None or turn < len(self._known):
            return
        columns = tokens.turn_columns
        self._journal.turn(
            self._attempt.trajectory_id,
            turn,
            SampledTurn(
                ids=columns.ids,
                logprobs=columns.logprobs,
                policy_versions=columns.policy_versions,
                said=said,
                cut=cut,
            ),
            seconds=self.seconds,
            tool_seconds=tool_s,
        )

    def answered(self, turn: int, answer: Answer, tool_s: float) -> Answer:
        """Returns the answer that counts: the known one, with its own times, where there is one."""
        known = self.known(turn)
        if known is not None and known.answer is not None:
            _compare_answers(turn, answer, known.answer)
            return known.answer
        if self._journal is not None:
            self._journal.answer(
                self._attempt.trajectory_id,
                turn,
                answer,
                seconds=self.seconds,
                tool_seconds=tool_s,
            )
        return answer

    def ending(self, turn: int) -> None:
        """The conversation ends before this turn."""
        if turn < len(self._known):
            raise Diverged(f"the conversation ended before turn {turn}, which had been played")

    def ended(self, trajectory: Trajectory) -> None:
        if self._journal is not None:
            self._journal.end(trajectory)


def _compare_answers(turn: int, now: Answer, before: Answer) -> None:
    where = f"turn {turn}"
    _compare(f"{where}: the reply", _readable(now.reply), before.reply)
    _compare(f"{where}: the number of results", len(now.results), len(before.results))
    for new, old in zip(now.results, before.results, strict=True):
        _compare(f"{where}: {new.name}", _shown(new), _shown(old))
    _compare(f"{where}: the ids of the answer", list(now.ids), list(before.ids))


def _shown(result: ToolResult) -> str:
    return f"{result.status}: {_readable(result.text)}"


def _readable(text: str | None) -> str | None:
    """As the journal holds it: what is not valid Unicode is escaped."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _compare(what: str, now: object, before: object) -> None:
    if now != before:
        raise Diverged(
            f"{what}: {str(now)[:SHOWN_CHARS]!r}, where it had been {str(before)[:SHOWN_CHARS]!r}"
        )
