"""However much a command prints, its result is small and true, and nobody's memory grows."""

from __future__ import annotations

import asyncio
import resource

import pytest

from sandboxes import Sandbox

FLOODS = {
    "yes": "timeout 1 yes",
    "errors": "head -c 300000000 /dev/zero >&2",
    "one line": "head -c 200000000 /dev/zero | tr '\\0' x",
}


async def test_short_output_is_whole(box: Sandbox) -> None:
    result = await box.exec("head -c 4096 /dev/zero | tr '\\0' x")
    assert result.out == b"x" * 4096
    assert not result.is_truncated


async def test_long_output_keeps_head_tail_and_true_size(box: Sandbox) -> None:
    result = await box.exec("seq 1 100000")
    assert result.out_bytes == 588_895
    assert result.is_truncated
    assert len(result.out) <= 4096
    assert result.out.startswith(b"1\n2\n3\n")
    assert result.out.endswith(b"\n99999\n100000\n")
    assert (
        f"{588_895 - len(result.out) + len(mark(result.out))} bytes dropped".encode() in result.out
    )


def mark(out: bytes) -> bytes:
    start = out.index(b"\n[...")
    return out[start : out.index(b"...]\n", start) + 5]


@pytest.mark.parametrize("cap", [0, 1, 40, 1000])
async def test_any_cap_holds(box: Sandbox, cap: int) -> None:
    result = await box.exec("seq 1 1000; seq 1 1000 >&2", max_output_bytes=cap)
    assert len(result.out) <= cap
    assert len(result.err) <= cap
    assert (result.out_bytes, result.err_bytes) == (3893, 3893)


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS)
async def test_floods_leave_memory_flat(box: Sandbox, flood: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await box.exec(FLOODS[flood], timeout_s=60)
    assert max(result.out_bytes, result.err_bytes) > 10**6
    assert len(result.out) + len(result.err) <= 2 * 4096
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
    boxd = "for f in /proc/[0-9]*/status; do grep -A20 'Name:.*python' $f; done | grep VmHWM"
    peaks = [int(line.split()[1]) for line in (await box.exec(boxd)).out.splitlines()]
    assert all(peak < 24 * 1024 for peak in peaks if peak), peaks


@pytest.mark.slow
async def test_a_flood_does_not_hold_up_other_commands(box: Sandbox) -> None:
    flood = asyncio.create_task(box.exec(["yes"], timeout_s=5))
    for _ in range(20):
        assert (await box.exec(["echo", "hello"], timeout_s=4)).out == b"hello\n"
    assert not flood.done()
    assert (await flood).timed_out
