"""The embedded engine as its callers see it: streams, commands between steps, errors."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
import pytest_asyncio
import torch
from tiny_models import greedy, prompts, reference_logprobs, tiny_qwen, weights_of
from transformers import PreTrainedModel

from agentrl.engine.engine import (
    Engine,
    EngineError,
    FinishReason,
    GenerateRequest,
    RequestError,
    Sampling,
    TokenChunk,
    UnfitWeights,
    WeightSwap,
)
from agentrl.engine.torch_engine import TorchEngine

GREEDY = Sampling(temperature=0)
CONTEXT_TOKENS = 256
pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def engine(paced: PreTrainedModel) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(
        paced, num_slots=4, context_tokens=CONTEXT_TOKENS, prefill_tokens=32, policy_version=7
    )
    yield engine
    await engine.close()


def request(
    name: str,
    ids: Sequence[int],
    num_tokens: int,
    *,
    session: str = "",
    sampling: Sampling = GREEDY,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        session_id=session or name,
        ids=ids,
        max_new_tokens=num_tokens,
        sampling=sampling,
    )


async def whole(chunks: AsyncIterator[TokenChunk]) -> TokenChunk:
    """All chunks of a stream in one; only the last may have a finish reason."""
    parts = [chunk async for chunk in chunks]
    assert all(part.finish_reason is None for part in parts[:-1])
    assert parts[-1].finish_reason is not None
    return TokenChunk(
        ids=[i for part in parts for i in part.ids],
        logprobs=[x for part in parts for x in part.logprobs],
        policy_versions=[v for part in parts for v in part.policy_versions],
        finish_reason=parts[-1].finish_reason,
    )


async def until(engine: TorchEngine, *, running: int = 0, waiting: int = 0) -> None:
    while True:
        stats = await engine.stats()
        if stats.running >= running and stats.waiting >= waiting:
            return
        await asyncio.sleep(0.001)


async def test_it_is_an_engine(engine: TorchEngine) -> None:
    assert isinstance(engine, Engine)


async def test_many_turns_at_once_equal_generate(
    engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    contexts = prompts(1, 30, 7, 64, 100, 2, 50, 3, 9)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(whole(engine.generate(request(str(i), ids, 25))))
            for i, ids in enumerate(contexts)
        ]
    for ids, task in zip(contexts, tasks, strict=True):
        got = task.result()
        assert got.ids == greedy(shared_model, ids, 25)
        assert got.policy_versions == [7] * 25
        assert got.finish_reason is FinishReason.LENGTH
        expected = reference_logprobs(shared_model, ids, got.ids, GREEDY)
        torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=1e-4, rtol=0)
    stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.num_slots) == (0, 0, 4)
    assert stats.tokens_generated == 25 * len(contexts)
    # A single new id is not a prefill: it goes with the ids that are decoded.
    assert stats.tokens_prefilled == sum(len(ids) for ids in contexts if len(ids) > 1)


async def test_a_context_may_be_an_array(
    engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    (ids,) = prompts(12)
    got = await whole(engine.generate(request("a", torch.tensor(ids).numpy(), 5)))
    assert got.ids == greedy(shared_model, ids, 5)
    assert all(type(i) is int for i in got.ids)


async def test_a_budget_of_nothing_is_a_finished_turn(engine: TorchEngine) -> None:
    got = await whole(engine.generate(request("a", [1, 2], 0)))
    assert (got.ids, got.finish_reason) == ([], FinishReason.LENGTH)
    full = [1] * CONTEXT_TOKENS
    assert (await whole(engine.generate(request("b", full, 0)))).ids == []
    last = await whole(engine.generate(request("c", full[1:], 1)))
    assert (len(last.ids), last.finish_reason) == (1, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("ids", "num_tokens", "sampling", "message"),
    [
        ([], 3, GREEDY, "no ids"),
        ([0, 272], 3, GREEDY, "ids from 0 to 272, the vocabulary has 0 to 271"),
        ([-1], 3, GREEDY, "ids from -1"),
        ([1] * 250, 7, GREEDY, "250 ids and 7 new tokens exceed the context of 256"),
        ([1], -1, GREEDY, "max_new_tokens is -1"),
        ([1], 3, Sampling(temperature=-0.5), "temperature >= 0"),
        ([1], 3, Sampling(top_p=0.0), "top_p"),
        ([1], 3, Sampling(top_k=-1), "top_k"),
    ],
)
async def test_a_wrong_request_is_refused_and_nothing_else_suffers(
    engine: TorchEngine, ids: list[int], num_tokens: int, sampling: Sampling, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        await anext(engine.generate(request("a", ids, num_tokens, sampling=sampling)))
    assert len((await whole(engine.generate(request("a", [1], 3)))).ids) == 3


async def test_an_id_in_use_is_refused(engine: TorchEngine) -> None:
    first = engine.generate(request("a", [1], 200))
    await anext(first)
    with pytest.raises(RequestError, match="in use"):
        await anext(engine.generate(request("a", [1], 3)))
    await first.aclose()


async def test_tokens_arrive_before_the_turn_ends(engine: TorchEngine) -> None:
    stream = engine.generate(request("a", [1, 2, 3], CONTEXT_TOKENS - 3))
    first = await anext(stream)
    assert 0 < len(first.ids) < CONTEXT_TOKENS - 3
    assert first.finish_reason is None
    await stream.aclose()


async def test_abort_ends_a_turn_with_what_it_has(
    engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    stream = engine.generate(request("a", [1, 2, 3], 250))
    first = await anext(stream)
    await engine.abort("a")
    rest = await whole(stream)
    ids = [*first.ids, *rest.ids]
    assert rest.finish_reason is FinishReason.ABORTED
    assert len(ids) < 250
    assert ids == greedy(shared_model, [1, 2, 3], len(ids))
    await engine.abort("a")
    await engine.abort("never seen")


async def test_abort_all_reaches_waiting_turns_too(engine: TorchEngine) -> None:
    await engine.pause()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(whole(engine.generate(request(str(i), [i], 100)))) for i in range(9)
        ]
        await until(engine, waiting=9)
        assert await engine.abort_all() == 9
    assert all(task.result().finish_reason is FinishReason.ABORTED for task in tasks)
    await engine.resume()


async def test_a_reader_that_goes_away_aborts_its_turn(engine: TorchEngine) -> None:
    stream = engine.generate(request("a", [1], 250))
    await anext(stream)
    await stream.aclose()
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.tokens_generated < 250
    task = asyncio.create_task(whole(engine.generate(request("b", [1], 250))))
    await until(engine, running=1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.stats()).running == 0


async def test_pause_holds_everything_between_two_steps(
    engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    stream = engine.generate(request("a", [4, 5], 200))
    ids = list((await anext(stream)).ids)
    await engine.pause()
    before = await engine.stats()
    await asyncio.sleep(0.05)
    assert (await engine.stats()).tokens_generated == before.tokens_generated
    assert before.running == 1
    await engine.resume()
    ids += (await whole(stream)).ids
    assert ids == greedy(shared_model, [4, 5], 200)


async def test_pause_streams_all_that_was_sampled(engine: TorchEngine) -> None:
    stream = engine.generate(request("a", [4, 5], 250))
    num_received = len((await anext(stream)).ids)
    await engine.pause()
    sampled = (await engine.stats()).tokens_generated
    if sampled > num_received:
        num_received += len((await anext(stream)).ids)
    assert num_received == sampled
    await stream.aclose()


@pytest.mark.parametrize("swap", [WeightSwap.CONTINUE, WeightSwap.REPREFILL])
async def test_weights_change_between_two_tokens(engine: TorchEngine, swap: WeightSwap) -> None:
    old, new = tiny_qwen(), tiny_qwen(seed=5)
    stream = engine.generate(request("a", [1, 2, 3], 240))
    first = await anext(stream)
    await engine.load_weights(8, weights_of(new), swap=swap)
    rest = await whole(stream)
    ids = [*first.ids, *rest.ids]
    versions = [*first.policy_versions, *rest.policy_versions]
    assert versions == sorted(versions)
    assert set(versions) == {7, 8}
    border = versions.index(8)
    assert ids[:border] == greedy(old, [1, 2, 3], border)
    if swap is WeightSwap.REPREFILL:
        assert ids[border:] == greedy(new, [1, 2, 3, *ids[:border]], 240 - border)
    assert (await engine.stats()).policy_version == 8


async def test_turns_that_run_end_before_drained_weights_change(engine: TorchEngine) -> None:
    """Those that wait meanwhile begin with the new weights."""
    old, new = tiny_qwen(), tiny_qwen(seed=5)
    running = engine.generate(request("a", [1, 2, 3], 200))
    first = await anext(running)
    loading = asyncio.create_task(engine.load_weights(8, weights_of(new), swap=WeightSwap.DRAIN))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(whole(engine.generate(request("b", [4, 5], 20))))
    rest = await whole(running)
    assert {*first.policy_versions, *rest.policy_versions} == {7}
    assert [*first.ids, *rest.ids] == greedy(old, [1, 2, 3], 200)
    await loading
    later = await waiting
    assert later.policy_versions == [8] * 20
    assert later.ids == greedy(new, [4, 5], 20)


async def test_a_refused_drain_lets_turns_begin_again(engine: TorchEngine) -> None:
    with pytest.raises(ValueError, match="lacks"):
        await engine.load_weights(8, {}, swap=WeightSwap.DRAIN)
    got = await whole(engine.generate(request("a", [1, 2], 5)))
    assert got.policy_versions == [7] * 5


async def test_a_refused_weight_update_leaves_the_engine_running(
    engine: TorchEngine, shared_model: PreTrainedModel
) -> None:
    with pytest.raises(UnfitWeights, match="lacks"):
        await engine.load_weights(8, {}, swap=WeightSwap.CONTINUE)
    got = await whole(engine.generate(request("a", [1, 2], 5)))
    assert got.ids == greedy(shared_model, [1, 2], 5)
    assert got.policy_versions == [7] * 5


async def test_prefill_and_release(engine: TorchEngine, shared_model: PreTrainedModel) -> None:
    (ids,) = prompts(100)
    await engine.prefill("s", ids)
    assert (await engine.stats()).tokens_prefilled == 100
    got = await whole(engine.generate(request("a", [*ids, 1], 4, session="s")))
    assert got.ids == greedy(shared_model, [*ids, 1], 4)
    assert (await engine.stats()).tokens_prefilled == 100
    await engine.release("s")
    assert (await engine.stats()).cached_tokens == 0
    with pytest.raises(RequestError):
        await engine.prefill("s", [])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_k=5, top_p=0.5)])
async def test_a_broken_engine_tells_everybody(engine: TorchEngine, sampling: Sampling) -> None:
    broken = dict(weights_of(tiny_qwen()))
    broken["model.norm.weight"] = broken["model.norm.weight"] * float("nan")
    tasks = [
        asyncio.create_task(whole(engine.generate(request(str(i), [i], 200, sampling=sampling))))
        for i in range(6)
    ]
    await until(engine, running=1)
    await engine.load_weights(8, broken, swap=WeightSwap.CONTINUE)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError)
        assert "not finite" in str(result)
    with pytest.raises(EngineError, match="not finite"):
        await engine.stats()


async def test_who_made_an_engine_hears_that_it_broke(model: PreTrainedModel) -> None:
    heard: list[EngineError] = []
    engine = TorchEngine(model, num_slots=1, context_tokens=CONTEXT_TOKENS, on_broken=heard.append)
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(EngineError):
        await whole(engine.generate(request("a", [1], 5)))
    await engine.close()
    assert ["not finite" in str(error) for error in heard] == [True]


async def test_an_engine_that_holds_weights_of_two_versions_serves_nobody(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after CUDA out of memory in the middle of a swap."""
    heard: list[EngineError] = []
    engine = TorchEngine(model, num_slots=1, context_tokens=CONTEXT_TOKENS, on_broken=heard.append)
    weights, names, tensor = weights_of(tiny_qwen(seed=3)), count(), torch.tensor

    def out_of_memory(array: object) -> torch.Tensor:
        if next(names) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tensor(array)

    monkeypatch.setattr(torch, "tensor", out_of_memory)
    with pytest.raises(EngineError, match=r"written in part: .*CUDA out of memory"):
        await engine.load_weights(8, weights, swap=WeightSwap.CONTINUE)
    monkeypatch.undo()
    with pytest.raises(EngineError, match="CUDA out of memory"):
        await whole(engine.generate(request("a", [1], 5)))
    await engine.close()
    assert ["CUDA out of memory" in str(error) for error in heard] == [True]


async def test_an_engine_that_is_closed_has_not_broken(model: PreTrainedModel) -> None:
    heard: list[EngineError] = []
    engine = TorchEngine(model, num_slots=1, context_tokens=CONTEXT_TOKENS, on_broken=heard.append)
    await whole(engine.generate(request("a", [1], 5)))
    await engine.close()
    await asyncio.sleep(0)
    assert heard == []


async def test_a_closed_engine_ends_its_turns_and_refuses_new_ones(paced: PreTrainedModel) -> None:
    engine = TorchEngine(paced, num_slots=1, context_tokens=CONTEXT_TOKENS)
    tasks = [asyncio.create_task(whole(engine.generate(request(str(i), [i], 200)))) for i in (1, 2)]
    await until(engine, waiting=1)
    await engine.close()
    for task in tasks:
        assert (await task).finish_reason is FinishReason.ABORTED
    with pytest.raises(EngineError, match="closed"):
        await anext(engine.generate(request("c", [1], 5)))
    await engine.close()
