"""What a command gets and gives: arguments, bytes, environment, exit codes, siblings."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest
from observing import SPEC, Sleepers, until

from sandboxes import Sandbox, SandboxBackend, Unsupported


async def test_a_string_is_a_shell_command_and_a_list_is_not(box: Sandbox) -> None:
    assert (await box.exec("echo a $((1 + 1)) | tr a b")).out == b"b 2\n"
    assert (await box.exec(["printf", "%s|", "a b", "$HOME", "", "*"])).out == b"a b|$HOME||*|"


async def test_output_streams_are_kept_apart(box: Sandbox) -> None:
    result = await box.exec("echo out; echo err >&2")
    assert (result.out, result.err, result.rc, result.ok) == (b"out\n", b"err\n", 0, True)
    assert result.text == "out\nerr\n"


@pytest.mark.parametrize(
    ("command", "rc"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
async def test_exit_codes_and_signals(box: Sandbox, command: str, rc: int) -> None:
    result = await box.exec(command)
    assert (result.rc, result.ok, result.timed_out, result.oom) == (rc, False, False, False)


async def test_a_command_that_cannot_run_is_a_result(box: Sandbox) -> None:
    missing = await box.exec(["no-such-command"])
    assert missing.rc == 127
    assert b"no-such-command" in missing.err
    await box.write("plain.txt", "x")
    assert (await box.exec(["./plain.txt"])).rc == 126
    assert (await box.exec(["true"], cwd="no/such/folder")).rc == 127


async def test_a_command_that_no_program_can_be_given_is_a_result(box: Sandbox) -> None:
    refused = await box.exec("echo a\0b")
    assert (refused.rc, refused.out) == (126, b"")
    assert refused.err == b"cannot run 'echo a\\x00b': no program can be given a NUL character\n"
    assert refused.err_bytes == len(refused.err)
    assert b"half a character" in (await box.exec(["echo", "\ud800"])).err
    assert (await box.exec(["true"], env={"SAID": "a\0b"})).rc == 126


async def test_environment_and_folder_of_one_command_only(box: Sandbox) -> None:
    await box.exec("mkdir -p deep/er")
    result = await box.exec('echo "$A" "${PWD##*/}"', env={"A": "ä=1"}, cwd="deep/er")
    assert result.out.decode() == "ä=1 er\n"
    assert (await box.exec('echo "$A"')).out == b"\n"


async def test_environment_of_the_box(backend: SandboxBackend) -> None:
    spec = replace(SPEC, env={"GREETING": "hello world"})
    async with await backend.create(spec) as box:
        assert (await box.exec('echo "$GREETING"')).out == b"hello world\n"


async def test_bytes_pass_unchanged_both_ways(box: Sandbox) -> None:
    data = bytes(range(256)) * 16
    result = await box.exec(["cat"], stdin=data, max_output_bytes=8192)
    assert result.out == data


async def test_a_megabyte_of_stdin_and_its_end_reach_the_command(box: Sandbox) -> None:
    data = b"0123456789abcdef" * 65536
    result = await box.exec(["sha256sum"], stdin=data)
    assert result.out.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_a_command_may_leave_its_stdin_unread(box: Sandbox) -> None:
    result = await box.exec("head -c 3; exec <&-; sleep 0.2; echo", stdin=b"abc" * 10**6)
    assert (result.rc, result.out) == (0, b"abc\n")
    assert (await box.exec(["true"], stdin=b"x" * 10**6)).ok


async def test_without_stdin_reading_ends_at_once(box: Sandbox) -> None:
    assert (await box.exec(["cat"])).ok


async def test_state_stays_in_the_box_between_commands(box: Sandbox, sleepers: Sleepers) -> None:
    await box.exec(f"echo 1 > state; {sleepers.command} > /dev/null 2>&1 &")
    assert (await box.exec("cat state")).out == b"1\n"
    await until(lambda: sleepers.count() == 1)


async def test_many_commands_at_once(box: Sandbox) -> None:
    async def run(n: int) -> bytes:
        return (await box.exec(f"sleep 0.2; echo {n}", timeout_s=60)).out

    outputs = await asyncio.gather(*(run(n) for n in range(16)))
    assert outputs == [f"{n}\n".encode() for n in range(16)]


@pytest.mark.slow
async def test_three_hundred_commands_at_once_in_many_boxes(backend: SandboxBackend) -> None:
    boxes = [await backend.create(SPEC) for _ in range(10)]

    async def run(n: int) -> bytes:
        return (await boxes[n % 10].exec(["echo", str(n)], timeout_s=100)).out

    outputs = await asyncio.gather(*(run(n) for n in range(300)))
    assert outputs == [f"{n}\n".encode() for n in range(300)]


async def test_signals_and_descriptors_are_those_of_a_fresh_process(
    backend: SandboxBackend, box: Sandbox
) -> None:
    """No ignored or blocked signal, and no open file but the three, is inherited from boxd."""
    status = (await box.exec("grep -E 'SigBlk|SigIgn' /proc/self/status")).out.split()
    of_the_c_library = 0b11 << 31  # signals 32 and 33, which programs cannot use
    masks = [int(mask, 16) & ~of_the_c_library for mask in status[1::2]]
    is_told = not backend.capabilities(SPEC).kernel_isolation  # gVisor shows no masks
    assert masks == [0, 0] * is_told
    listed = (await box.exec(["ls", "/proc/self/fd"])).out
    assert listed == b"0\n1\n2\n3\n"  # 3 is the listing itself


async def test_usage_is_measured(box: Sandbox) -> None:
    result = await box.exec("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
    assert result.usage is not None
    assert result.usage.cpu_seconds > 0.01
    assert result.usage.max_rss_bytes > 100_000


async def test_no_command_at_all_is_refused(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="an empty command"):
        await box.exec([])
    assert (await box.exec(["true"])).ok


async def test_what_a_command_leaves_behind_does_not_meet_the_next(box: Sandbox) -> None:
    """Supervisors and their pipes are used again, but never with somebody's leftovers."""
    state = "pwd; umask; ulimit -n; exit 3"
    fresh = await box.exec(state)
    for n in range(10):
        quick = await box.exec(f"cd /; umask 0; ulimit -n 10; trap '' INT; echo {n}")
        assert quick.out == f"{n}\n".encode()
        left = await box.exec(f"(sleep 0.05; echo late {n}; echo late {n} >&2) & echo now {n}")
        assert left.out.startswith(f"now {n}\n".encode())
        after = await box.exec(state)
        assert (after.rc, after.out, after.err) == (3, fresh.out, b"")


async def test_pipes_that_a_command_changed_are_as_new_for_the_next(box: Sandbox) -> None:
    for _ in range(3):
        await box.exec(["python3", "-c", "import os; os.set_blocking(1, False)"])
        result = await box.exec("dd if=/dev/zero bs=1M count=4 2>/dev/null")
        assert (result.rc, result.out_bytes) == (0, 4 << 20)


async def test_a_very_long_command_line(box: Sandbox) -> None:
    words = ["x" * 1000] * 100
    result = await box.exec(["printf", "%s", *words], max_output_bytes=200_000)
    assert result.out == b"x" * 100_000
    longer = await box.exec(["echo", "x" * 10**6])
    assert longer.rc == 126 or longer.out_bytes == 10**6 + 1  # gVisor's exec takes any length
    assert (await box.exec(["true"])).ok


async def test_no_command_runs_as_another_user(box: Sandbox) -> None:
    with pytest.raises(Unsupported, match=f"runs as user {box.spec.user}; give the box another"):
        await box.exec("id", user=0)
    assert (await box.exec(["true"], user=box.spec.user)).ok
