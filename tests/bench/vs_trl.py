"""agentrl against TRL's `GRPOTrainer` on a CPU: trajectories per second, and their ratio.

    python tests/bench/vs_trl.py [--rounds 2] [--steps 4] [--learned-steps 10]

Both sides train the quickstart's model on the quickstart's task from the same weights: those that
`agentrl train` has after the warm-up and `--learned-steps` steps of reinforcement (made once and
kept below `runs/vs-trl/`), so that trajectories have the lengths of a run that is under way. They
take turns on the same two cores, each time from those weights, with one warm step that does not
count and `--steps` that do. A step lasts from the end of the one before to its own end: sampling,
tools, rewards, training, and whatever a side does between.

- agentrl: `agentrl train` with the quickstart's configuration; steps are read from its run folder.
- TRL: `trl_side/train.py` in an environment of its own (`.venv-trl`, made by this script), with
  whichever of 1 and 2 torch threads is faster, found by trying both first.

The same on both sides: weights and float32, token ids of prompts, calls and results, tasks and
their order, tasks x group in a batch, one optimizer step a batch, temperature, token limit of a
turn, turn limit of a task, boxes (agentrl's pool, backend and number of ready boxes) in which every
command really runs, reward code, learning rate, AdamW, clipping, advantages by group mean and
deviation, mean over sampled tokens. All rows are trained on, those of groups without a signal too
(`zero_variance: keep`), since TRL computes them as well.

Not the same:
- TRL samples and trains by turns in one process with 2 threads at most; agentrl has a process that
  samples and one that trains, one thread each. Neither samples ahead (`max_staleness: 0`).
- TRL calls the tools of a batch one after the other. What its API allows is done for it: boxes are
  made in the background while it samples, and deleted while it trains.
- TRL's interface has no turn limit of a task. A tool result too long for the trajectory stands in
  for it and is dropped by TRL: the trajectory ends there, as it does in agentrl. (Calls are counted
  for turns there; two calls in a turn hardly ever happen.)
- TRL has one limit for sampled and tool tokens together; it is set to agentrl's context. A call in
  a turn that was cut at its limit runs in TRL and not in agentrl. Both hardly ever happen.
- TRL computes and logs entropies; agentrl writes every trajectory with its tokens to the record.
- Settings of TRL that were tried and are slower: transformers' continuous batching, by a factor of
  10 and more (`--trl-generation continuous_batching` shows it), bfloat16, gradient checkpointing,
  and training on the batch in one piece instead of 8 rows at a time.

The last line is one JSON object; `trajectories_ratio` is the median over the rounds of agentrl's
trajectories per second divided by TRL's.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from trl_side.settings import Generation, StepFigures, TrlSettings, load_figures

from agentrl.config.dump import dump_config
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.config.sections import PathModel
from agentrl.record.index import IndexRow
from agentrl.record.jsonl import read_lines
from agentrl.record.layout import RunLayout, newest_run_folder
from agentrl.train.checkpoint_folders import is_complete

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = REPOSITORY / "runs" / "vs-trl"
TRL_VENV = REPOSITORY / ".venv-trl"
TRL_REQUIREMENTS = ("-c", "constraints.txt", "-e", ".", "trl==1.16.0")
NUM_CORES = 2
WARM_STEPS = 1


def main() -> None:
    arguments = parse_arguments()
    stay_on_cores()
    quickstart = load_config(REPOSITORY / "configs" / "quickstart.yaml")
    python = trl_python()
    config = comparable(quickstart, weights=learned_weights(quickstart, arguments.learned_steps))
    settings = faster(python, trl_settings(config, generation=arguments.trl_generation))

    num_steps = WARM_STEPS + arguments.steps
    rounds = []
    for number in range(1, arguments.rounds + 1):
        ours = run_agentrl(with_steps(config, num_steps))
        theirs = run_trl(python, dataclasses.replace(settings, steps=num_steps))
        rounds.append((ours, theirs))
        print_round(number, *rounds[-1])
    print(json.dumps(figures(rounds, settings)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of a round, after the warm one")
    parser.add_argument("--learned-steps", type=int, default=10, help="0: weights of the warm-up")
    parser.add_argument(
        "--trl-generation", choices=("generate", "continuous_batching"), default="generate"
    )
    return parser.parse_args()


def stay_on_cores() -> None:
    """All that is started from here shares the first two cores, and no accelerator."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


# ---------------------------------------------------------------------------- what both sides get


def learned_weights(quickstart: RunConfig, learned_steps: int) -> Path:
    """The folder of a model that has had `learned_steps` steps of the quickstart; kept for later."""
    # a run has at least one step; the checkpoint before its first one is kept as well
    config = with_steps(quickstart, max(1, learned_steps))
    digest = hashlib.sha256(dump_config(config).encode()).hexdigest()[:8]
    name, checkpoint = f"learned-{learned_steps}-{digest}", f"checkpoints/step-{learned_steps:06d}"
    for made in RUNS.glob(f"{name}*/{checkpoint}"):
        if is_complete(made):
            return made
    print(f"making the starting weights: warm-up and {learned_steps} step(s)", flush=True)
    return train(config.model_copy(update={"name": name})) / checkpoint


def comparable(quickstart: RunConfig, *, weights: Path) -> RunConfig:
    """The quickstart from `weights` on, with nothing that TRL does not do between steps."""
    advantage = quickstart.train.advantage.model_copy(update={"zero_variance": "keep"})
    optimizer = quickstart.train.optimizer.model_copy(
        update={"schedule": "constant", "warmup_steps": 0}
    )
    training = quickstart.train.model_copy(update={"advantage": advantage, "optimizer": optimizer})
    return quickstart.model_copy(
        update={
            "name": "ours",
            "model": PathModel(**{"from": "path", "path": str(weights)}),
            "warmup": quickstart.warmup.model_copy(update={"steps": 0}),
            "train": training,
            "eval": quickstart.eval.model_copy(update={"every_steps": 0, "tasks": 1}),
            "checkpoint": quickstart.checkpoint.model_copy(update={"every_steps": 0}),
        }
    )


def with_steps(config: RunConfig, steps: int) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


def trl_settings(config: RunConfig, *, generation: Generation) -> TrlSettings:
    rollout, training = config.rollout, config.train
    assert isinstance(config.model, PathModel)
    return TrlSettings(
        model=config.model.path,
        env_name=config.env.name,
        env_options=config.env.options,
        sandbox=config.sandbox.model_dump(mode="json"),
        steps=training.steps,
        groups_per_step=training.groups_per_step,
        group_size=rollout.group_size,
        max_turn_tokens=rollout.max_turn_tokens,
        max_completion_tokens=rollout.context_tokens,
        temperature=rollout.temperature,
        learning_rate=training.optimizer.learning_rate,
        betas=training.optimizer.betas,
        grad_clip=training.optimizer.grad_clip,
        clip_low=training.loss.clip_low,
        clip_high=training.loss.clip_high,
        seed=config.seed,
        threads=1,
        microbatch=rollout.group_size,
        generation=generation,
    )


# ---------------------------------------------------------------------------- agentrl


def run_agentrl(config: RunConfig) -> list[StepFigures]:
    """All steps but the first, which has none before it."""
    layout = RunLayout(train(config))
    lines = (line for _, line in read_lines(layout.metrics))
    ended_s = {line["step"]: line["time_s"] for line in lines if "train_s" in line}
    rows = [IndexRow.parse(line) for _, line in read_lines(layout.index)]
    steps = []
    for before, step in pairwise(sorted(ended_s)):
        trained = [row for row in rows if row.split == "train" and row.step == step]
        steps.append(
            StepFigures(
                seconds=ended_s[step] - ended_s[before],
                trajectories=len(trained),
                sampled_tokens=statistics.fmean(row.num_sampled_tokens for row in trained),
                turns=statistics.fmean(row.num_turns for row in trained),
                reward=statistics.fmean(row.reward or 0.0 for row in trained),
            )
        )
    return steps


def train(config: RunConfig) -> Path:
    """Run `agentrl train` to its end; returns the run's folder."""
    RUNS.mkdir(parents=True, exist_ok=True)
    file = RUNS / f"{config.name}.yaml"
    file.write_text(dump_config(config))
    command = [Path(sys.executable).with_name("agentrl"), "train", file, "--runs", RUNS]
    run_quietly(command, log=RUNS / f"{config.name}.log")
    return newest_run_folder(RUNS, config.name)


# ---------------------------------------------------------------------------- TRL


def trl_python() -> Path:
    """TRL's interpreter; its environment is made on the first call and used again afterwards."""
    python, stamp = TRL_VENV / "bin" / "python", TRL_VENV / "installed.txt"
    wanted = " ".join(TRL_REQUIREMENTS)
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing TRL into {TRL_VENV.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", TRL_VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *TRL_REQUIREMENTS], check=True, cwd=REPOSITORY)
        stamp.write_text(wanted)
    return python


def faster(python: Path, settings: TrlSettings) -> TrlSettings:
    """With the number of torch threads that is faster here."""
    tried = [
        dataclasses.replace(settings, threads=threads, steps=WARM_STEPS + 2)
        for threads in range(1, NUM_CORES + 1)
    ]
    rates = [rate(run_trl(python, candidate)) for candidate in tried]
    for candidate, trajectories_per_s in zip(tried, rates, strict=True):
        print(f"TRL, {candidate.threads} thread(s): {trajectories_per_s:.1f} trajectories/s")
    return tried[rates.index(max(rates))]


def run_trl(python: Path, settings: TrlSettings) -> list[StepFigures]:
    """All steps but the first."""
    settings_file, figures_file = RUNS / "trl-settings.json", RUNS / "trl-figures.json"
    settings.save(settings_file)
    run_quietly(
        [python, "-m", "trl_side.train", settings_file, figures_file],
        log=RUNS / "trl.log",
        OMP_NUM_THREADS=str(settings.threads),
        PYTHONPATH=str(Path(__file__).parent),
        TRL_EXPERIMENTAL_SILENCE="1",
    )
    return load_figures(figures_file)


# ---------------------------------------------------------------------------- both


def run_quietly(command: Sequence[str | Path], *, log: Path, **environment: str) -> None:
    with log.open("w") as output:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=REPOSITORY,
            check=False,
        )
    if ended.returncode:
        raise SystemExit(f"{command[0]} failed; the end of {log}:\n{log.read_text()[-3000:]}")


def rate(steps: Sequence[StepFigures]) -> float:
    """Trajectories per second of the median step."""
    return statistics.median(step.trajectories_per_s for step in steps)


def print_round(number: int, ours: Sequence[StepFigures], theirs: Sequence[StepFigures]) -> None:
    header = ("round", "side", "traj/s", "s/step", "traj/step", "tokens", "turns", "reward")
    if number == 1:
        print("".join(f"{name:>10}" for name in header))
    for side, steps in (("agentrl", ours), ("TRL", theirs)):
        means = [
            statistics.fmean(getattr(step, name) for step in steps)
            for name in ("seconds", "trajectories", "sampled_tokens", "turns", "reward")
        ]
        numbers = "".join(f"{value:10.2f}" for value in (rate(steps), *means))
        print(f"{number:10}{side:>10}{numbers}", flush=True)


def figures(
    rounds: Sequence[tuple[Sequence[StepFigures], Sequence[StepFigures]]], settings: TrlSettings
) -> dict[str, float | int | str]:
    ours = [step for steps, _ in rounds for step in steps]
    theirs = [step for _, steps in rounds for step in steps]
    return {
        "trajectories_ratio": round(statistics.median(rate(o) / rate(t) for o, t in rounds), 2),
        "agentrl_trajectories_per_s": round(rate(ours), 1),
        "trl_trajectories_per_s": round(rate(theirs), 1),
        "steps": len(ours),
        "batch": settings.batch,
        "agentrl_turns": round(statistics.fmean(step.turns for step in ours), 2),
        "trl_turns": round(statistics.fmean(step.turns for step in theirs), 2),
        "trl_threads": settings.threads,
    }


if __name__ == "__main__":
    main()
