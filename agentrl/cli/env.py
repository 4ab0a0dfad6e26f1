"""`agentrl env`: list, check, show and play environments, with real tools and real boxes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentrl.cli.errors import told_plainly
from sandboxes import BackendName

if TYPE_CHECKING:
    from agentrl.env import Env
    from agentrl.rollout.check import EnvReport
    from agentrl.rollout.local import Script
    from agentrl.types import Trajectory

app = typer.Typer(no_args_is_help=True, help="List, check, show and play environments.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="ENV", help="An installed name, pkg.module:Class, or path/to/file.py:Class."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="OPTION=VALUE", help="Set an option of the environment; many times."
    ),
]
Number = Annotated[int, typer.Option("--task", help="Number of the task in its split.", min=0)]
SplitOption = Annotated[Literal["train", "eval"], typer.Option("--split", help="Which tasks.")]
BackendOption = Annotated[
    BackendName,
    typer.Option("--backend", help="Where tools run; subprocess isolates nothing."),
]

INTERRUPTED = 130


@app.callback()
def env() -> None:
    """List, check, show and play environments."""


@app.command("list")
def list_() -> None:
    """Environments known by a short name, with their options."""
    from rich.console import Console

    from agentrl.inspect.blocks import Sheet, show
    from agentrl.registry import EnvRef, installed_envs

    with told_plainly():
        rows = []
        for name, point in installed_envs().items():
            options = EnvRef(name=name).load().definition().options
            rows.append((name, point.value, ", ".join(options) or "-"))
        show([Sheet(("name", "class", "options"), tuple(rows))], Console())


@app.command()
def check(
    name: Name,
    options: Options = None,
    tasks: Annotated[int, typer.Option(help="Tasks of each split to play.", min=1)] = 4,
    backend: BackendOption = "auto",
) -> None:
    """Prove that an environment can teach: its demo() must score, and saying nothing must not.

    Exit code 1 when something is wrong with it.
    """
    from rich.console import Console

    from agentrl.cli.stage import load_env, staged
    from agentrl.inspect.blocks import Facts, Note, number, show, visible
    from agentrl.rollout.check import check_env
    from agentrl.rollout.judge_expert import expert_roles

    async def run(env_class: type[Env]) -> EnvReport:
        async with staged(env_class, backend) as stage:
            return await check_env(
                env_class,
                stage.chat,
                stage.limits,
                tasks_per_split=tasks,
                sandboxes=stage.pool,
                roles=expert_roles(env_class),
            )

    with told_plainly():
        report = asyncio.run(run(load_env(name, options or [])))
    facts = Facts(
        (
            ("env", report.env),
            ("tasks played", str(report.num_tasks)),
            ("demo() earns", number(report.demo_reward)),
            ("saying nothing earns", number(report.empty_reward)),
            ("tools", ", ".join(tool.name for tool in report.tools) or "none"),
        )
    )
    problems = [Note(f"problem: {visible(problem)}") for problem in report.problems]
    show([facts, *problems, Note("ok" if report.ok else f"{len(problems)} problem(s)")], Console())
    if not report.ok:
        raise SystemExit(1)


@app.command()
def demo(
    name: Name,
    options: Options = None,
    number: Number = 0,
    split: SplitOption = "train",
    backend: BackendOption = "auto",
) -> None:
    """Play an environment's own demonstration of a task, and print it turn by turn."""
    from rich.console import Console

    from agentrl.cli.stage import load_env
    from agentrl.inspect.blocks import show
    from agentrl.inspect.trajectory import conversation, score

    with told_plainly():
        env_class = load_env(name, options or [])
        if not env_class.definition().has_demo:
            raise ValueError(f"{env_class.__name__} has no demo()")
        played = asyncio.run(_play(env_class, lambda env: env.demo(), number, split, backend))
    show([*conversation(played), score(played)], Console())


@app.command()
def play(
    name: Name,
    options: Options = None,
    number: Number = 0,
    split: SplitOption = "train",
    backend: BackendOption = "auto",
) -> None:
    """Be the policy yourself: read what a model would read, and answer or call tools."""
    from rich.console import Console

    from agentrl.cli.player import Player
    from agentrl.cli.stage import load_env
    from agentrl.inspect.blocks import show
    from agentrl.inspect.trajectory import score

    console = Console()
    # not closed after Ctrl-C: closing waits for the thread that waits for a line
    runner = asyncio.Runner()
    with told_plainly():
        env_class = load_env(name, options or [])
        player = Player(console, {tool.name: tool for tool in env_class.definition().schemas})
        try:
            played = runner.run(_play(env_class, player.turns, number, split, backend))
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
    runner.close()
    player.show_last(played)
    show([score(played)], console)


async def _play(
    env_class: type[Env],
    script: Script,
    number: int,
    split: Literal["train", "eval"],
    backend: BackendName,
) -> Trajectory:
    from agentrl.cli.stage import staged, task_at

    task = task_at(env_class, number, split)
    async with staged(env_class, backend) as stage:
        return await stage.play(task, script, split)
