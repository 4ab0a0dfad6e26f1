from dataclasses import replace

from scheduler_driver import Driver

from scheduler.decisions import Place
from scheduler.events import GroupAccepted, RunStarted, WorkerLost
from scheduler.replay import LogEntry, read_log, replay


def recorded_run() -> Driver:
    run = Driver()
    run.send(RunStarted)
    run.worker("w0")
    for name in "abc":
        run.submit(name)
        run.ready(name)
    run.finish_turn("a")
    run.send(WorkerLost, worker_id="w0")
    run.worker("w1", slots=2)
    run.ready("b", generation=1)
    run.send(GroupAccepted, group_id="g0")
    return run


def test_recorded_run_replays_byte_for_byte() -> None:
    run = recorded_run()
    lines = [entry.to_line() for entry in run.log]
    report = replay(Driver().scheduler, read_log(lines))
    assert report.difference is None
    assert report.num_events == len(run.log)
    assert report.num_decisions == sum(len(entry.decisions) for entry in run.log) > 0


def test_lines_survive_reading_and_a_torn_last_line_does_not_exist() -> None:
    lines = [entry.to_line() for entry in recorded_run().log]
    assert [LogEntry.from_line(line).to_line() for line in lines] == lines
    assert len(list(read_log([*lines[:3], lines[3][:20]]))) == 3


def test_first_difference_is_reported() -> None:
    log = recorded_run().log
    at = next(
        i for i, entry in enumerate(log) if any(isinstance(d, Place) for d in entry.decisions)
    )
    (place,) = log[at].decisions
    assert isinstance(place, Place)
    log[at] = replace(log[at], decisions=(replace(place, worker_id="w9"),))
    report = replay(Driver().scheduler, log)
    assert report.difference is not None
    assert report.difference.event == log[at].event
    assert report.difference.replayed == (place,)
