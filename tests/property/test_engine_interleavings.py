"""Whatever order commands and steps come in, every turn is what its model would have said alone.

The rules submit, step, abort, release, prefill and swap weights at random. Each turn's tokens are
then checked, one by one, against the weights named by their versions and the turn's own seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiny_models import full_logits, tiny_qwen, truncated, weights_of

from agentrl.engine.batcher import Batcher
from agentrl.engine.engine import FinishReason, GenerateRequest, Sampling
from agentrl.engine.kv_cache import KVCache
from agentrl.engine.prefixes import PrefixIndex
from agentrl.engine.sampling import stream_of, uniforms
from agentrl.engine.torch_engine import make_forward
from agentrl.engine.weights import load_into

POLICIES = [tiny_qwen(seed=i) for i in range(3)]
NUM_SLOTS = 3
CONTEXT_TOKENS = 48
SESSIONS = st.sampled_from("abcde")
OPENINGS = st.sampled_from([[], list(range(20)), list(range(11)), [*range(9), *range(40, 49)]])
"""What prompts have in common, some more and some less."""
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    stop_ids=st.sampled_from([(), tuple(range(0, 272, 20))]),
    seed=st.integers(0, 2**64),
)


@dataclass(slots=True)
class Turn:
    request: GenerateRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        model = tiny_qwen(seed=0)
        cache = KVCache(
            num_slots=NUM_SLOTS,
            context_tokens=CONTEXT_TOKENS,
            dtype=model.dtype,
            device=model.device,
        )
        self.model = model
        self.version = 0
        self.batcher = Batcher(
            make_forward(model, cache),
            cache,
            prefill_tokens=7,
            policy_version=0,
            prefixes=PrefixIndex(block_tokens=3),
        )
        self.turns: dict[str, Turn] = {}
        self.history: dict[str, list[int]] = {}

    @rule(
        session=SESSIONS,
        new=st.lists(st.integers(0, 255), min_size=1, max_size=12),
        opening=OPENINGS,
        num_tokens=st.integers(0, 8),
        sampling=SAMPLINGS,
        goes_on=st.booleans(),
    )
    def submit(
        self,
        session: str,
        new: list[int],
        opening: list[int],
        num_tokens: int,
        sampling: Sampling,
        goes_on: bool,
    ) -> None:
        """A turn, or with no tokens a prefill, that continues its session or starts over."""
        ids = (self.history.get(session, []) if goes_on else opening) + new
        ids = ids[: CONTEXT_TOKENS - num_tokens]
        name = str(len(self.turns))
        request = GenerateRequest(
            request_id=name,
            session_id=session,
            ids=ids,
            max_new_tokens=num_tokens,
            sampling=sampling,
        )
        self.turns[name] = Turn(request)
        self.batcher.submit(request)

    @rule(times=st.integers(1, 9))
    def step(self, times: int) -> None:
        for _ in range(times):
            if self.batcher.has_work:
                with torch.inference_mode():
                    self.batcher.step()
            self.collect(running=times % 2 == 0)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.batcher.abort(data.draw(st.sampled_from(sorted(self.turns))))

    @rule(session=SESSIONS)
    def release(self, session: str) -> None:
        self.batcher.release(session)

    @rule(version=st.integers(1, 2))
    def change_weights(self, version: int) -> None:
        """Recomputing the cache, so that each token follows from one set of weights."""
        load_into(self.model, weights_of(POLICIES[version]))
        self.batcher.change_weights(lambda: None, version, keep_cache=False)

    def collect(self, *, running: bool) -> None:
        for name, ids, logprobs, versions, finish in self.batcher.take_progress(running=running):
            turn = self.turns[name]
            assert turn.finish is None
            turn.ids += ids
            turn.logprobs += logprobs
            turn.versions += versions
            if finish is not None:
                turn.finish = finish
                self.history[turn.request.session_id] = [*turn.request.ids, *turn.ids]

    @invariant()
    def slots_hold_no_more_than_they_can(self) -> None:
        stats = self.batcher.stats()
        assert 0 <= stats.running <= NUM_SLOTS
        assert 0 <= stats.cached_tokens <= NUM_SLOTS * CONTEXT_TOKENS

    def teardown(self) -> None:
        while self.batcher.has_work:
            self.step(times=2)
        self.collect(running=True)
        for turn in self.turns.values():
            check(turn)
        assert self.batcher.stats().tokens_generated == sum(len(t.ids) for t in self.turns.values())


def check(turn: Turn) -> None:
    request, sampling = turn.request, turn.request.sampling
    assert len(turn.ids) == len(turn.logprobs) == len(turn.versions)
    stopped = [i in sampling.stop_ids for i in turn.ids]
    match turn.finish:
        case FinishReason.STOP:
            assert stopped.index(True) == len(turn.ids) - 1
        case FinishReason.LENGTH:
            assert len(turn.ids) == request.max_new_tokens
            assert not any(stopped)
        case FinishReason.ABORTED:
            assert not any(stopped)
        case None:
            raise AssertionError("a turn never ended")
    stream = np.array([stream_of(sampling.seed)], dtype=np.uint64)
    for i, (token, logprob, version) in enumerate(
        zip(turn.ids, turn.logprobs, turn.versions, strict=True)
    ):
        logits = full_logits(POLICIES[version], [*request.ids, *turn.ids[:i]])[-1]
        kept = truncated(logits / (sampling.temperature or 1.0), sampling)
        expected = kept.log_softmax(-1)
        assert abs(expected[token].item() - logprob) < 1e-4
        if sampling.temperature == 0:
            assert logits[token] >= logits.max() - 1e-4
            continue
        # The number drawn falls into the token's own stretch of the unit interval.
        edges = expected.double().exp().cumsum(-1)
        drawn = uniforms(stream, [i])[0]
        assert edges[token] >= drawn - 1e-5
        assert edges[token] - expected[token].double().exp() <= drawn + 1e-5


TestInterleavings = pytest.mark.slow(Interleavings.TestCase)
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
