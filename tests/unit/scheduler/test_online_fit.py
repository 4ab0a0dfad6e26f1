from __future__ import annotations

from random import Random

import pytest

from scheduler.estimators.online_fit import OnlineLinear, OnlineLogistic, sigmoid


def draw(rng: Random) -> tuple[float, float, float]:
    return 1.0, rng.gauss(0, 1), float(rng.random() < 0.3)


def test_least_squares_finds_weights_and_spread() -> None:
    rng = Random(0)
    model = OnlineLinear([0.0] * 3, 3.0, spread=1.0)
    for _ in range(1000):
        x = draw(rng)
        model.learn(x, 2.0 - 1.0 * x[1] + 0.5 * x[2] + rng.gauss(0, 0.3))
    assert model.mean == pytest.approx([2.0, -1.0, 0.5], abs=0.1)
    assert model.variance == pytest.approx(0.09, abs=0.03)


def test_the_logistic_model_finds_chances() -> None:
    rng = Random(1)
    model = OnlineLogistic([0.0] * 3, 2.0)
    for _ in range(2000):
        x = draw(rng)
        model.learn(x, rng.random() < sigmoid(-1.0 + 1.5 * x[1] - 1.0 * x[2]))
    assert model.mean == pytest.approx([-1.0, 1.5, -1.0], abs=0.3)


def test_forgetting_follows_a_change_that_remembering_does_not() -> None:
    rng = Random(2)
    forgets, keeps = (OnlineLinear([0.0], 3.0, spread=1.0) for _ in range(2))
    for value in [1.0] * 300 + [5.0] * 100:
        for model in (forgets, keeps):
            model.learn((1.0,), value + rng.gauss(0, 0.2))
        forgets.widen(2 ** (1 / 20))
    assert forgets.mean == pytest.approx([5.0], abs=0.3)
    assert keeps.mean[0] < 3.0


def test_a_feature_that_is_never_on_keeps_its_prior() -> None:
    model = OnlineLinear([0.0, 0.7], 1.0, spread=1.0)
    for _ in range(500):
        model.learn((1.0, 0.0), 3.0)
        model.widen(1.5)
    assert model.mean[1] == 0.7
    model.learn((1.0, 1.0), 4.0)
    assert abs(model.mean[1] - 0.7) < 1.0, "one observation does not undo a prior"


def test_chances_stay_chances_far_out() -> None:
    assert sigmoid(-800.0) == 0.0
    assert sigmoid(800.0) == 1.0
