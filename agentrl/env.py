"""An environment: one Python class that says what the tasks are, what tools do and what is good.

    class Sums(Env):
        @classmethod
        def tasks(cls, split): ...
        @tool
        async def calc(self, expression: str) -> str: ...
        @reward
        async def exact(self) -> float: ...

Every rollout gets a fresh instance and one asyncio task, so state is simply `self`. The runtime
owns the loop and the tokens; an environment sees messages and turns. Methods a user writes may be
`def` or `async def`: plain ones run in a thread of their own and may block, async ones must not. A
plain method that its time-out ended goes on in its thread; one that never returns keeps it.

Invariants
- A definition that cannot work (a tool without annotations, a reserved name, no `tasks`) is a
  `ValueError` when the class is first used, not when a rollout reaches the mistake.
- `task_rng` is equal in all members of a group, `rng` in none.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar, get_origin, get_type_hints, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from agentrl.judging import Question, Roles, Verdict
from agentrl.schema import UNRESOLVED, ToolSchema, tool_schema
from agentrl.types import Json, Judgement, Message, Task, Turn
from sandboxes.sandbox import Sandbox
from sandboxes.spec import SandboxSpec

Method = TypeVar("Method", bound=Callable[..., Any])


class ToolError(Exception):
    """Raise it in a tool: the text is the result of the call, and the rollout goes on."""


class NoSandbox(RuntimeError):
    """`self.sandbox` was used by a rollout that has no box."""


def seed_of(*parts: str | int) -> int:
    """A 63-bit seed from what identifies something; equal on every machine and in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def in_epoch(epoch: int, *parts: str | int) -> tuple[str | int, ...]:
    """Parts of a seed that is another one each time that a run comes to the same task again."""
    return (*parts, f"epoch {epoch}") if epoch else parts


# ------------------------------------------------------------------------------- declarations


@overload
def tool(function: Method) -> Method: ...
@overload
def tool(*, serial: bool = False) -> Callable[[Method], Method]: ...
def tool(function: Any = None, *, serial: bool = False) -> Any:
    """Let the policy call this method. `serial=True`: never beside another call of its turn.

    Others of a turn run beside each other, 32 of them at once; what waits is not timed yet.
    """

    def mark(method: Any) -> Any:
        _refuse_unmarkable(method, "tool", "@tool or @tool(serial=True)")
        method.agentrl_tool = serial
        return method

    return mark if function is None else mark(function)


@overload
def reward(function: Method) -> Method: ...
@overload
def reward(*, weight: float = 1.0) -> Callable[[Method], Method]: ...
def reward(function: Any = None, *, weight: float = 1.0) -> Any:
    """Score the finished rollout with this method; None says that it cannot be scored."""

    def mark(method: Any) -> Any:
        _refuse_unmarkable(method, "reward", "@reward or @reward(weight=2.0)")
        method.agentrl_reward = weight
        return method

    return mark if function is None else mark(function)


def _refuse_unmarkable(method: Any, name: str, wanted: str) -> None:
    """A mark on what is no method would be lost, or be an error that names neither."""
    if not callable(method) or isinstance(method, staticmethod | classmethod):
        raise ValueError(f"@{name} got {method!r}; wanted a method with `self`, below {wanted}")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    schema: ToolSchema
    serial: bool


@dataclass(frozen=True, slots=True)
class EnvDefinition:
    """What a class declares, checked."""

    tools: Mapping[str, ToolSpec]
    rewards: Mapping[str, float]
    """Method name to weight."""
    options: Mapping[str, TypeAdapter[Any]]
    has_demo: bool

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(spec.schema for spec in self.tools.values())


# ------------------------------------------------------------------------------------- ledger


@dataclass(frozen=True, slots=True)
class Credit:
    turn: int
    name: str
    value: float


@dataclass(slots=True)
class Ledger:
    """What an environment said of its own rollout; the runtime reads it."""

    credits: list[Credit] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    num_unanswered: int = 0
    """Questions that a judge has not answered yet: their time is not the environment's."""
    is_finished: bool = False


# ---------------------------------------------------------------------------------------- env


class Env:
    """Base class of all environments. Annotated class attributes with defaults are options."""

    system: str | None = None
    """What opens each conversation, before that which `start()` returns; None: nothing does."""
    max_turns: int = 1
    """Policy calls of one rollout; `start()` may set another number on `self`."""
    sandbox_spec: SandboxSpec | None = None
    """The box of a rollout; None: no box is made."""
    replayable: bool = False
    """Whether `start()`, tools and `reply()` may be called again with the same arguments, to bring a
    rollout whose process was lost back to where it was, in a fresh box. True when all they change is
    in `self` and the box, and they answer by nothing but these, the task and the seeds. A rollout
    that is answered otherwise than before is started anew. False: it always is."""

    # -- what a user writes

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        """The problems of a split (`train`, `eval`), in a fixed order; may be endless."""
        raise NotImplementedError

    @classmethod
    def sandbox_for(cls, task: Task) -> SandboxSpec | None:
        """The box of one task; for an image or files of its own."""
        return cls.sandbox_spec

    async def start(self) -> str | list[Message]:
        """The first user message, or a whole opening."""
        return self.task.prompt

    async def reply(self, turn: Turn) -> str | None:
        """The answer to a turn without calls; None ends the rollout."""
        return None

    async def close(self) -> None:
        """Let go of what `start()` took. The box is not the environment's to close."""

    def demo(self) -> Iterable[Turn]:
        """Expert turns, asked for after `start()`; each is played before the next is asked for.

        Turns may carry the `results` that their calls will have: supervised warm-up then need
        not run the tools, and `agentrl env check` proves that they are the real ones.
        """
        return ()

    @classmethod
    def judge_questions(cls, rng: random.Random) -> Iterator[Question]:
        """Endless: what a judge may be asked, so that one made from scratch can be taught.

        Each is answered by `expert_verdict`. Show good and bad material alike, and all that a
        policy in training may come up with.
        """
        return iter(())

    @classmethod
    def expert_verdict(cls, question: Question) -> Verdict | None:
        """The right answer, where a rule knows it; None where only a judge does.

        It teaches judges, and stands in for them in `agentrl env check` and warm-up.
        """
        return None

    # -- what a user is given

    def __init__(
        self,
        task: Task,
        *,
        run_seed: int = 0,
        sibling: int = 0,
        attempt: int = 0,
        epoch: int = 0,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.task = task
        self.turns: list[Turn] = []
        """Played so far; the last one is the turn being played."""
        self.opening: tuple[Message, ...] = ()
        self.roles = Roles()
        self.ledger = Ledger()
        self.box = sandbox
        self._seed = in_epoch(epoch, run_seed, task.id, sibling, attempt)

    @cached_property
    def task_rng(self) -> random.Random:
        """Equal for all members of a group: draw what belongs to the task from it."""
        return random.Random(seed_of(*self._seed[:2]))

    @cached_property
    def rng(self) -> random.Random:
        """Another one for each attempt, also when a run comes to the task again."""
        return random.Random(seed_of(*self._seed))

    @property
    def sandbox(self) -> Sandbox:
        """The box of this rollout. Raises `NoSandbox` when it has none."""
        if self.box is None:
            raise NoSandbox(
                f"{type(self).__name__} has no box here; set `sandbox_spec` or `sandbox_for` to get one"
            )
        return self.box

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        messages = list(self.opening)
        for turn in self.turns:
            messages.append(Message("assistant", turn.text, calls=tuple(turn.calls)))
            for result in turn.results:
                messages.append(
                    Message("tool", result.text, call_id=result.call_id, name=result.name)
                )
            if turn.reply is not None:
                messages.append(Message("user", turn.reply))
        return messages

    def give(self, value: float, name: str = "turn") -> None:
        """Reward the turn being played."""
        self.ledger.credits.append(Credit(max(len(self.turns) - 1, 0), name, float(value)))

    def finish(self, reason: str = "done") -> None:
        """End the rollout after this turn; reasons are counted as metrics."""
        self.ledger.is_finished = True
        self.metric(f"finish/{reason}", 1.0)

    def metric(self, name: str, value: float) -> None:
        """A number to record with the trajectory; it is no part of the reward."""
        self.ledger.metrics[name] = float(value)

    # -- what the runtime asks of a class

    _definition: ClassVar[EnvDefinition]

    @classmethod
    def definition(cls) -> EnvDefinition:
        """What the class declares. Raises ValueError for one that cannot work."""
        if "_definition" not in vars(cls):
            cls._definition = _define(cls)
        return cls._definition

    @classmethod
    def configure(cls, options: Mapping[str, Json]) -> type[Self]:
        """A subclass with these options. Raises ValueError for unknown or unfit ones."""
        known = cls.definition().options
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                raise ValueError(
                    f"{cls.__name__} has no option {name!r}{nearest(name, known)}; "
                    f"its options: {', '.join(known) or 'none'}"
                )
            try:
                values[name] = known[name].validate_python(value)
            except ValidationError as error:
                problems = "; ".join(problem["msg"] for problem in error.errors())
                raise ValueError(
                    f"{cls.__name__}: option {name}: got {value!r}: {problems}"
                ) from error
        if not values:
            return cls
        names = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
        return type(cls.__name__, (cls,), {**names, **values})


def tasks_of(env_class: type[Env], split: str) -> Iterator[Task]:
    """The tasks of a split. Raises ValueError for what is none."""
    where = f"{env_class.__name__}.tasks({split!r})"
    tasks = env_class.tasks(split)
    if not isinstance(tasks, Iterable):
        raise ValueError(f"{where} returned {tasks!r}; wanted a list of Task, or to yield them")
    for task in tasks:
        if not isinstance(task, Task):
            raise ValueError(f"{where} has {task!r} in it; wanted a Task, as in `Task('1', 'go')`")
        yield task


def nearest(name: str, known: Iterable[str]) -> str:
    """The part of an error that names what was probably meant."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# --------------------------------------------------------------------------------- definition

_WRITTEN = {
    "system",
    "max_turns",
    "sandbox_spec",
    "replayable",
    "tasks",
    "sandbox_for",
    "start",
    "reply",
    "close",
    "demo",
    "judge_questions",
    "expert_verdict",
}
"""What a subclass may redefine."""
_GIVEN = {"task", "turns", "opening", "roles", "ledger", "box", "__init__"} | {
    name for name in vars(Env) if not name.startswith("_")
} - _WRITTEN
"""What it may not: the runtime relies on it."""


def _define(cls: type[Env]) -> EnvDefinition:
    layers = [layer for layer in reversed(cls.__mro__) if layer not in Env.__mro__]
    declared = {name: None for layer in layers for name in vars(layer)}
    for name in declared:
        if name in _GIVEN:
            raise ValueError(
                f"{cls.__name__}.{name} is reserved: agentrl gives it to every environment; "
                + ("put set-up in start()" if name == "__init__" else "choose another name")
            )
    if not isinstance(inspect.getattr_static(cls, "tasks"), classmethod):
        raise ValueError(f"{cls.__name__}.tasks must be decorated with @classmethod")
    if "tasks" not in declared:
        raise ValueError(f"{cls.__name__} has no tasks; add `@classmethod def tasks(cls, split)`")
    try:
        inspect.signature(cls.tasks).bind("train")
    except TypeError as error:
        raise ValueError(f"{cls.__name__}.tasks: {error}; wanted tasks(cls, split)") from error
    refuse_unfit_attributes(cls, cls.__name__)
    tools, rewards = {}, {}
    for name in declared:
        method = getattr(cls, name)
        marks = [m for m in ("agentrl_tool", "agentrl_reward") if hasattr(method, m)]
        if not marks:
            continue
        if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod):
            raise ValueError(f"{cls.__name__}.{name}: a tool or reward is a method with `self`")
        if name in _WRITTEN or len(marks) == 2:
            raise ValueError(f"{cls.__name__}.{name}: a tool or reward needs a name of its own")
        if marks == ["agentrl_tool"]:
            tools[name] = ToolSpec(tool_schema(method, cls.__name__), method.agentrl_tool)
        else:
            weight = method.agentrl_reward
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(
                    f"{cls.__name__}.{name}: weight={weight!r}; wanted a number, as in "
                    "@reward(weight=2.0)"
                )
            rewards[name] = float(weight)
    return EnvDefinition(
        tools=tools,
        rewards=rewards,
        options=_options(cls, layers),
        has_demo="demo" in declared,
    )


def refuse_unfit_attributes(env: Env | type[Env], owner: str) -> None:
    """Raises ValueError. Also `start()` may set them, so an instance is asked again."""
    wanted: dict[str, tuple[Any, str]] = {
        "system": (str | None, "a text or None"),
        "max_turns": (int, "an integer of at least 1"),
        "sandbox_spec": (SandboxSpec | None, "a SandboxSpec, as in `SandboxSpec()`, or None"),
    }
    for name, (kind, words) in wanted.items():
        value = getattr(env, name)
        if isinstance(value, property | cached_property) and name != "sandbox_spec":
            continue  # of each instance, which is asked itself
        if not isinstance(value, kind) or (name == "max_turns" and value < 1):
            raise ValueError(f"{owner}.{name} is {value!r}; wanted {words}")


def _options(cls: type[Env], layers: list[type]) -> dict[str, TypeAdapter[Any]]:
    annotated = [
        name
        for layer in layers
        for name in inspect.get_annotations(layer)
        if name not in _WRITTEN and not name.startswith("_") and hasattr(cls, name)
    ]
    if not annotated:
        return {}
    try:
        hints = get_type_hints(cls, include_extras=True)
    except UNRESOLVED as error:
        raise ValueError(f"{cls.__name__}: an option's type cannot be resolved: {error}") from error
    options: dict[str, TypeAdapter[Any]] = {}
    for name in annotated:
        if hints[name] is ClassVar or get_origin(hints[name]) is ClassVar:
            continue
        try:
            options[name] = TypeAdapter(hints[name])
        except PydanticUserError as error:
            raise ValueError(
                f"{cls.__name__}.{name}: no value of a run file can be {hints[name]!r}; an annotated "
                "attribute is an option, so choose another type or leave its annotation out"
            ) from error
    return options
