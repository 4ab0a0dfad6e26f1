"""`agentrl check`: would this run file train here? Everything but the training.

Each part of a run is really made once: the environment's first tasks, the model and its trainer,
a box, and one attempt that says nothing, which shows that prompts fit the context.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from agentrl.cli.errors import USAGE_ERROR, is_expected, told_plainly
from agentrl.cli.options import Overrides, RunFile

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.env import Env
    from agentrl.models.load import LoadedModel

NUM_TASKS = 3
"""Tasks of the training split that are looked at and opened."""
TRAINING_BYTES = 16
"""Of one parameter in float32 training: weight, gradient, and two moments of AdamW."""
GIB = 1024**3

Say = Callable[[str], None]


class Checklist:
    """Prints one line an item, and knows whether all went well."""

    def __init__(self) -> None:
        self.has_failed = False

    @contextmanager
    def item(self, name: str) -> Iterator[Say]:
        """What the body says is printed after `ok`; what it raises for the user, after `FAIL`."""
        said: list[str] = []
        try:
            yield said.append
        except Exception as error:
            if not is_expected(error):
                raise
            self.has_failed = True
            print(f"FAIL  {name:<9} {error}")
        else:
            first, *more = said
            print(f"ok    {name:<9} {first}")
            for line in more:
                print(f"{'':<15} {line}")


def check(config: RunFile, overrides: Overrides = None) -> None:
    """Look for everything that would stop a run, without training.

    Exit code 2, with the reasons, when something would.
    """
    from agentrl.config.load import load_config

    with told_plainly():
        loaded = load_config(config, overrides or [])
    checklist = Checklist()
    print(f"ok    {'config':<9} {config}")
    env_class = _check_env(checklist, loaded)
    model = _check_model(checklist, loaded)
    if env_class is not None and loaded.judge is not None:
        _check_judge(checklist, loaded)
    _check_scheduler(checklist, loaded)
    _check_resources(checklist, loaded, model)
    if env_class is not None:
        _check_sandbox(checklist, loaded, env_class)
    if env_class is not None and model is not None and not checklist.has_failed:
        _check_opening(checklist, loaded, env_class, model)
    if checklist.has_failed:
        raise SystemExit(USAGE_ERROR)
    for line in plan(loaded):
        print(line)


def _check_env(checklist: Checklist, config: RunConfig) -> type[Env] | None:
    from agentrl.env import tasks_of
    from agentrl.registry import EnvRef

    env_class = None
    with checklist.item("env") as say:
        found = EnvRef(name=config.env.name, options=config.env.options).load()
        definition = found.definition()
        for split in ("train", "eval"):
            if not list(islice(tasks_of(found, split), NUM_TASKS)):
                raise ValueError(f"{found.__name__} has no tasks in split {split!r}")
        tools, rewards = ", ".join(definition.tools), ", ".join(definition.rewards)
        say(
            f"{config.env.name}: {found.__name__}; tools {tools or 'none'}; "
            f"rewards {rewards or 'what give() gives'}"
        )
        env_class = found
    if config.warmup.steps:
        with checklist.item("warm-up") as say:
            options = {**config.env.options, **config.warmup.env_options}
            shown = EnvRef(name=config.env.name, options=options).load()
            if not shown.definition().has_demo:
                raise ValueError(
                    f"warmup.steps is {config.warmup.steps}, and {shown.__name__} has no demo() "
                    "to learn from; write one or set warmup.steps: 0"
                )
            say(f"{config.warmup.steps} steps on its demonstrations")
    return env_class


def _check_model(checklist: Checklist, config: RunConfig) -> LoadedModel | None:
    from agentrl.models.load import load_model
    from agentrl.train.trainer import Trainer

    loaded = None
    with checklist.item("model") as say:
        model = load_model(config.model, seed=config.seed)
        Trainer(
            model.model,
            config.train,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
        )
        loaded = model
        num_parameters = model.model.num_parameters()
        say(f"{config.model.from_}: {type(model.model).__name__}, {num_parameters:,} parameters")
    return loaded


def _check_judge(checklist: Checklist, config: RunConfig) -> None:
    from agentrl.runtime.judges import check_judge

    with checklist.item("judge") as say:
        say(check_judge(config))


def _check_scheduler(checklist: Checklist, config: RunConfig) -> None:
    from agentrl.runtime.scheduling import refuse_unfit_policies

    with checklist.item("scheduler") as say:
        refuse_unfit_policies(config)
        layout = config.runtime.layout
        shifting = f", shifts by {config.scheduler.shifting.policy}" if layout == "elastic" else ""
        say(f"{layout} layout{shifting}; places by {config.scheduler.routing.policy}")


def _check_resources(checklist: Checklist, config: RunConfig, model: LoadedModel | None) -> None:
    import psutil

    from agentrl.config.checks import Conflicts, machine_conflicts
    from agentrl.record.trackers import missing_trackers

    num_cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().available
    with checklist.item("resources") as say:
        if conflicts := machine_conflicts(config, num_cores=num_cores):
            raise Conflicts(conflicts)
        if missing := missing_trackers(config.trackers):
            raise ValueError(
                f"trackers: {', '.join(missing)} is not installed; "
                f"pip install 'agentrl-runtime[{','.join(missing)}]'"
            )
        say(f"{num_cores} cores, {memory / GIB:.1f} GiB of free memory")
        if model is not None:
            needed = model.model.num_parameters() * TRAINING_BYTES
            say(f"weights, gradients and optimizer {needed / GIB:.2f} GiB")
            if needed > memory:
                raise ValueError(
                    f"training needs {needed / GIB:.1f} GiB for weights, gradients and optimizer, "
                    f"and {memory / GIB:.1f} GiB are free; choose a smaller model"
                )


def _check_sandbox(checklist: Checklist, config: RunConfig, env_class: type[Env]) -> None:
    from agentrl.runtime.boxes import first_spec, open_pool

    async def use_a_box(say: Say) -> None:
        spec = first_spec(env_class)
        async with open_pool(config.sandbox, env_class, run_id=config.name) as pool:
            if pool is None or spec is None:
                say("the environment needs no box")
                return
            async with pool.lease(spec) as box:
                ran = await box.exec(["true"])
                if not ran.ok:
                    raise ValueError(f"`true` failed in a box: {ran.text}")
            say(f"{pool.backend.name}: made a box and ran `true`")
            for note in pool.backend.capabilities(spec).notes:
                say(note)

    with checklist.item("sandbox") as say:
        asyncio.run(use_a_box(say))


def _check_opening(
    checklist: Checklist, config: RunConfig, env_class: type[Env], model: LoadedModel
) -> None:
    """Plays attempts that say nothing, with the run's own chat format and limits."""
    from agentrl.chat.make import make_chat
    from agentrl.env import tasks_of
    from agentrl.rollout.budget import RolloutLimits
    from agentrl.rollout.judge_expert import expert_roles
    from agentrl.rollout.local import ScriptedRollouts
    from agentrl.runtime.boxes import open_pool
    from agentrl.types import Outcome, Trajectory

    async def open_some() -> list[Trajectory]:
        schemas = env_class.definition().schemas
        chat = make_chat(config.chat, model.tokenizer.backend_tokenizer, schemas)
        async with open_pool(config.sandbox, env_class, run_id=config.name) as pool:
            rollouts = ScriptedRollouts(
                env_class,
                chat,
                RolloutLimits.of(config.rollout),
                sandboxes=pool,
                roles=expert_roles(env_class),
                run_seed=config.seed,
            )
            tasks = list(islice(tasks_of(env_class, "train"), NUM_TASKS))
            return [await rollouts.play(task, lambda env: ()) for task in tasks]

    with checklist.item("chat") as say:
        opened = asyncio.run(open_some())
        for trajectory in opened:
            if trajectory.outcome in (Outcome.ENV_ERROR, Outcome.INFRA_ERROR):
                raise ValueError(f"task {trajectory.task_id}: {trajectory.error}")
        prompts = [len(t.rows[0][0]) for t in opened if t.rows]
        room = config.rollout.context_tokens - config.rollout.max_turn_tokens
        if len(prompts) < len(opened) or max(prompts) > room:
            longest = f"{max(prompts)} tokens" if len(prompts) == len(opened) else "more than that"
            raise ValueError(
                f"rollout.context_tokens {config.rollout.context_tokens} less "
                f"rollout.max_turn_tokens {config.rollout.max_turn_tokens} leaves {room} tokens "
                f"for a prompt, and the longest of {len(opened)} has {longest}; raise the first"
            )
        say(f"{config.chat.format} format; prompts of {min(prompts)} to {max(prompts)} tokens")


def plan(config: RunConfig) -> Iterator[str]:
    """What `agentrl train` would do."""
    from agentrl.config.fleet import num_genrm_workers, num_rollout_workers

    rollout, train, runtime = config.rollout, config.train, config.runtime
    trajectories = train.fresh_groups_per_step * rollout.group_size
    pinned = "a core each" if runtime.pin_cores else "cores shared"
    yield ""
    judges = num_genrm_workers(config)
    yield (
        f"would run {num_rollout_workers(config)} rollout{f', {judges} GenRM' if judges else ''} and "
        f"{runtime.training_workers} training worker(s), {pinned}, "
        f"{runtime.slots} sequences at a time"
    )
    yield (
        f"{train.steps} steps of {train.fresh_groups_per_step} groups x {rollout.group_size} attempts = "
        f"{trajectories} trajectories, at most "
        f"{trajectories * rollout.max_trajectory_tokens:,} sampled tokens a step"
    )
    staleness = (
        "on-policy" if train.max_staleness == 0 else f"up to {train.max_staleness} steps old"
    )
    if train.replayed_groups_per_step:
        yield (
            f"and {train.replayed_groups_per_step} replayed groups a step, each used at most "
            f"{1 + train.replay.max_reuses} times and up to {train.replay.max_staleness} steps old"
        )
    yield f"samples {staleness}; {train.advantage.type} advantages, {train.loss.type} loss"
    every = f"every {config.eval.every_steps} steps" if config.eval.every_steps else "at the end"
    yield f"evaluation on {config.eval.tasks} tasks before the first step and {every}"
