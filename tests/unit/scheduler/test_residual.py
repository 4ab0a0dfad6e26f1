import pytest

from scheduler.residual import BIN_EDGES, NUM_BINS, Residual, bin_of


def test_bins_double_and_cover_everything() -> None:
    assert bin_of(0) == bin_of(31) == 0
    assert [bin_of(edge - 1) for edge in BIN_EDGES] == list(range(NUM_BINS - 1))
    assert [bin_of(edge) for edge in BIN_EDGES] == list(range(1, NUM_BINS))
    assert bin_of(10**9) == NUM_BINS - 1


def test_bin_values_lie_in_their_bins() -> None:
    certain = Residual.from_hazards([0.0] * NUM_BINS)
    assert [bin_of(int(value)) for value in certain.values] == list(range(NUM_BINS))


def test_hazards_become_probabilities() -> None:
    residual = Residual.from_hazards([0.5, 0.5] + [1.0] * (NUM_BINS - 2))
    assert residual.probabilities[:4] == (0.5, 0.25, 0.25, 0.0)
    assert sum(residual.probabilities) == pytest.approx(1.0)


def test_moments_tail_and_quantiles() -> None:
    residual = Residual((10.0, 100.0), (0.75, 0.25))
    assert residual.mean == 32.5
    assert residual.second_moment == 75 + 2500
    assert residual.tail(10) == 0.25
    assert (residual.quantile(0.75), residual.quantile(0.76)) == (10.0, 100.0)
