from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.record import trackers
from agentrl.record.trackers import Guarded, open_trackers


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tracker,) = open_trackers(["tensorboard"], tmp_path, {})
    tracker.log(1, {"reward": 0.25})
    tracker.log(2, {"reward": 0.5})
    tracker.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.25), (2, 0.5)]


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "missing_trackers", lambda names: ["wandb"])
    with pytest.raises(ValueError, match=r"pip install 'agentrl-runtime\[wandb\]'"):
        open_trackers(["wandb"], tmp_path, {})


def test_a_failing_tracker_is_switched_off() -> None:
    class Failing:
        calls = 0

        def log(self, step: int, values: Mapping[str, float]) -> None:
            self.calls += 1
            raise ConnectionError("gone")

        def close(self) -> None:
            raise AssertionError("a tracker that failed is left alone")

    failing = Failing()
    tracker = Guarded("failing", failing)
    tracker.log(1, {})
    tracker.log(2, {})
    tracker.close()
    assert failing.calls == 1
