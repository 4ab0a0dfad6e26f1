"""Head, tail and true size of output, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.boxd.capture import Capture


def captured(cap: int, *parts: bytes) -> tuple[bytes, Capture]:
    capture = Capture(cap)
    for part in parts:
        capture.add(part)
    return capture.value(), capture


def test_what_fits_is_whole() -> None:
    assert captured(10, b"01234", b"56789")[0] == b"0123456789"
    assert captured(0)[0] == b""


def test_a_cap_too_small_for_the_mark_holds_head_and_tail() -> None:
    assert captured(4, b"abcdefgh")[0] == b"abgh"


@given(st.integers(0, 200), st.lists(st.binary(max_size=300), max_size=20))
def test_bounded_and_true(cap: int, parts: list[bytes]) -> None:
    value, capture = captured(cap, *parts)
    whole = b"".join(parts)
    assert capture.total == len(whole)
    assert len(value) <= cap
    assert len(capture.head) + len(capture.tail) <= 2.5 * cap
    if len(whole) <= cap:
        assert value == whole
    else:
        kept = max(cap - 32 - len(str(len(whole))), 0)
        head = kept // 2 if kept else cap // 2
        assert value[:head] == whole[:head]
        tail = (kept or cap) - head
        assert value[len(value) - tail :] == whole[len(whole) - tail :]
        assert not kept or b"%d bytes dropped" % (len(whole) - kept) in value
