"""Frames survive any cutting of the stream, and nothing from a box is taken on trust."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import wire
from sandboxes.boxd import frames

FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=8
)


@given(FRAMES, st.integers(1, 40))
def test_frames_survive_any_cutting(sent: list[tuple[int, int, bytes]], size: int) -> None:
    stream = b"".join(wire.frame(*frame) for frame in sent)
    reader = wire.FrameReader(limit=64)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == sent


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    reader = wire.FrameReader(limit=10)
    header = wire.frame(frames.RESULT, 1, bytes(11))[: frames.HEADER_BYTES]
    with pytest.raises(ValueError, match="a frame of 11 bytes, over the limit of 10"):
        list(reader.feed(header))


def test_a_short_result_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted at least"):
        wire.check_result(b"\0" * (wire.RESULT_HEAD_BYTES - 1))


@pytest.mark.parametrize(("status", "rc"), [(0, 0), (3 << 8, 3), (9, 137), (15, 143)])
def test_exit_codes_and_signals(status: int, rc: int) -> None:
    payload = bytes([frames.OOM]) + status.to_bytes(4, "big")
    payload += (
        b"".join(n.to_bytes(8, "big") for n in (1_500_000, 4096, 250_000, 7, 2, 3)) + b"outer"
    )
    result = wire.exec_result(payload)
    assert (result.rc, result.out, result.err) == (rc, b"out", b"er")
    assert (result.out_bytes, result.err_bytes, result.is_truncated) == (7, 2, True)
    assert (result.oom, result.timed_out, result.seconds) == (True, False, 0.25)
    assert result.usage is not None
    assert (result.usage.cpu_seconds, result.usage.max_rss_bytes) == (1.5, 4096)


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}])
def test_impossible_environment_names_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="environment names"):
        wire.Command(argv=["true"], env=env, cwd=".")
