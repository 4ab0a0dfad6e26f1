from __future__ import annotations

import pytest

from agentrl.config.checks import machine_conflicts
from agentrl.config.load import ConfigError, parse_config
from agentrl.config.run import RunConfig


def load(*overrides: str) -> RunConfig:
    text = "env: {name: t}\nmodel: {from: scratch}\ntrain: {steps: 1, groups_per_step: 1}\n"
    return parse_config(text, source="run.yaml", overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["rollout.max_turn_tokens=300", "rollout.max_trajectory_tokens=200"], ["300", "200"]),
        (["rollout.max_trajectory_tokens=5000"], ["5000", "context_tokens 4096"]),
        (["rollout.context_tokens=2048", "rollout.max_turn_tokens=2048"], ["2048", "no room"]),
        (["warmup.steps=1", "warmup.batch_tokens=100"], ["row_tokens 224", "batch_tokens 100"]),
        (["rollout.group_size=1"], ["group_size 1", "grpo", "at least 2"]),
        (["rollout.min_group=1"], ["min_group 1", "at least 2"]),
        (["rollout.min_group=9"], ["min_group 9", "group_size 8"]),
        (["rollout.temperature=0"], ["temperature 0", "more than 0"]),
        (["rollout.top_p=0.9"], ["top_p 0.9", "wanted 1.0 and 0"]),
        (["rollout.top_k=40"], ["top_k 40", "wanted 1.0 and 0"]),
        (["outcomes.finished=drop", "outcomes.truncated=drop"], ["nothing to train on"]),
        (["train.replay.share=0.5"], ["share 0.5", "groups_per_step 1 is 0"]),
        (
            ["train.replay.share=0.75", "train.groups_per_step=8"],
            ["6 replayed", "2 fresh", "give 2"],
        ),
        (
            ["train.replay.share=0.5", "train.groups_per_step=8", "train.max_staleness=4"],
            ["max_staleness 4 is not more than", "train.max_staleness 4"],
        ),
        (["runtime.stall_timeout_s=300"], ["stall_timeout_s 300", "trajectory_timeout_s 300"]),
    ],
)
def test_settings_that_exclude_each_other(overrides: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    (problem,) = caught.value.problems
    assert problem.where.removeprefix("--set ") in overrides
    for words in told:
        assert words in problem.message


GENRM = "judge={type: genrm, model: {from: scratch}, warmup: {steps: 9}}"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["judge.temperature=0"], ["temperature 0", "judge.tries 3"]),
        (["judge.timeout_s=300"], ["judge.timeout_s 300", "trajectory_timeout_s 300"]),
        (["judge.warmup.steps=0"], ["random weights"]),
        (["judge.max_tokens=2048"], ["context_tokens 2048", "max_tokens 2048"]),
        (["judge.warmup.batch_tokens=100"], ["row_tokens 224", "batch_tokens 100"]),
    ],
)
def test_judges_that_could_not_judge(overrides: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(GENRM, *overrides)
    (problem,) = caught.value.problems
    for words in told:
        assert words in problem.message


def test_a_judge_of_the_fleet_wants_a_core_too() -> None:
    assert not machine_conflicts(load(), num_cores=2)
    (conflict,) = machine_conflicts(load(GENRM), num_cores=2)
    assert "runtime.genrm_workers 1 want a core each" in conflict.message
    url = "judge={type: server, url: 'http://h/v1', model: m}"
    assert not machine_conflicts(load(url), num_cores=2)


def test_a_layout_that_leaves_nobody_to_judge() -> None:
    nobody = "runtime.genrm_workers=0"
    with pytest.raises(ConfigError, match="disaggregated"):
        load(GENRM, nobody)
    elastic = "runtime.layout=elastic"
    with pytest.raises(ConfigError, match="kv_rule"):
        load(GENRM, nobody, elastic, "scheduler.shifting.policy=kv_rule")
    assert load(GENRM, nobody, elastic).runtime.genrm_workers == 0
    assert load(GENRM, nobody, "runtime.layout=colocated").runtime.genrm_workers == 0


WIDE = "{name: wide, max_running: 16}"
FAST = "{name: fast, cores: 2, max_running: 4}"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([f"runtime.buckets=[{WIDE}, {WIDE}]"], "name of its own"),
        ([f"runtime.buckets=[{WIDE}]", "runtime.rollout_workers=2"], "rollout_workers 2 means"),
        ([f"runtime.buckets=[{WIDE}, {FAST}]", "runtime.layout=elastic"], "2 kinds"),
        ([f"runtime.buckets=[{WIDE}]", "runtime.slots=8"], "wide decodes 16"),
    ],
)
def test_buckets_that_cannot_be(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    (problem,) = caught.value.problems
    assert told in problem.message


def test_buckets_want_the_cores_they_name() -> None:
    config = load(f"runtime.buckets=[{WIDE}, {FAST}]")
    assert not machine_conflicts(config, num_cores=4)
    (conflict,) = machine_conflicts(config, num_cores=3)
    assert "runtime.buckets of 3 cores" in conflict.message


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["runtime.share={}"], "a cluster that only this run has"),
        (
            ["runtime.share={}", "runtime.ray_address=a:1", f"runtime.buckets=[{FAST}]"],
            "workers of several cores",
        ),
        (
            ["runtime.ray_address=a:1", "model={from: path, path: ./mine}"],
            "model.path ./mine is relative",
        ),
    ],
)
def test_clusters_that_cannot_be(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    (problem,) = caught.value.problems
    assert told in problem.message


def test_a_key_is_named_and_never_written() -> None:
    url = "judge={type: server, url: 'http://h/v1', model: m, api_key_env: %s}"
    assert load(url % "JUDGE_KEY").judge is not None
    with pytest.raises(ConfigError, match="api_key_env"):
        load(url % "sk-a-real-key")


def test_a_loss_ratio_needs_a_lower_bound_above_zero() -> None:
    with pytest.raises(ConfigError, match="wanted less than 1, got 1"):
        load("train.loss={type: ppo_clip, clip_low: 1.0}")


def test_all_conflicts_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load("rollout.temperature=0", "rollout.group_size=1")
    assert len(caught.value.problems) == 2


def test_a_warm_up_that_is_off_conflicts_with_nothing() -> None:
    load("warmup.batch_tokens=100")


def test_workers_want_a_core_each() -> None:
    config = load("runtime.rollout_workers=4")
    (conflict,) = machine_conflicts(config, num_cores=4)
    assert "rollout_workers 4 + runtime.training_workers 1" in conflict.message
    assert "this machine has 4" in conflict.message
    assert not machine_conflicts(config, num_cores=5)
    assert not machine_conflicts(
        load("runtime.rollout_workers=4", "runtime.pin_cores=false"), num_cores=1
    )
    assert not machine_conflicts(
        load("runtime.rollout_workers=4", "runtime.ray_address=auto"), num_cores=1
    )
