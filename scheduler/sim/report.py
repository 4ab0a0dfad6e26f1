"""A comparison as a table, as JSON and as one HTML page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scheduler.gauges import mean_error
from scheduler.sim.run import Comparison, Figures, PolicyResult
from scheduler.sim.statistics import Ratio, speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy, on its best fleet."""

    policy: str
    fleet: str
    variant: dict[str, Any]
    seconds: float
    tokens_per_s: float
    vs_baseline: Ratio
    """Against the baseline on its own best fleet."""
    vs_baseline_same_fleet: Ratio
    gain_share: float | None
    """Of the gain that the best yardstick has over the baseline; None where that gains < 2 %."""
    tail_seconds: float
    bubble: float
    moved_ratio: float
    preemptions: float
    shifts: float
    long_kept: float
    kept_by_length: tuple[float, ...]
    cost_error: float
    """Mean distance of predicted from observed seconds of turns, steps, loads and handoffs, as learned
    by then; a share of the observed ones."""


def rows_of(comparison: Comparison) -> list[Row]:
    """One row a policy, in the order of the file."""
    settings = comparison.settings
    by_name = {result.policy: result for result in comparison.results}
    baseline = _seconds(by_name[settings.baseline].figures)
    yardsticks = [speedup(baseline, _seconds(by_name[name].figures)).mean
                  for name in settings.yardsticks]  # fmt: skip
    best = max(yardsticks, default=1.0) - 1.0
    return [_row(comparison, result, baseline, best) for result in comparison.results]


def _row(
    comparison: Comparison, result: PolicyResult, baseline: list[float], best_gain: float
) -> Row:
    figures = result.figures
    ratio = speedup(baseline, _seconds(figures))
    same_fleet = _seconds(comparison.same_fleet[result.policy])
    return Row(
        policy=result.policy,
        fleet=result.choice.fleet,
        variant=result.choice.variant,
        seconds=fmean(f.seconds for f in figures),
        tokens_per_s=fmean(f.tokens_per_s for f in figures),
        vs_baseline=ratio,
        vs_baseline_same_fleet=speedup(same_fleet, _seconds(figures)),
        gain_share=(ratio.mean - 1.0) / best_gain if best_gain >= 0.02 else None,
        tail_seconds=fmean(f.tail_seconds for f in figures),
        bubble=fmean(
            1.0 - f.decode_share - f.prefill_share - f.train_share - f.shift_share for f in figures
        ),
        moved_ratio=fmean(f.moved_ratio for f in figures),
        preemptions=fmean(f.preemptions for f in figures),
        shifts=fmean(f.shifts for f in figures),
        long_kept=fmean(f.long_kept for f in figures),
        kept_by_length=tuple(
            fmean(shares) for shares in zip(*(f.kept_by_length for f in figures), strict=True)
        ),
        cost_error=fmean(mean_error(f.costs) for f in figures),
    )


def _seconds(figures: Sequence[Figures]) -> list[float]:
    return [each.seconds for each in figures]


HEADINGS = (
    "policy", "best fleet", "seconds", "tokens/s", "x baseline (95 %)", "x same fleet", "share",
    "tail s", "bubble", "moved", "preempted", "shifts", "kept by length",
    "long kept", "cost error",
)  # fmt: skip


def cells_of(row: Row) -> tuple[str, ...]:
    ratio = row.vs_baseline
    return (
        row.policy,
        row.fleet,
        f"{row.seconds:.0f}",
        f"{row.tokens_per_s:.0f}",
        f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
        f"{row.vs_baseline_same_fleet.mean:.3f}",
        "-" if row.gain_share is None else f"{row.gain_share:.2f}",
        f"{row.tail_seconds:.0f}",
        f"{row.bubble:.2f}",
        f"{row.moved_ratio:.2f}",
        f"{row.preemptions:.0f}",
        f"{row.shifts:.0f}",
        "all"
        if min(row.kept_by_length) == 1.0
        else " ".join(f"{share:.2f}" for share in row.kept_by_length),
        f"{row.long_kept:.2f}",
        f"{row.cost_error:.0%}",
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Everything a reader needs to check the table: settings, choices, every seed's figures."""
    return {
        "settings": asdict(comparison.settings),
        "rows": [asdict(row) for row in rows_of(comparison)],
        "results": [asdict(result) for result in comparison.results],
    }


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;color:#222}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
svg{display:block;margin:1rem 0}text{font:12px system-ui,sans-serif}
"""


def to_html(comparison: Comparison, charts: Sequence[tuple[str, str]]) -> str:
    """`charts`: a caption and an SVG each."""
    rows = rows_of(comparison)
    settings = comparison.settings
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells_of(row)) + "</tr>"
        for row in rows
    )
    pictures = "".join(f"<h2>{html.escape(name)}</h2>{svg}" for name, svg in charts)
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(settings.name)}</title>"
        f"<style>{_STYLE}</style><h1>{html.escape(settings.name)}</h1>"
        f"<p>{html.escape(settings.about)}</p><p>{settings.seeds} paired seeds; every policy on "
        f"the fleet and variant that were best for it on {settings.tuning_seeds} other seeds. "
        f"Simulated.</p><table><tr>{head}</tr>{body}</table>{pictures}"
    )
