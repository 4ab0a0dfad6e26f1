import pytest

from scheduler.costs import PUBLISHED, DecodeCost, PrefillCost, libra_shapes


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("cost", [*PUBLISHED.values(), libra_shapes()[8].decode])
def test_closed_form_equals_the_sum_of_steps(cost: DecodeCost, steps: int) -> None:
    num_running, kv = 13, 5000
    stepped = sum(cost.step_seconds(num_running, kv + num_running * k) for k in range(steps))
    assert cost.seconds(steps, num_running, kv) == pytest.approx(stepped, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 50, 4000])
@pytest.mark.parametrize("a", [0.0, 9e-8])
def test_inverse_counts_the_steps_that_have_begun(a: float, steps: int) -> None:
    cost = DecodeCost(b=0.01, b0=0.005, c=1e-4, a=a, d=0.001)
    end = cost.seconds(steps, 8, 100)
    assert cost.steps_to_reach(end, 8, 100) == steps
    assert cost.steps_to_reach(end * (1 + 1e-6), 8, 100) == steps + 1
    assert cost.steps_to_reach(end - cost.step_seconds(8, 100) / 2, 8, 100) == steps
    assert cost.steps_to_reach(0.0, 8, 100) == 0


@pytest.mark.parametrize(
    ("running", "context", "milliseconds"), [(1, 4096, 5.8), (64, 8192, 27.7), (256, 4096, 62.0)]
)
def test_published_constants_give_the_published_latencies(
    running: int, context: int, milliseconds: float
) -> None:
    cost = PUBLISHED["qwen2.5-7b-tp1"]
    assert 1e3 * cost.step_seconds(running, running * context) == pytest.approx(
        milliseconds, rel=0.02
    )


def test_prefill_attention_grows_with_the_context_before() -> None:
    cost = PrefillCost(per_token=1e-4, per_token_pair=1e-8)
    assert cost.seconds(100, 1000) == pytest.approx(
        100e-4 + 1e-8 * sum(1000 + i + 0.5 for i in range(100))
    )


def test_memory_share_decides_what_a_narrow_worker_holds() -> None:
    assert libra_shapes(memory_share=0.5)[1].kv_tokens == pytest.approx(46_000, rel=0.02)
    assert libra_shapes(memory_share=0.85)[1].kv_tokens == pytest.approx(217_000, rel=0.02)
