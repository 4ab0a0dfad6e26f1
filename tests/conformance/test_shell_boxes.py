"""Images without python3: the same suite as far as it goes, and clear refusals beyond.

The tests imported here are those of every backend; their boxes are of an image that has a shell
and the tools of busybox, so each command of theirs is an exec of the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from observing import SPEC, Promise, Sleepers, docker_backend, until
from test_box_commands import (  # noqa: F401  # run here
    test_a_command_may_leave_its_stdin_unread,
    test_a_command_that_cannot_run_is_a_result,
    test_a_megabyte_of_stdin_and_its_end_reach_the_command,
    test_a_string_is_a_shell_command_and_a_list_is_not,
    test_a_very_long_command_line,
    test_bytes_pass_unchanged_both_ways,
    test_environment_and_folder_of_one_command_only,
    test_environment_of_the_box,
    test_exit_codes_and_signals,
    test_many_commands_at_once,
    test_output_streams_are_kept_apart,
    test_state_stays_in_the_box_between_commands,
    test_without_stdin_reading_ends_at_once,
)
from test_box_deadlines import (  # noqa: F401  # run here
    test_a_cancelled_call_is_killed_in_the_box,
    test_a_close_during_a_command_ends_it,
    test_a_quick_death_by_signal_is_no_time_out,
    test_kills_that_follow_at_once_are_not_lost,
    test_nothing_outlives_its_deadline,
    test_output_until_the_deadline_is_kept,
)
from test_box_escapes import (  # noqa: F401  # run here
    test_no_privilege,
    test_processes_of_the_host_are_not_visible,
    test_secrets_of_the_worker_are_not_visible,
)
from test_box_files import (  # noqa: F401  # run here
    test_a_file_without_end_is_cut_off,
    test_a_folder_is_not_a_file,
    test_a_local_tree_goes_in_and_comes_back,
    test_bombs_are_cut_off,
    test_downloads_take_plain_files_only,
    test_names_may_be_odd,
    test_no_file_is_owned_or_run_as_another_user,
    test_reading_what_is_not_there,
    test_special_files_are_neither_read_nor_written,
    test_text_and_bytes_round_trip,
    test_writing_through_a_link_is_refused,
)
from test_box_leaks import (  # noqa: F401  # run here
    test_a_closed_box_leaves_nothing,
    test_a_creation_cancelled_anywhere_leaves_nothing,
    test_a_creation_that_fails_leaves_nothing,
    test_closing_the_backend_ends_open_boxes,
)
from test_box_limits import (  # noqa: F401  # run here
    test_processes,
    test_uploads_meet_the_disk_limit,
)
from test_box_output import (  # noqa: F401  # run here
    test_any_cap_holds,
    test_floods_leave_memory_flat,
    test_long_output_keeps_head_tail_and_true_size,
    test_short_output_is_whole,
)
from test_box_sessions import (  # noqa: F401  # run here
    test_a_verifier_is_fresh_but_for_what_is_kept,
    test_a_verifier_keeps_plain_files_of_the_workdir_only,
)

from sandboxes import (
    BackendUnavailable,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
    Unsupported,
)
from sandboxes.engine import shell_box
from sandboxes.engine.backend import DockerBackend
from sandboxes.engine.shell_box import ShellBox

pytestmark = pytest.mark.docker

IMAGE = "agentrl-shell"
BUILD = Path(__file__).parents[2] / "docker/build-shell-image.sh"


class WithoutPython(DockerBackend):
    async def create(self, spec: SandboxSpec) -> ShellBox:
        box = await super().create(replace(spec, image=IMAGE))
        assert isinstance(box, ShellBox)
        return box


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    """Built once, where there is an engine."""
    with suppress(BackendUnavailable):
        backend = DockerBackend(run_id="conformance")
        if not backend.engine.has_image(IMAGE):
            subprocess.run([str(BUILD), IMAGE], check=True, timeout=120)


@pytest.fixture
async def backend() -> AsyncIterator[WithoutPython]:
    async with docker_backend(WithoutPython) as backend:
        yield backend


async def test_that_there_is_no_python_is_said_once(
    backend: WithoutPython, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            async with await backend.create(SPEC) as box:
                assert not (await box.exec("command -v python3")).ok
    assert len([r for r in caplog.records if "no python3" in r.getMessage()]) == 1
    assert any(f"{IMAGE!r} has no python3" in note for note in backend.capabilities().notes)


async def test_what_cannot_be_is_refused_with_a_way_out(box: Sandbox) -> None:
    with pytest.raises(Unsupported, match=r"no python3.*exec\('command > log"):
        await box.spawn("true")
    with pytest.raises(Unsupported, match=r"no python3.*cwd and env"):
        await box.session()
    with pytest.raises(Unsupported, match="runs as user 1000"):
        await box.exec("true", user=0)
    assert (await box.exec("id -u", user=1000)).out == b"1000\n"


@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
async def test_disk_is_limited(box: Sandbox, folder: str) -> None:
    result = await box.exec(f"dd if=/dev/zero of={folder}/fill bs=1M count=100; du -k {folder}")
    assert b"No space left" in result.err
    assert int(result.out.split()[0]) <= 64 * 1024
    assert (await box.exec(f"rm {folder}/fill; echo usable")).out == b"usable\n"


async def test_what_is_only_orphaned_would_be_counted(box: Sandbox, sleepers: Sleepers) -> None:
    """The control of the tests of deadlines."""
    assert (await box.exec(f"setsid {sleepers.command} > /dev/null 2>&1 & true")).ok
    await until(lambda: sleepers.count() == 1)


async def test_memory_is_limited_and_told_apart_from_a_signal(
    box: Sandbox, promises: Promise
) -> None:
    promises("memory", "outlives_commands")
    result = await box.exec("head -c 1000000000 /dev/zero | tail -c 900000000 > /dev/null")
    assert (result.rc, result.oom, result.timed_out) == (137, True, False)
    assert (await box.exec(["echo", "usable"])).out == b"usable\n"
    killed = await box.exec("kill -9 $$")
    assert (killed.rc, killed.oom) == (137, False)


class WithoutControlGroups(WithoutPython):
    """An engine that says it has none; that the one at hand has them shows only in `oom`."""

    def __init__(self, *, run_id: str) -> None:
        super().__init__(run_id=run_id)
        info = {**self.engine.kind.info, "MemoryLimit": False}
        self.engine.kind = replace(self.engine.kind, info=info)


async def test_memory_of_a_process_is_limited_without_control_groups(box: Sandbox) -> None:
    hog = "head -c 1000000000 /dev/zero | tail -c 900000000 > /dev/null"
    async with (
        docker_backend(WithoutControlGroups) as backend,
        await backend.create(SPEC) as limited,
    ):
        result = await limited.exec(hog)
        assert (result.ok, result.oom) == (False, False)
        assert b"out of memory" in result.err
        assert (await limited.exec("ulimit -v")).out == b"%d\n" % (SPEC.memory_bytes // 1024)
        assert not (await limited.exec("ulimit -v unlimited")).ok
    assert (await box.exec("ulimit -v")).out == b"unlimited\n"


async def test_a_time_out_takes_all_of_the_box_along_and_says_so(
    box: Sandbox, sleepers: Sleepers
) -> None:
    sibling = asyncio.create_task(box.exec(sleepers.command))
    await until(lambda: sleepers.count() == 1)
    assert (await box.exec("sleep 20", timeout_s=0.5)).timed_out
    result = await sibling
    assert (result.rc, result.timed_out, result.oom) == (137, False, False)
    assert b"killed with all of this box" in result.err
    assert (await box.exec(["echo", "usable"])).out == b"usable\n"


async def test_a_background_child_with_the_pipes_holds_the_call_for_the_engines_two_seconds(
    box: Sandbox, sleepers: Sleepers
) -> None:
    result = await asyncio.wait_for(box.exec(f"{sleepers.command} & echo done"), 10)
    assert (result.rc, result.out, result.timed_out) == (0, b"done\n", False)
    await until(lambda: sleepers.count() == 1)


@pytest.mark.slow
async def test_a_fork_bomb_ends_with_its_time_out_or_its_box(
    box: Sandbox, promises: Promise
) -> None:
    promises("pids")
    async with asyncio.timeout(30):
        with suppress(SandboxLost):
            await box.exec("b() { b | b & b; }; b", timeout_s=2)
            assert (await box.exec(["echo", "usable"])).out == b"usable\n"
            return
    assert not await box.alive()


async def test_a_box_full_of_processes_is_a_typed_error(
    box: Sandbox, sleepers: Sleepers, promises: Promise
) -> None:
    promises("pids", "outlives_commands")
    fill = f"sh -c 'while :; do {sleepers.command} & done' > /dev/null 2>&1 &"
    await box.exec(fill)
    await until(lambda: sleepers.count() > SPEC.pids - 8)

    async def use() -> None:
        while True:
            await box.exec(fill)  # a shell that may not fork once gives up, and leaves room
            await box.exec("sleep 0.1 & sleep 0.1 & wait")

    with pytest.raises(SandboxLost, match="cannot start another process"):
        async with asyncio.timeout(60):
            await asyncio.gather(use(), use(), use())
    await box.close()
    await until(lambda: sleepers.count() == 0)


async def test_a_box_whose_main_process_is_killed_is_lost(box: Sandbox) -> None:
    with pytest.raises(SandboxLost, match=box.sandbox_id):
        await box.exec("killall -9 sh; sleep 20")
    assert not await box.alive()


async def test_a_box_whose_main_process_is_stopped_is_lost(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command killed is asked of it: its silence is not the caller's fault."""
    monkeypatch.setattr(shell_box, "PING_TIMEOUT_S", 0.5)
    with pytest.raises(SandboxLost, match="did not answer"):
        await box.exec("kill -STOP -1; kill -9 $$")
    with pytest.raises(SandboxLost):
        await box.exec("true")


async def test_boxes_end_with_their_worker(sleepers: Sleepers, backend: WithoutPython) -> None:
    program = (
        "import asyncio, sys\n"
        "from sandboxes import SandboxSpec, make_backend\n"
        "async def main():\n"
        "    backend = make_backend('docker', run_id='conformance')\n"
        f"    box = await backend.create(SandboxSpec(image={IMAGE!r}, runtime={SPEC.runtime!r}))\n"
        f"    await box.exec('{sleepers.command}')\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        await until(lambda: sleepers.count() >= 1)
    finally:
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    await until(lambda: sleepers.count() == 0)


async def test_an_image_with_neither_is_a_clear_error(tmp_path: Path) -> None:
    name = "agentrl-nothing"
    async with docker_backend(DockerBackend) as backend:
        await backend.engine.call(
            "import", lambda client: client.import_image_from_data(bytes(10240), repository=name)
        )
        try:
            with pytest.raises(SandboxError, match=r"neither python3 nor /bin/sh"):
                await backend.create(replace(SPEC, image=name))
            assert backend.boxes == {}
        finally:
            await backend.engine.call(
                "remove", lambda client: client.remove_image(name, force=True)
            )
