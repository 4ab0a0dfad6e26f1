"""Draws follow the distribution, depend on (seed, i) alone, and report its log-probs."""

import numpy as np
import pytest
import torch

from agentrl.engine.engine import Sampling
from agentrl.engine.sampling import Sampler, keep_top, stream_of, uniforms

CPU = torch.device("cpu")


def streams(*seeds: int) -> np.ndarray:
    return np.array([stream_of(seed) for seed in seeds], dtype=np.uint64)


def test_uniforms_are_splitmix64() -> None:
    # The generator's published first outputs for state 1234567, as its counter sees them.
    state = np.array([1234567, 1234567], dtype=np.uint64)
    expected = [6457827717110365317, 3203168211198807973]
    assert uniforms(state, [0, 1]).tolist() == [(x >> 12) * 2.0**-52 for x in expected]


def test_uniforms_are_uniform_and_independent_across_seeds_and_draws() -> None:
    grid = np.stack([uniforms(streams(*range(200)), [i] * 200) for i in range(200)])
    assert grid.min() >= 0
    assert grid.max() < 1
    assert len(np.unique(grid)) == grid.size
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    assert np.abs(counts / grid.size - 0.05).max() < 0.005
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 10**30])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert 0 <= uniforms(streams(seed), [0])[0] < 1


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.0, -torch.inf, 1.0])
    temperature = 0.5
    num_draws = 20_000
    sampler = Sampler([Sampling(seed=i, temperature=temperature) for i in range(num_draws)], CPU)
    drawn = sampler.draw(logits.expand(num_draws, -1), [3] * num_draws)
    expected = (logits / temperature).softmax(-1)
    observed = torch.bincount(torch.tensor(drawn.ids), minlength=4) / num_draws
    torch.testing.assert_close(observed, expected, atol=0.01, rtol=0)
    assert drawn.logprobs == pytest.approx(expected.log()[drawn.ids].tolist(), abs=1e-6)


def test_rows_do_not_depend_on_each_other() -> None:
    rules = [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0.3),
        Sampling(seed=3, temperature=0),
        Sampling(seed=4, top_p=0.5),
        Sampling(seed=5, top_k=3, temperature=2.0),
        Sampling(seed=6, top_k=7, top_p=0.8),
    ]
    logits = torch.randn(len(rules), 50, generator=torch.Generator().manual_seed(0))
    together = Sampler(rules, CPU).draw(logits, range(len(rules)))
    for i, rule in enumerate(rules):
        alone = Sampler([rule], CPU).draw(logits[i : i + 1], [i])
        assert alone.ids == together.ids[i : i + 1]
        assert alone.logprobs == pytest.approx(together.logprobs[i : i + 1], abs=1e-6)


def test_greedy_takes_the_likeliest_with_its_logprob_at_temperature_1() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    drawn = Sampler([Sampling(temperature=0, top_k=1, top_p=0.1)], CPU).draw(logits, [0])
    assert drawn.ids == [1]
    assert drawn.logprobs == pytest.approx([logits.log_softmax(-1)[0, 1].item()])


def test_top_k_then_top_p() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()

    def kept(top_p: float, top_k: int) -> list[int]:
        rules = {"top_p": torch.tensor([top_p]), "top_k": torch.tensor([top_k])}
        return keep_top(logits, **rules)[0].isfinite().nonzero()[:, 0].tolist()

    assert kept(1.0, 0) == [0, 1, 2, 3]
    assert kept(1.0, 2) == [0, 1]
    assert kept(0.41, 0) == [0, 1]
    assert kept(0.39, 0) == [0]
    assert kept(1e-9, 0) == [0]
    # Of the two kept by top_k, the first alone has 4/7 of the mass.
    assert kept(0.5, 2) == [0]
    assert kept(0.6, 2) == [0, 1]
    assert kept(1.0, 100) == [0, 1, 2, 3]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "rule", [Sampling(), Sampling(temperature=0), Sampling(top_k=2, top_p=0.5)]
)
def test_what_is_not_finite_shows_in_the_logprob(rule: Sampling, bad: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 2.0, 1.0]])
    drawn = Sampler([rule, rule], CPU).draw(logits, [0, 0])
    assert np.isnan(drawn.logprobs[0])
    assert np.isfinite(drawn.logprobs[1])


def test_a_large_vocabulary_is_drawn_from_exactly() -> None:
    logits = torch.zeros(1, 150_000)
    sampler = Sampler([Sampling(seed=9)], CPU)
    for i in range(20):
        expected = int(uniforms(streams(9), [i])[0] * 150_000)
        assert abs(sampler.draw(logits, [i]).ids[0] - expected) <= 1
