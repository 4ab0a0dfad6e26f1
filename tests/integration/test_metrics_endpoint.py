"""What Prometheus would see of a live run."""

import copy
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from training import SMALL, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

USAGE_ERROR = 2
RESTARTS = "agentrl_restarts_total"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def config(port: int) -> dict[str, Any]:
    changed = copy.deepcopy(SMALL)
    changed["train"] |= {"steps": 1000}
    changed["runtime"] |= {"metrics": {"port": port}}
    return changed


def scrape(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=1.0.0")
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    found = [
        s.value
        for family in families.values()
        for s in family.samples
        if s.name == sample and s.labels == labels
    ]
    assert len(found) == 1, (sample, labels, found)
    return float(found[0])


def label_values(family: Metric, label: str) -> Iterable[str]:
    return {sample.labels[label] for sample in family.samples}


def test_a_live_run_is_scraped_and_the_port_is_free_again_after_it(tmp_path: Path) -> None:
    port = free_port()
    training = Training(tmp_path, config(port))
    training.wait_for(lambda: training.steps_done() >= 2)
    first, second = scrape(port), scrape(port)
    assert value(second, "agentrl_step") >= 2
    ended = "agentrl_trajectories_total"
    for families in (first, second):
        assert sum(s.value for s in families["agentrl_trajectories"].samples if s.name == ended) > 8
    assert value(second, "agentrl_sampled_tokens_total") >= value(
        first, "agentrl_sampled_tokens_total"
    )
    assert value(second, "agentrl_step_duration_seconds_count", part="all") >= 2
    for process in ("coordinator", "worker", "runner", "run"):
        assert value(second, RESTARTS, process=process) == 0
    assert set(label_values(second["agentrl_process_up"], "process")) == {
        "coordinator",
        "runner-0",
        "worker-0",
        "worker-1",
    }
    assert all(sample.value == 1 for sample in second["agentrl_process_up"].samples)
    assert value(second, "agentrl_workers", role="rollout", bucket="default") == 1
    assert value(second, "agentrl_workers", role="training", bucket="default") == 1
    assert value(second, "agentrl_scheduler_events_total", event="TurnFinished") > 8
    assert value(second, "agentrl_box_creates_total", runner="runner-0") > 0
    assert value(second, "agentrl_engine_generated_tokens_total", worker="worker-1") > 0
    assert value(second, "agentrl_oldest_wait_seconds") < 200
    refused = Training(tmp_path / "other", config(port))
    assert refused.wait() == USAGE_ERROR
    assert f"nothing can listen on 127.0.0.1:{port}" in refused.text
    for process, number in (("coordinator", signal.SIGKILL), ("worker", signal.SIGTERM)):
        training.actors(process.capitalize())[-1].send_signal(number)
        training.wait_for(lambda name=process: value(scrape(port), RESTARTS, process=name) == 1)
    training.signal()
    assert training.wait() == 130, training.text
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
