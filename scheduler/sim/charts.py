"""Pictures of a simulation as SVG text: speed-ups as bars, workers over time as a heat map."""

from __future__ import annotations

import html
from collections.abc import Sequence

from scheduler.decisions import Decision, Place
from scheduler.events import (
    Event,
    Failed,
    Finished,
    PlaceRejected,
    Published,
    TurnFinished,
    WorkerLost,
    WorkerReady,
)
from scheduler.sim.report import Row

_WIDTH = 900


def speedup_bars(rows: Sequence[Row]) -> str:
    """One bar a policy with its interval; the line is the baseline."""
    height, left, unit = 24, 170, 420
    parts = []
    for i, row in enumerate(rows):
        y = i * height
        ratio = row.vs_baseline
        parts.append(
            f'<text x="0" y="{y + 15}">{html.escape(row.policy)}</text>'
            f'<rect x="{left}" y="{y + 4}" width="{ratio.mean * unit:.1f}" height="14" '
            f'fill="#4878a8"/>'
            f'<path d="M{left + ratio.low * unit:.1f} {y + 11}H{left + ratio.high * unit:.1f}" '
            f'stroke="#111"/>'
            f'<text x="{left + ratio.high * unit + 6:.1f}" y="{y + 15}">{ratio.mean:.3f}</text>'
        )
    line = left + unit
    parts.append(f'<path d="M{line} 0V{len(rows) * height}" stroke="#c33" stroke-dasharray="4"/>')
    return _svg(len(rows) * height, parts)


class Occupancy:
    """Listens to a run and keeps how many turns each worker runs, in slices of time."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._running: dict[str, set[str]] = {}
        self._placed: dict[str, str] = {}
        self._rows: list[dict[str, int]] = []
        self._slots: dict[str, int] = {}
        self._published: list[float] = []

    def __call__(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        while len(self._rows) * self._slice_s <= event.t:
            self._rows.append({name: len(turns) for name, turns in self._running.items()})
        match event:
            case WorkerReady() | WorkerLost():
                for trajectory_id in self._running.get(event.worker_id, ()):
                    del self._placed[trajectory_id]
                self._running[event.worker_id] = set()
                if isinstance(event, WorkerReady):
                    self._slots[event.worker_id] = event.max_running
            case TurnFinished() | Finished() | Failed() | PlaceRejected():
                worker_id = self._placed.pop(event.trajectory_id, None)
                if worker_id is not None:
                    self._running[worker_id].discard(event.trajectory_id)
            case Published():
                self._published.append(event.t)
            case _:
                pass
        for decision in decisions:
            if isinstance(decision, Place):
                self._placed[decision.trajectory_id] = decision.worker_id
                self._running[decision.worker_id].add(decision.trajectory_id)

    def to_svg(self) -> str:
        """A line a worker, darker where more of its slots run; ticks where weights appeared."""
        names = list(self._running)
        height, left = 14, 90
        width = (_WIDTH - left) / max(1, len(self._rows))
        peak = max((count for row in self._rows for count in row.values()), default=1) or 1
        parts = []
        for i, name in enumerate(names):
            parts.append(f'<text x="0" y="{i * height + 11}">{html.escape(name)}</text>')
            for j, row in enumerate(self._rows):
                share = row.get(name, 0) / peak
                if share > 0:
                    parts.append(
                        f'<rect x="{left + j * width:.1f}" y="{i * height}" '
                        f'width="{width + 0.1:.1f}" height="{height - 1}" '
                        f'fill="#23527c" fill-opacity="{share:.2f}"/>'
                    )
        bottom = len(names) * height
        for t in self._published:
            x = left + t / self._slice_s * width
            parts.append(f'<path d="M{x:.1f} 0V{bottom}" stroke="#c33"/>')
        return _svg(bottom, parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height + 4}" width="{_WIDTH}" role="img">'
        + "".join(parts)
        + "</svg>"
    )
