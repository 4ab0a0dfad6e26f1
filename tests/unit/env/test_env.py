"""What a class may declare, what it is told when it is wrong, and what an instance is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, cast

import pytest
from pydantic import Field

from agentrl import Env, Message, SandboxSpec, Task, ToolCall, ToolResult, Turn, reward, tool
from agentrl.env import NoSandbox, tasks_of


class Shop(Env):
    """A shop."""

    max_turns = 3
    stock: int = 5
    price: Annotated[float, Field(gt=0)] = 1.0
    note: str | None = None
    _secret: int = 1

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        yield Task(f"{split}-0", f"stock is {cls.stock}")

    @tool
    async def buy(self, item: Annotated[str, "What to buy"], count: int = 1) -> str:
        """Buy something."""
        return f"{count} {item}"

    @tool(serial=True)
    def pay(self) -> str:
        return "paid"

    @reward
    async def happy(self) -> float:
        return 1.0

    @reward(weight=0.5)
    def polite(self) -> float:
        return 1.0


def with_tasks(**names: Any) -> type[Env]:
    return type("Wrong", (Env,), {"tasks": classmethod(lambda cls, split: []), **names})


def test_a_definition_lists_tools_rewards_and_options_in_order() -> None:
    definition = Shop.definition()
    assert [(name, spec.serial) for name, spec in definition.tools.items()] == [
        ("buy", False),
        ("pay", True),
    ]
    assert definition.rewards == {"happy": 1.0, "polite": 0.5}
    assert list(definition.options) == ["stock", "price", "note"]
    assert not definition.has_demo


def test_options_are_validated_and_give_a_subclass() -> None:
    configured = Shop.configure({"stock": "7", "note": "x"})
    assert issubclass(configured, Shop)
    assert (configured.stock, configured.note, Shop.stock) == (7, "x", 5)
    assert next(iter(configured.tasks("train"))).prompt == "stock is 7"
    assert configured.configure({"price": 2}).stock == 7
    assert Shop.configure({}) is Shop


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stok": 1}, "did you mean 'stock'"),
        ({"stock": "many"}, "option stock: got 'many'"),
        ({"price": 0}, "option price: got 0"),
        ({"_secret": 1}, "no option '_secret'"),
        ({"max_turns": 1}, "no option 'max_turns'"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shop.configure(options)


def unannotated(self: Any, cmd) -> str:  # the mistake under test
    return ""


def variadic(self: Any, *cmd: str) -> str:
    return ""


def fine(self: Any) -> float:
    return 0.0


def unresolvable(self: Any, cmd: Missing) -> str:  # noqa: F821  # the mistake under test
    return ""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"t": tool(unannotated)}, "parameter 'cmd' has no type annotation"),
        ({"t": tool(variadic)}, r"\*cmd has no schema"),
        ({"t": tool(unresolvable)}, "cannot be resolved"),
        ({"finish": fine}, "finish is reserved"),
        ({"turns": 3}, "turns is reserved"),
        ({"__init__": fine}, "put set-up in start"),
        ({"start": tool(lambda self: "")}, "needs a name of its own"),
        ({"tasks": lambda self: []}, "@classmethod"),
    ],
)
def test_a_wrong_definition_is_refused_when_the_class_is_used(
    names: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        with_tasks(**names).definition()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"max_turns": "3"}, r"Wrong.max_turns is '3'; wanted an integer"),
        ({"max_turns": 0}, r"Wrong.max_turns is 0; wanted an integer of at least 1"),
        ({"system": 5}, r"Wrong.system is 5; wanted a text or None"),
        ({"sandbox_spec": SandboxSpec}, r"Wrong.sandbox_spec is .*wanted a SandboxSpec, as in"),
        ({"sandbox_spec": {"image": "x"}}, r"Wrong.sandbox_spec is .*wanted a SandboxSpec, as in"),
        ({"look": classmethod(tool(fine))}, r"Wrong.look: .* a method with `self`"),
        ({"look": staticmethod(tool(fine))}, r"Wrong.look: .* a method with `self`"),
        ({"__annotations__": {"shape": object.__new__}, "shape": 1}, r"Wrong.shape: no value"),
        ({"__annotations__": {"shape": "list["}, "shape": 1}, "cannot be resolved"),
    ],
)
def test_an_unfit_attribute_is_refused_when_the_class_is_used(
    names: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        with_tasks(**names).definition()


@pytest.mark.parametrize("mark", [tool, reward])
@pytest.mark.parametrize("marked", ["name", 2.0, staticmethod(fine), classmethod(fine)])
def test_only_a_method_can_be_marked(mark: Any, marked: Any) -> None:
    with pytest.raises(ValueError, match=rf"@{mark.__name__} got .*wanted a method .*@"):
        mark(marked)


def test_a_weight_must_be_a_number() -> None:
    with pytest.raises(ValueError, match=r"Wrong.right: weight='x'; wanted a number"):
        with_tasks(right=reward(weight=cast("Any", "x"))(lambda self: 1.0)).definition()


def test_what_is_given_is_a_number_or_an_error_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        Shop(Task("t", "p")).give(cast("Any", "much"))


def test_tasks_must_be_there() -> None:
    with pytest.raises(ValueError, match="has no tasks"):
        type("Empty", (Env,), {}).definition()


def test_tasks_must_take_a_split() -> None:
    with pytest.raises(ValueError, match=r"Wrong.tasks: .*; wanted tasks\(cls, split\)"):
        with_tasks(tasks=classmethod(lambda cls: [])).definition()


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (None, "returned None; wanted a list of Task"),
        ([{"id": "1"}], "has {'id': '1'} in it; wanted a Task"),
    ],
)
def test_tasks_must_be_tasks(tasks: Any, told: str) -> None:
    wrong = with_tasks(tasks=classmethod(lambda cls, split: tasks))
    with pytest.raises(ValueError, match=rf"Wrong.tasks\('train'\) {told}"):
        list(tasks_of(wrong, "train"))


@pytest.mark.parametrize(
    ("given", "told"),
    [({"id": 3}, "Task.id is 3; wanted a text"), ({"id": "3", "prompt": None}, "Task.prompt is")],
)
def test_a_task_is_made_of_text(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Task(**given)


def test_group_members_share_task_rng_and_nothing_else() -> None:
    task = Task("t")
    first, second = (Shop(task, run_seed=1, sibling=s) for s in (0, 1))
    retry = Shop(task, run_seed=1, sibling=0, attempt=1)
    assert first.task_rng.random() == second.task_rng.random() == retry.task_rng.random()
    assert len({env.rng.random() for env in (first, second, retry)}) == 3
    later = Shop(task, run_seed=1, epoch=1)
    assert later.task_rng.random() == Shop(task, run_seed=1).task_rng.random()
    assert later.rng.random() != Shop(task, run_seed=1).rng.random()
    assert Shop(task, run_seed=2).task_rng.random() != Shop(task, run_seed=1).task_rng.random()


def test_messages_are_the_opening_and_all_turns() -> None:
    env = Shop(Task("t"))
    env.opening = (Message("user", "hello"),)
    call = ToolCall("buy", {"item": "tea"}, "0")
    env.turns = [
        Turn("wait", (call,), results=(ToolResult(call_id="0", name="buy", text="1 tea"),)),
        Turn("here", reply="thanks"),
    ]
    assert env.messages == [
        Message("user", "hello"),
        Message("assistant", "wait", calls=(call,)),
        Message("tool", "1 tea", call_id="0", name="buy"),
        Message("assistant", "here"),
        Message("user", "thanks"),
    ]


def test_credit_belongs_to_the_turn_being_played() -> None:
    env = Shop(Task("t"))
    env.turns = [Turn("a"), Turn("b")]
    env.give(0.5)
    env.give(-1, "slow")
    assert [(c.turn, c.name, c.value) for c in env.ledger.credits] == [
        (1, "turn", 0.5),
        (1, "slow", -1),
    ]


def test_a_missing_box_says_what_to_do() -> None:
    with pytest.raises(NoSandbox, match="set `sandbox_spec`"):
        _ = Shop(Task("t")).sandbox


@pytest.mark.slow
def test_the_public_package_loads_neither_torch_nor_ray() -> None:
    code = "import agentrl, sys; sys.exit(any(m in sys.modules for m in ('torch', 'ray')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_system_message_and_a_number_of_turns_may_be_properties() -> None:
    class Computed(Env):
        @classmethod
        def tasks(cls, split: str) -> Iterator[Task]:
            yield Task("a")

        @property
        def system(self) -> str:  # type: ignore[override]
            return f"about {self.task.id}"

        @cached_property
        def max_turns(self) -> int:  # type: ignore[override]
            return 3

    Computed.definition()
