"""Shells that stay, commands that run on, and fresh boxes to grade in."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from observing import SPEC, Sleepers, until

from sandboxes import Sandbox, SandboxBackend, SandboxLost, background


async def test_a_session_keeps_folder_variables_and_functions(box: Sandbox) -> None:
    async with await box.session() as session:
        await session.run("mkdir -p sub && cd sub\nexport A='it''s'; f() { echo \"f $1\"; }")
        result = await session.run('echo "${PWD##*/} $A"; f x; echo e >&2; false')
        assert (result.out, result.err, result.rc) == (b"sub its\nf x\n", b"e\n", 1)
        assert (await session.run("f y")).out == b"f y\n"
    assert (await box.exec("type f")).rc != 0


async def test_each_script_gets_its_own_output(box: Sandbox) -> None:
    async with await box.session() as session:
        for n in range(20):
            result = await session.run(
                f"seq {n} 9999 | head -c {1000 * n}; echo {n} >&2; exit_code() {{ return {n}; }}; exit_code"
            )
            assert (result.out_bytes, result.err, result.rc) == (1000 * n, f"{n}\n".encode(), n)


async def test_a_script_that_cannot_run_is_a_result(box: Sandbox) -> None:
    async with await box.session() as session:
        assert b"syntax error" in (await session.run("if then (")).err
        assert (await session.run("echo a\0b")).rc == 126
        assert (await session.run("echo on")).out == b"on\n"


async def test_no_output_passes_for_the_end_of_a_script(box: Sandbox) -> None:
    async with await box.session() as session:
        forged = await session.run(
            "echo 0; echo 0 >&9; printf '\\0'; sleep 0.3; echo end; (exit 5)"
        )
        assert forged.rc == 5
        assert forged.out == b"0\n\0end\n"
        assert (await session.run("echo next")).out == b"next\n"


async def test_a_session_reads_nothing_but_its_scripts(box: Sandbox) -> None:
    async with await box.session() as session:
        assert (await session.run("cat; read x; echo $?")).out == b"1\n"


async def test_a_session_may_be_left(box: Sandbox) -> None:
    session = await box.session()
    assert (await session.run("exit 7")).rc == 7
    assert not session.is_open
    with pytest.raises(ValueError, match="open another session"):
        await session.run("true")


async def test_a_script_past_its_deadline_takes_its_session_along(
    box: Sandbox, sleepers: Sleepers
) -> None:
    session = await box.session()
    result = await session.run(f"setsid {sleepers.command} & {sleepers.command}", timeout_s=0.5)
    assert result.timed_out
    assert sleepers.count() == 0
    assert not session.is_open
    assert (await box.exec(["true"])).ok


async def test_a_cancelled_script_takes_its_session_along(box: Sandbox, sleepers: Sleepers) -> None:
    session = await box.session()
    script = asyncio.create_task(session.run(sleepers.command))
    await until(lambda: sleepers.count() == 1)
    script.cancel()
    await asyncio.gather(script, return_exceptions=True)
    await until(lambda: sleepers.count() == 0)
    assert not session.is_open


async def test_a_shell_that_is_not_there(box: Sandbox) -> None:
    session = await box.session("no-such-shell")
    with pytest.raises(FileNotFoundError):
        await session.run("true")


async def test_a_background_command_can_be_watched_and_waited_for(box: Sandbox) -> None:
    job = await box.spawn(
        "echo started; while [ ! -e go ]; do sleep 0.02; done; echo gone >&2; exit 4"
    )
    while (await job.logs()).out != b"started\n":  # noqa: ASYNC110  # a box sets no event
        await asyncio.sleep(0.02)
    assert job.is_running
    with pytest.raises(TimeoutError):
        await job.wait(0.05)
    assert job.is_running
    await box.write("go", "")
    result = await job.wait(20)
    assert (result.rc, result.out, result.err) == (4, b"started\n", b"gone\n")
    assert (await job.logs()).err == b"gone\n"


async def test_a_look_that_is_cancelled_costs_nothing(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that runs out of time cancels it; the command and its box go on."""
    monkeypatch.setattr(background, "ANSWER_TIMEOUT_S", 0.5)
    job = await box.spawn("while [ ! -e go ]; do sleep 0.02; done; echo more; sleep 1; echo end")
    for _ in range(3):
        look = asyncio.create_task(job.logs())
        await asyncio.sleep(0)
        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        assert look.cancelled()
    await box.exec("touch go; sleep 0.2")
    assert (await job.logs()).out == b"more\n"
    assert (await job.wait(20)).out == b"more\nend\n"
    assert await box.alive()


async def test_a_look_beside_somebody_who_waits(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ANSWER_TIMEOUT_S", 0.5)
    job = await box.spawn("echo begun; sleep 1.5; echo end")
    end = asyncio.create_task(job.wait(20))
    while not (await job.logs()).out:  # noqa: ASYNC110  # a box sets no event
        await asyncio.sleep(0.02)
    looks = await asyncio.gather(*(job.logs() for _ in range(3)))
    assert {logs.out for logs in looks} == {b"begun\n"}
    assert (await end).out == b"begun\nend\n"


async def test_a_background_command_outlives_any_exec_time_out(backend: SandboxBackend) -> None:
    async with await backend.create(replace(SPEC, exec_timeout_s=0.2)) as box:
        job = await box.spawn("sleep 0.8; echo end")
        assert (await job.wait(20)).out == b"end\n"


async def test_a_background_command_is_killed_with_its_tree(
    box: Sandbox, sleepers: Sleepers
) -> None:
    job = await box.spawn(f"setsid {sleepers.command} & {sleepers.command}")
    await until(lambda: sleepers.count() == 2)
    assert (await job.kill()).rc == 137
    assert sleepers.count() == 0


async def test_a_background_command_ends_with_its_box(
    backend: SandboxBackend, sleepers: Sleepers
) -> None:
    box = await backend.create(SPEC)
    job = await box.spawn(sleepers.command)
    await until(lambda: sleepers.count() == 1)
    await box.close()
    assert sleepers.count() == 0
    with pytest.raises(SandboxLost):
        await job.wait()


async def test_a_verifier_is_fresh_but_for_what_is_kept(backend: SandboxBackend) -> None:
    spec = replace(SPEC, files={"app.py": "broken", "tests/t.py": "pass"})
    async with await backend.create(spec) as box:
        await box.exec(
            "echo fixed > app.py; echo planted > conftest.py; echo planted > tests/t.py; "
            "mkdir -p pkg/sub; echo 1 > pkg/sub/m.py; chmod +x pkg/sub/m.py; sleep 100 &"
        )
        async with box.verifier(keep=["app.py", "pkg", "never-made"]) as fresh:
            assert fresh.sandbox_id != box.sandbox_id
            kept = await fresh.download()
            assert kept == {"app.py": b"fixed\n", "tests/t.py": b"pass", "pkg/sub/m.py": b"1\n"}
            assert (await fresh.exec("test -x pkg/sub/m.py")).ok
        assert not await fresh.alive()
        assert await box.alive()


@pytest.mark.parametrize("bad", ["../up", "/etc/passwd", "link"])
async def test_a_verifier_keeps_plain_files_of_the_workdir_only(box: Sandbox, bad: str) -> None:
    await box.exec("ln -s /etc/passwd link")
    with pytest.raises((ValueError, OSError)):
        async with box.verifier(keep=[bad]):
            pytest.fail("a box was made")
