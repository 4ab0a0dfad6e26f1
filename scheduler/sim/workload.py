"""Made-up agents: how many turns, how many tokens, which tools, how long, how often in vain.

An attempt is a semi-Markov process over turns. A hidden difficulty, shared in part by the attempts
of a group, makes turns longer, tools fail and the end come later; a streak of failures feeds on
itself; a few attempts fall into a loop of equal calls until their token budget is spent. Lengths
come out log-normal in the body with a heavy tail. No traces of real systems are published, so this
generator is our own and says nothing about a user's run: for that, simulate a recorded one.

Group `i` of seed `s` is the same whatever the scheduler does and whenever it starts: policies are
compared on common random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from typing import Protocol

import numpy as np
from numpy.random import Generator

from scheduler.events import ToolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """What a tool call will give back."""

    tool: str
    status: ToolStatus
    size_tokens: int
    seconds: float
    call_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    tokens: int
    tool: ToolPlan | None
    """None: the attempt ends with this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """All that one attempt will do. Only the simulator and clairvoyant rules may read it."""

    group_id: str
    sibling: int
    task_family: str
    prompt_tokens: int
    start_seconds: float
    """Until its box is ready and the first turn can be asked for."""
    turns: tuple[TurnPlan, ...]

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}/{self.sibling}"

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        """Of the whole attempt at its end."""
        returned = sum(turn.tool.size_tokens for turn in self.turns if turn.tool is not None)
        return self.prompt_tokens + self.tokens + returned


class Workload(Protocol):
    def group(self, index: int) -> tuple[AttemptPlan, ...]:
        """The attempts of the index-th group that starts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel:
    """Parameters of the process; see `PRESETS` for settings that mean something."""

    family: str
    turn_tokens: float
    """Median tokens of a turn at average difficulty."""
    turn_sigma: float
    """Spread of log tokens from turn to turn."""
    group_sigma: float
    """Spread of log difficulty between groups ..."""
    attempt_sigma: float
    """... and between attempts of one group."""
    more_turns: float
    """Chance of another turn at average difficulty, after a success."""
    failure: float
    """Chance that a tool fails at average difficulty, after a success."""
    signal: float = 1.0
    """How strongly difficulty and streaks show in tool results. 0: results tell nothing."""
    loop: float = 0.0
    """Chance per failed call of falling into a loop."""
    timeout: float = 0.02
    tool_seconds: float = 0.74
    tool_seconds_sigma: float = 0.8
    timeout_seconds: float = 30.0
    tool_tokens: float = 200.0
    tool_tokens_sigma: float = 0.9
    start_seconds: float = 0.5
    prompt_tokens: int = 500
    max_tokens: int = 40_960
    """Sampled tokens of an attempt."""
    max_context_tokens: int = 40_960
    """Prompt, sampled and tool tokens together."""
    max_turns: int = 200
    length_factor: float = 1.0
    """Scales the tokens of every turn."""


PRESETS: dict[str, AgentModel] = {
    "search": AgentModel(
        family="search", turn_tokens=300, turn_sigma=0.4, group_sigma=0.6, attempt_sigma=0.3,
        more_turns=0.58, failure=0.08, loop=0.002, tool_tokens=500, max_turns=30,
    ),
    "math": AgentModel(
        family="math", turn_tokens=1500, turn_sigma=0.4, group_sigma=0.85, attempt_sigma=0.4,
        more_turns=0.32, failure=0.10, loop=0.01, tool_tokens=60, tool_seconds=0.3, max_turns=16,
    ),
    "swe": AgentModel(
        family="swe", turn_tokens=170, turn_sigma=0.6, group_sigma=0.55, attempt_sigma=0.35,
        more_turns=0.935, failure=0.20, loop=0.004, tool_tokens=160, prompt_tokens=1500,
        max_turns=100, start_seconds=2.0,
    ),
    "tail_without_signal": AgentModel(
        family="tail", turn_tokens=700, turn_sigma=1.3, group_sigma=0.0, attempt_sigma=0.0,
        more_turns=0.75, failure=0.2, signal=0.0,
    ),
    "equal": AgentModel(
        family="equal", turn_tokens=500, turn_sigma=0.05, group_sigma=0.0, attempt_sigma=0.0,
        more_turns=1.0, failure=0.1, signal=0.0, timeout=0.0, max_turns=5,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWorkload:
    """Groups of attempts drawn from a model, optionally drifting in length."""

    model: AgentModel
    seed: int
    group_size: int = 16
    drift: float = 1.0
    """Length at the end of `drift_groups`, as a multiple of that at the start."""
    drift_groups: int = 1
    shuffles_tools: bool = False
    """Negative control: every attempt gets the tool results of a stranger, so they tell nothing."""

    def group(self, index: int) -> tuple[AttemptPlan, ...]:
        rng = np.random.default_rng((self.seed, index))
        share = min(1.0, index / self.drift_groups)
        factor = exp(log(self.drift) * share)
        model = replace(self.model, length_factor=self.model.length_factor * factor)
        group_difficulty = float(rng.normal(0.0, 1.0)) * model.group_sigma
        plans = tuple(
            draw_attempt(model, rng, f"g{index}", sibling, group_difficulty)
            for sibling in range(self.group_size)
        )
        if not self.shuffles_tools:
            return plans
        strangers = np.random.default_rng((self.seed, index, 1))
        return tuple(_with_results_of_strangers(plan, model, strangers) for plan in plans)


def _with_results_of_strangers(plan: AttemptPlan, model: AgentModel, rng: Generator) -> AttemptPlan:
    """Statuses and repetition from attempts of other groups; tokens, sizes and times stay."""
    results: list[ToolPlan] = []
    turns = []
    for turn in plan.turns:
        while turn.tool is not None and not results:
            difficulty = float(rng.normal()) * model.group_sigma
            stranger = draw_attempt(model, rng, "stranger", 0, difficulty)
            results = [other.tool for other in stranger.turns if other.tool is not None]
        if turn.tool is not None:
            other = results.pop(0)
            tool = replace(turn.tool, status=other.status, call_hash=other.call_hash)
            turn = replace(turn, tool=tool)
        turns.append(turn)
    return replace(plan, turns=tuple(turns))


_SPARE_TOKENS = 2001
"""Room for the largest tool result and one more token; with less left an attempt ends."""


def draw_attempt(
    model: AgentModel, rng: Generator, group_id: str, sibling: int, group_difficulty: float
) -> AttemptPlan:
    difficulty = group_difficulty + float(rng.normal()) * model.attempt_sigma
    turns: list[TurnPlan] = []
    left = min(model.max_tokens, model.max_context_tokens - model.prompt_tokens)
    streak = 0
    is_looping = False
    while True:
        shown = model.signal * (difficulty + 0.25 * min(streak, 4))
        scale = model.turn_tokens * model.length_factor * exp(0.6 * difficulty)
        tokens = int(scale * exp(model.turn_sigma * float(rng.normal())))
        tokens = min(max(1, tokens), left)
        left -= tokens
        goes_on = is_looping or rng.random() < _shifted(model.more_turns, 1.2 * shown)
        if not goes_on or left <= _SPARE_TOKENS or len(turns) + 1 == model.max_turns:
            turns.append(TurnPlan(tokens=tokens, tool=None))
            break
        status = _draw_status(model, rng, shown, is_looping)
        streak = 0 if status is ToolStatus.OK else streak + 1
        is_looping = is_looping or (streak > 0 and rng.random() < model.loop)
        call_hash = "loop" if is_looping else f"{len(turns)}"
        tool = _draw_tool(model, rng, status, call_hash)
        turns.append(TurnPlan(tokens=tokens, tool=tool))
        left -= tool.size_tokens
    return AttemptPlan(
        group_id=group_id,
        sibling=sibling,
        task_family=model.family,
        prompt_tokens=model.prompt_tokens,
        start_seconds=model.start_seconds * exp(0.4 * float(rng.normal())),
        turns=tuple(turns),
    )


def _shifted(probability: float, log_odds: float) -> float:
    """A probability moved by log odds; 0 and 1 stay."""
    if probability in (0.0, 1.0):
        return probability
    return 1.0 / (1.0 + (1.0 / probability - 1.0) * exp(-log_odds))


def _draw_status(model: AgentModel, rng: Generator, shown: float, is_looping: bool) -> ToolStatus:
    if rng.random() < model.timeout:
        return ToolStatus.TIMEOUT
    failure = 0.9 if is_looping else _shifted(model.failure, 1.5 * shown)
    return ToolStatus.ERROR if rng.random() < failure else ToolStatus.OK


def _draw_tool(model: AgentModel, rng: Generator, status: ToolStatus, call_hash: str) -> ToolPlan:
    seconds = model.tool_seconds * exp(model.tool_seconds_sigma * float(rng.normal()))
    size = model.tool_tokens * exp(model.tool_tokens_sigma * float(rng.normal()))
    return ToolPlan(
        tool="shell",
        status=status,
        size_tokens=max(1, min(int(size), 2000)),
        seconds=model.timeout_seconds if status is ToolStatus.TIMEOUT else seconds,
        call_hash=call_hash,
    )
