"""Continuous batching, step by step, against what the model itself says."""

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from tiny_models import greedy, prompts, reference_logprobs, tiny_qwen, weights_of
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from agentrl.engine.batcher import Batcher
from agentrl.engine.engine import EngineError, FinishReason, GenerateRequest, Sampling
from agentrl.engine.kv_cache import KVCache
from agentrl.engine.torch_engine import make_forward
from agentrl.engine.weights import load_into

GREEDY = Sampling(temperature=0)
CONTEXT_TOKENS = 128


class Turns:
    """A batcher, and what each request has reported so far."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, prefill_tokens: int = 16) -> None:
        cache = KVCache(
            num_slots=num_slots,
            context_tokens=CONTEXT_TOKENS,
            dtype=model.dtype,
            device=model.device,
        )
        forward = make_forward(model, cache)
        self.batcher = Batcher(forward, cache, prefill_tokens=prefill_tokens, policy_version=1)
        self.ids: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.versions: dict[str, list[int]] = {}
        self.finish: dict[str, FinishReason] = {}

    def submit(
        self,
        name: str,
        ids: list[int],
        num_tokens: int,
        sampling: Sampling = GREEDY,
        *,
        session: str = "",
    ) -> None:
        self.ids[name], self.logprobs[name], self.versions[name] = [], [], []
        self.batcher.submit(
            GenerateRequest(
                request_id=name,
                session_id=session or name,
                ids=ids,
                max_new_tokens=num_tokens,
                sampling=sampling,
            )
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.batcher.step()
            self.collect()

    def run(self) -> None:
        while self.batcher.has_work:
            self.step()

    def collect(self) -> None:
        for name, ids, logprobs, versions, finish in self.batcher.take_progress(running=True):
            assert len(ids) == len(logprobs) == len(versions)
            assert name not in self.finish, "reported after its end"
            self.ids[name] += ids
            self.logprobs[name] += logprobs
            self.versions[name] += versions
            if finish is not None:
                self.finish[name] = finish


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_prompts_of_many_lengths_at_once_equal_generate(shared_model: PreTrainedModel) -> None:
    contexts = prompts(1, 3, 17, 40, 64, 2, 33)
    turns = Turns(shared_model, num_slots=7)
    for i, ids in enumerate(contexts):
        turns.submit(str(i), ids, 20)
    turns.run()
    for i, ids in enumerate(contexts):
        assert turns.ids[str(i)] == greedy(shared_model, ids, 20)
        assert turns.finish[str(i)] is FinishReason.LENGTH


def test_more_requests_than_slots_are_all_served(shared_model: PreTrainedModel) -> None:
    contexts = prompts(*range(1, 30))
    turns = Turns(shared_model, num_slots=3)
    for i, ids in enumerate(contexts):
        turns.submit(str(i), ids, 2 + i % 5)
    assert turns.batcher.stats().waiting == 29
    turns.step()
    assert (turns.batcher.stats().running, turns.batcher.stats().waiting) == (3, 26)
    turns.run()
    for i, ids in enumerate(contexts):
        assert turns.ids[str(i)] == greedy(shared_model, ids, 2 + i % 5)


def test_turns_of_a_session_compute_only_what_is_new(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=2)
    ids = prompts(20)[0]
    for turn in range(4):
        before = turns.batcher.stats().tokens_prefilled
        turns.submit(f"turn {turn}", ids, 6, session="s")
        turns.run()
        sampled = turns.ids[f"turn {turn}"]
        assert sampled == greedy(shared_model, ids, 6)
        # The last sampled id has not been through the model yet.
        computed = turns.batcher.stats().tokens_prefilled - before
        assert computed == (20 if turn == 0 else 1 + 5)
        ids = ids + sampled + prompts(5, seed=turn)[0]


def test_a_rewritten_history_keeps_only_its_common_prefix(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=1)
    ids = prompts(30)[0]
    turns.submit("first", ids, 4, session="s")
    turns.run()
    changed = ids[:10] + prompts(15, seed=9)[0]
    before = turns.batcher.stats().tokens_prefilled
    turns.submit("second", changed, 8, session="s")
    turns.run()
    assert turns.batcher.stats().tokens_prefilled - before == 15
    assert turns.ids["second"] == greedy(shared_model, changed, 8)


def test_an_evicted_session_is_computed_again(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=2)
    contexts = dict(zip("abc", prompts(12, 14, 16), strict=True))
    for turn in range(3):
        for session, ids in list(contexts.items()):
            name = f"{session}{turn}"
            turns.submit(name, ids, 5, session=session)
            turns.run()
            assert turns.ids[name] == greedy(shared_model, ids, 5)
            contexts[session] = ids + turns.ids[name] + [turn]
    assert turns.batcher.stats().cached_tokens <= 2 * (16 + 3 * 6)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=3),
        Sampling(seed=3, temperature=0.7),
        Sampling(seed=3, temperature=1.6, top_k=9),
        Sampling(seed=3, top_p=0.8),
        Sampling(seed=3, temperature=0.9, top_k=30, top_p=0.9),
        GREEDY,
    ],
)
def test_logprobs_are_those_of_a_pass_over_everything(
    shared_model: PreTrainedModel, sampling: Sampling
) -> None:
    contexts = prompts(1, 9, 30)
    turns = Turns(shared_model, num_slots=2)
    for i, ids in enumerate(contexts):
        turns.submit(str(i), ids, 25, sampling)
    turns.run()
    for i, ids in enumerate(contexts):
        expected = reference_logprobs(shared_model, ids, turns.ids[str(i)], sampling)
        torch.testing.assert_close(
            torch.tensor(turns.logprobs[str(i)]), expected, atol=1e-4, rtol=0
        )


def test_a_seed_gives_the_same_tokens_in_any_company(shared_model: PreTrainedModel) -> None:
    contexts = prompts(5, 20, 11, 3, 8, 31)
    rules = [Sampling(seed=i, temperature=0.8, top_p=0.95 if i % 2 else 1.0) for i in range(6)]
    served = []
    for num_slots, prefill_tokens, chosen in ((6, 64, range(6)), (2, 7, range(6)), (1, 16, (4,))):
        turns = Turns(shared_model, num_slots=num_slots, prefill_tokens=prefill_tokens)
        for i in chosen:
            turns.submit(str(i), contexts[i], 16, rules[i])
        turns.run()
        served.append(turns.ids)
    assert served[0] == served[1]
    assert served[2]["4"] == served[0]["4"]
    other = Turns(shared_model, num_slots=1)
    other.submit("4", contexts[4], 16, Sampling(seed=99, temperature=0.8))
    other.run()
    assert other.ids["4"] != served[0]["4"]


def test_a_stop_id_ends_the_turn_and_is_part_of_it(shared_model: PreTrainedModel) -> None:
    ids = prompts(8)[0]
    expected = greedy(shared_model, ids, 20)
    stop = expected[7]
    turns = Turns(shared_model, num_slots=1)
    turns.submit("a", ids, 20, Sampling(temperature=0, stop_ids=(270, stop)))
    turns.run()
    assert turns.ids["a"] == expected[: expected.index(stop) + 1]
    assert turns.finish["a"] is FinishReason.STOP


def test_a_stop_id_in_the_last_place_counts_as_stop(shared_model: PreTrainedModel) -> None:
    ids = prompts(8)[0]
    (only,) = greedy(shared_model, ids, 1)
    turns = Turns(shared_model, num_slots=1)
    turns.submit("a", ids, 1, Sampling(temperature=0, stop_ids=(only,)))
    turns.run()
    assert (turns.ids["a"], turns.finish["a"]) == ([only], FinishReason.STOP)


def test_a_context_may_be_filled_to_its_last_place(shared_model: PreTrainedModel) -> None:
    ids, other = prompts(CONTEXT_TOKENS - 6, 3)
    turns = Turns(shared_model, num_slots=2)
    turns.submit("full", ids, 6)
    turns.submit("short", other, 20)
    turns.run()
    assert turns.ids["full"] == greedy(shared_model, ids, 6)
    assert turns.ids["short"] == greedy(shared_model, other, 20)


def test_abort_keeps_what_was_sampled_and_the_slot(shared_model: PreTrainedModel) -> None:
    a, b = prompts(10, 12)
    turns = Turns(shared_model, num_slots=1)
    turns.submit("running", a, 50, session="s")
    turns.submit("waiting", b, 50)
    turns.step(6)
    turns.batcher.abort("running")
    turns.batcher.abort("waiting")
    turns.batcher.abort("unknown")
    turns.collect()
    assert set(turns.finish.values()) == {FinishReason.ABORTED}
    partial = turns.ids["running"]
    assert partial == greedy(shared_model, a, len(partial))
    assert 0 < len(partial) < 50
    assert turns.ids["waiting"] == []
    assert not turns.batcher.has_work
    before = turns.batcher.stats().tokens_prefilled
    turns.submit("continued", a + partial, 5, session="s")
    turns.run()
    assert partial + turns.ids["continued"] == greedy(shared_model, a, len(partial) + 5)
    assert turns.batcher.stats().tokens_prefilled == before


def test_abort_all_counts_running_and_waiting(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=2)
    for i, ids in enumerate(prompts(4, 5, 6)):
        turns.submit(str(i), ids, 9)
    turns.step(2)
    assert turns.batcher.abort_all() == 3
    assert turns.batcher.abort_all() == 0


def test_release_frees_a_slot_now_or_when_its_turn_ends(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=2)
    a, b = prompts(5, 6)
    turns.submit("a", a, 3)
    turns.submit("b", b, 3)
    turns.step(2)
    turns.batcher.release("b")
    turns.run()
    assert turns.batcher.stats().cached_tokens == len(a) + 2
    turns.batcher.release("a")
    turns.batcher.release("a")
    assert turns.batcher.stats().cached_tokens == 0


def test_prefill_fills_the_slot_and_samples_nothing(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=1)
    ids = prompts(40)[0]
    turns.submit("ahead", ids, 0, session="s")
    turns.run()
    assert (turns.ids["ahead"], turns.finish["ahead"]) == ([], FinishReason.LENGTH)
    assert turns.batcher.stats().tokens_prefilled == 40
    turns.submit("turn", [*ids, 7], 5, session="s")
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == 40
    assert turns.ids["turn"] == greedy(shared_model, [*ids, 7], 5)


def test_a_turn_overtakes_the_prefill_of_its_session(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=1, prefill_tokens=8)
    ids = prompts(40)[0]
    turns.submit("ahead", ids, 0, session="s")
    turns.step(2)
    turns.submit("turn", ids, 5, session="s")
    turns.collect()
    assert turns.finish["ahead"] is FinishReason.ABORTED
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == 40
    assert turns.ids["turn"] == greedy(shared_model, ids, 5)


def test_turns_of_one_session_run_one_after_another(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=3)
    a, b = prompts(5, 6)
    turns.submit("first", a, 4, session="s")
    turns.submit("second", b, 4, session="s")
    turns.submit("other", b, 4)
    turns.step()
    assert turns.batcher.stats().running == 2
    turns.run()
    assert turns.ids["first"] == greedy(shared_model, a, 4)
    assert turns.ids["second"] == turns.ids["other"] == greedy(shared_model, b, 4)


def test_a_long_prefill_does_not_stop_those_that_decode(shared_model: PreTrainedModel) -> None:
    turns = Turns(shared_model, num_slots=3, prefill_tokens=8)
    short, long, late = prompts(4, 100, 5)
    turns.submit("short", short, 30)
    turns.step()
    turns.submit("long", long, 5)
    turns.submit("late", late, 5)
    for _ in range(4):
        sampled = len(turns.ids["short"])
        turns.step()
        assert len(turns.ids["short"]) == sampled + 1
    # The late prompt was served between two chunks of the long one.
    assert turns.ids["late"]
    assert not turns.ids["long"]
    turns.run()
    assert turns.ids["long"] == greedy(shared_model, long, 5)


def test_a_session_that_keeps_its_slot_goes_first_but_not_for_ever(
    shared_model: PreTrainedModel,
) -> None:
    turns = Turns(shared_model, num_slots=1)
    ids = prompts(4)[0]
    turns.submit("warm 0", ids, 1, session="warm")
    turns.run()
    turns.submit("cold", prompts(5)[0], 1)
    for i in range(1, 1000):
        turns.submit(f"warm {i}", ids, 1, session="warm")
        turns.step()
        if "cold" in turns.finish:
            break
    assert 10 < i < 300


def test_new_weights_that_keep_the_cache(model: PreTrainedModel) -> None:
    """The reference is the model's own cache, filled by the old weights."""
    new = tiny_qwen(seed=5)
    old = deepcopy(model)
    ids = prompts(12)[0]
    turns = Turns(model, num_slots=2)
    turns.submit("a", ids, 20)
    turns.step(6)
    num_old = len(turns.ids["a"])
    load_into(model, weights_of(new))
    turns.batcher.change_weights(lambda: None, 2, keep_cache=True)
    turns.run()
    sampled = turns.ids["a"]
    assert turns.versions["a"] == [1] * num_old + [2] * (20 - num_old)
    everything = torch.tensor([ids + sampled])
    num_cached = len(ids) + num_old - 1
    cache = DynamicCache()
    before = old(everything[:, :num_cached], cache=cache, use_cache=True).logits
    after = new(everything[:, num_cached:], cache=cache, use_cache=True).logits
    logprobs = torch.cat((before, after), 1)[0, len(ids) - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(sampled)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(turns.logprobs["a"]), expected, atol=1e-4, rtol=0)
    assert logprobs.argmax(-1).tolist() == sampled


def test_new_weights_that_recompute_the_cache(model: PreTrainedModel) -> None:
    new = tiny_qwen(seed=5)
    old = deepcopy(model)
    ids, resting = prompts(12, 9)
    turns = Turns(model, num_slots=2, prefill_tokens=5)
    turns.submit("resting", resting, 2)
    turns.run()
    turns.submit("a", ids, 20)
    turns.step(9)
    num_old = len(turns.ids["a"])
    assert 0 < num_old < 20
    load_into(model, weights_of(new))
    turns.batcher.change_weights(lambda: None, 2, keep_cache=False)
    assert turns.batcher.stats().cached_tokens == 0
    turns.run()
    sampled = turns.ids["a"]
    assert turns.versions["a"] == [1] * num_old + [2] * (20 - num_old)
    expected = torch.cat(
        (
            reference_logprobs(old, ids, sampled, GREEDY)[:num_old],
            reference_logprobs(new, ids, sampled, GREEDY)[num_old:],
        )
    )
    torch.testing.assert_close(torch.tensor(turns.logprobs["a"]), expected, atol=1e-4, rtol=0)
    assert sampled[num_old:] == greedy(new, ids + sampled[:num_old], 20 - num_old)
    turns.submit("resting again", resting + turns.ids["resting"], 6, session="resting")
    turns.run()
    assert turns.ids["resting again"] == greedy(new, resting + turns.ids["resting"], 6)


def test_broken_weights_are_an_error_not_a_token(model: PreTrainedModel) -> None:
    turns = Turns(model, num_slots=1)
    turns.submit("a", [1, 2], 5)
    model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        turns.run()


# --------------------------------------------------------------------------- common beginnings

PROMPT = [(7 * i) % 200 for i in range(50)]


def alone(ids: list[int], num_tokens: int, model: PreTrainedModel) -> list[float]:
    turns = Turns(model, num_slots=1)
    turns.submit("alone", ids, num_tokens)
    turns.run()
    return turns.logprobs["alone"]


@pytest.mark.parametrize(("prefill_tokens", "each"), [(64, 1), (16, 2)])
def test_a_prompt_that_many_have_is_computed_once(prefill_tokens: int, each: int) -> None:
    """But for the last id of each, or what comes after the last whole block of ids."""
    model = tiny_qwen(seed=0)
    turns = Turns(model, num_slots=4, prefill_tokens=prefill_tokens)
    for sibling in "abcd":
        turns.submit(sibling, PROMPT, 5)
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == len(PROMPT) + 3 * each
    expected = alone(PROMPT, 5, model)
    for sibling in "abcd":
        assert turns.logprobs[sibling] == pytest.approx(expected, abs=1e-4)


def test_what_differs_after_a_common_beginning_is_computed_for_each() -> None:
    model = tiny_qwen(seed=0)
    endings = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
    turns = Turns(model, num_slots=3, prefill_tokens=64)
    for name, ending in endings.items():
        turns.submit(name, PROMPT[:40] + ending, 4)
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == 40 + 3 + 2 + 1
    for name, ending in endings.items():
        expected = alone(PROMPT[:40] + ending, 4, model)
        assert turns.logprobs[name] == pytest.approx(expected, abs=1e-4)


def test_a_slot_that_was_let_go_still_lends_its_beginning_until_it_is_taken() -> None:
    turns = Turns(tiny_qwen(seed=0), num_slots=2)
    turns.submit("first", PROMPT, 1)
    turns.run()
    turns.batcher.release("first")
    turns.submit("other", [9] * 20, 1)  # takes the slot
    turns.submit("second", PROMPT, 1)
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == len(PROMPT) + 20 + len(PROMPT)
    turns.batcher.release("other")
    turns.submit("third", PROMPT, 1)
    turns.run()
    assert turns.batcher.stats().tokens_prefilled == 2 * len(PROMPT) + 20 + 1


@pytest.mark.parametrize("keep_cache", [True, False])
def test_nothing_that_older_weights_computed_is_lent(keep_cache: bool) -> None:
    model, newer = tiny_qwen(seed=0), tiny_qwen(seed=1)
    turns = Turns(model, num_slots=4)
    turns.submit("before", PROMPT, 6)
    turns.step(6)
    turns.batcher.change_weights(
        lambda: load_into(model, weights_of(newer)), 2, keep_cache=keep_cache
    )
    turns.submit("after", PROMPT, 3)
    turns.run()
    assert turns.logprobs["after"] == pytest.approx(alone(PROMPT, 3, newer), abs=1e-4)
    assert turns.versions["after"] == [2, 2, 2]


def test_a_long_prompt_that_ends_early_leaves_the_others_to_compute_theirs() -> None:
    turns = Turns(tiny_qwen(seed=0), num_slots=2)
    turns.submit("first", PROMPT, 2)
    turns.submit("second", PROMPT, 2)
    turns.step()
    turns.batcher.abort("first")
    turns.run()
    assert turns.finish["second"] is FinishReason.LENGTH
