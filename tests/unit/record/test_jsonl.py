from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import orjson
import pytest

from agentrl.record.jsonl import AppendFile, read_lines, to_line, write_whole
from agentrl.types import Json, Outcome, RewardPart, ToolCall, Turn


def stored(value: object) -> object:
    line = to_line(value)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return orjson.loads(line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (float("nan"), None),
        (float("-inf"), None),
        ([np.float64("nan")], [None]),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ({"\udcff": ["\udcff"]}, {"\\udcff": ["\\udcff"]}),
        (2**70, str(2**70)),
        (2**20_000, "<integer of 20001 bits>"),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        (frozenset({"x"}), ["x"]),
        ((1, 2), [1, 2]),
        (Outcome.FINISHED, "finished"),
        ({"deep": {"surrogate": "\ud800", "outcome": Outcome.FINISHED}},
         {"deep": {"surrogate": "\\ud800", "outcome": "finished"}}),
        (Path("a"), repr(Path("a"))),
        (RewardPart(name="r", value=float("nan")),
         {"name": "r", "value": None, "weight": 1.0, "rationale": ""}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_any_value_becomes_json(value: object, expected: object) -> None:
    assert stored(value) == expected


def test_endless_nesting_ends() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert b"nested deeper" in to_line(endless)


def test_deep_values_of_dataclasses_are_cut_like_others() -> None:
    deep: Json = []
    for _ in range(900):
        deep = [deep]
    turn = Turn(calls=(ToolCall("sh", {"cmd": deep, "n": 2**70}),))
    line = to_line({"turns": [turn]})
    assert b"nested deeper" in line
    (call,) = orjson.loads(line)["turns"][0]["calls"]
    assert (call["name"], call["arguments"]["n"]) == ("sh", str(2**70))


def test_a_line_without_newline_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = to_line({"n": 1}) + to_line({"n": 2})
    path.write_bytes(whole + b'{"n": 3')
    assert [line for _, line in read_lines(path)] == [{"n": 1}, {"n": 2}]
    assert [end for end, _ in read_lines(path)] == [8, 16]
    assert list(read_lines(path, 8)) == [(16, {"n": 2})]
    assert list(read_lines(tmp_path / "missing.jsonl")) == []


@pytest.mark.parametrize("torn", [b"", b"{", b'{"n": 3', b"x" * 200_000])
def test_a_torn_tail_is_cut_off_before_going_on(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_line({"n": 1}) + torn)
    file = AppendFile(path)
    assert file.append(to_line({"n": 2})) == 8
    file.close()
    assert [line for _, line in read_lines(path)] == [{"n": 1}, {"n": 2}]


def test_a_failed_write_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    file = AppendFile(path)
    file.append(to_line({"n": 1}))

    class FullDisk:
        def write(self, data: memoryview) -> int:
            if len(data) < 8:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real.write(data[:3])

        def fileno(self) -> int:
            return real.fileno()

    real = file._file
    monkeypatch.setattr(file, "_file", FullDisk())
    with pytest.raises(OSError, match="No space"):
        file.append(to_line({"n": 2}))
    monkeypatch.setattr(file, "_file", real)
    file.append(to_line({"n": 3}))
    file.close()
    assert [line for _, line in read_lines(path)] == [{"n": 1}, {"n": 3}]


def test_a_small_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
