"""The section `judge`: who answers `self.roles["judge"]`, and what a question may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.config.sections import ChatSection, ModelSection, Section, WarmupSection


class _Judge(Section):
    """What holds for every judge."""

    max_tokens: PositiveInt = Field(128, description="Sampled tokens of one answer.")
    temperature: Annotated[float, Field(ge=0)] = Field(
        0.5, description="Of its sampling; another try of the same question needs more than 0."
    )
    tries: PositiveInt = Field(
        3, description="Answers asked for, each with another seed, until one can be read."
    )
    timeout_s: PositiveFloat = Field(
        120.0, description="Wall clock of one question, waits and tries included."
    )


class GenRMJudge(_Judge):
    """A generative reward model with weights of its own, served by workers of the run's fleet."""

    type: Literal["genrm"] = Field(description="`runtime.genrm_workers` of this fleet.")
    model: ModelSection = Field(description="Where its weights come from.")
    chat: ChatSection = Field(default_factory=ChatSection)
    warmup: WarmupSection = Field(
        default_factory=WarmupSection,
        description="Supervised steps on the environment's `judge_questions()`, for a judge made "
        "from scratch.",
    )
    brief: bool = Field(
        False,
        description="Leave out the explanation of an answer's form, for a judge that learned it "
        "in its warm-up.",
    )
    context_tokens: PositiveInt = Field(2048, description="Of a question and its answer.")
    slots: PositiveInt = Field(64, description="Questions answered together by one worker.")


class UrlJudge(_Judge):
    """A server that speaks the protocol of OpenAI's chat completions."""

    type: Literal["server"] = Field(description="A server outside the run.")
    url: str = Field(
        pattern=r"^https?://", description="Up to the version, such as `http://host:8000/v1`."
    )
    model: str = Field(description="The model's name there.")
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the key; null: no key.",
    )
    max_running: PositiveInt = Field(16, description="Requests under way from one runner.")
    retries: int = Field(
        5, ge=0, description="New requests after 408, 409, 429, 5xx and broken connections."
    )
    request_timeout_s: PositiveFloat = Field(60.0, description="Wall clock of one request.")


JudgeSection = Annotated[GenRMJudge | UrlJudge, Field(discriminator="type")]
