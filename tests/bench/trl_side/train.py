"""Runs TRL's `GRPOTrainer` in its own environment and writes down what each step took.

python -m trl_side.train SETTINGS.json FIGURES.json
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_side.chat import speak_plain
from trl_side.settings import StepFigures, TrlSettings, save_figures
from trl_side.world import TrailWorld, World, reward_of

from agentrl.config.sections import SandboxSection
from agentrl.registry import EnvRef


class StepClock(TrainerCallback):
    """When each optimizer step ended."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended_s.append(time.perf_counter())


def train(settings: TrlSettings, output_dir: str) -> list[StepFigures]:
    """The figures of all steps but the first, which has none before it."""
    torch.set_num_threads(settings.threads)
    env_class = EnvRef(name=settings.env_name, options=settings.env_options).load()
    num_tasks = settings.steps * settings.groups_per_step
    tasks = {task.id: task for task in islice(env_class.tasks("train"), num_tasks)}
    end_text = "." * settings.max_completion_tokens
    world = World(env_class, tasks, SandboxSection(**settings.sandbox), end_text)
    # the environment's opening is put after what the dataset holds, which is nothing
    prompt = [{"role": "user", "content": ""}]
    clock = StepClock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32),
        processing_class=speak_plain(AutoTokenizer.from_pretrained(settings.model)),
        args=_arguments(settings, output_dir),
        train_dataset=Dataset.from_list([{"prompt": prompt, "task_id": id} for id in tasks]),
        environment_factory=lambda: TrailWorld(world),
        reward_funcs=reward_of,
        callbacks=[clock],
    )
    try:
        trainer.train()
    finally:
        world.close()
    logged = [line for line in trainer.state.log_history if "reward" in line]
    seconds = [end - start for start, end in pairwise(clock.ended_s)]
    return [
        StepFigures(
            seconds=took,
            trajectories=settings.batch,
            sampled_tokens=line["completions/mean_length"],
            # one turn a call, and one that answers, unless a limit ended it
            turns=line["tools/call_frequency"] + 1,
            reward=line["reward"],
        )
        for took, line in zip(seconds, logged[1:], strict=True)
    ]


def _arguments(settings: TrlSettings, output_dir: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=output_dir,
        max_steps=settings.steps,
        # one batch is one generation and one optimizer step, on the policy that sampled it
        per_device_train_batch_size=settings.microbatch,
        gradient_accumulation_steps=settings.batch // settings.microbatch,
        num_generations=settings.group_size,
        shuffle_dataset=False,
        temperature=settings.temperature,
        max_completion_length=settings.max_completion_tokens,
        generation_kwargs={"max_new_tokens": settings.max_turn_tokens},
        use_transformers_continuous_batching=settings.generation == "continuous_batching",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        max_grad_norm=settings.grad_clip,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        loss_type="dapo",  # the mean over the sampled tokens of the batch
        scale_rewards="group",
        beta=0.0,
        use_cpu=True,
        # both are slower on a CPU than what they replace
        bf16=False,
        gradient_checkpointing=False,
        seed=settings.seed,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    settings, figures = TrlSettings.load(Path(sys.argv[1])), Path(sys.argv[2])
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as output_dir:
        steps = train(settings, output_dir)
    save_figures(figures, steps)


if __name__ == "__main__":
    main()
