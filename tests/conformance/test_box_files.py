"""Files in and out: plain ones, whole, inside the workdir; everything else refused untouched."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from observing import SPEC

from sandboxes import Sandbox, SandboxBackend, UnsafePath
from sandboxes.spec import MIB


async def test_text_and_bytes_round_trip(box: Sandbox) -> None:
    await box.write("a/b/text.txt", "grüße\n")
    assert await box.read_text("a/b/text.txt") == "grüße\n"
    data = os.urandom(3 * MIB + 17)
    await box.write("blob", data)
    assert await box.read("blob") == data
    await box.write("blob", b"")
    assert await box.read("blob") == b""


async def test_paths_may_be_absolute_in_the_box(box: Sandbox) -> None:
    await box.write(f"{box.spec.workdir}/x.txt", "1")
    assert await box.read("x.txt") == b"1"
    assert b"root" in await box.read("/proc/version") or True
    assert (await box.read("/usr/bin/env")).startswith(b"\x7fELF")


async def test_names_may_be_odd(box: Sandbox) -> None:
    names = ["with blank", "-rf", "ünïcode", "new\nline", "quote'\"", "a" * 255]
    await box.upload(dict.fromkeys(names, "x"))
    assert sorted(await box.download()) == sorted(names)


async def test_the_files_of_a_spec_are_there_first(backend: SandboxBackend) -> None:
    spec = replace(SPEC, files={"src/main.py": "print('hi')", "data.bin": b"\0\xff"})
    async with await backend.create(spec) as box:
        assert (await box.exec(["python3", "src/main.py"])).out == b"hi\n"
        assert await box.read("data.bin") == b"\0\xff"


async def test_a_local_tree_goes_in_and_comes_back(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    (tmp_path / "sub" / "deeper" / "file").write_bytes(b"\0deep")
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    await box.upload(tmp_path)
    assert (await box.exec(["./run.sh"])).out == b"ran\n"
    assert await box.download("sub") == {"deeper/file": b"\0deep"}


@pytest.mark.parametrize("path", ["missing", "missing/er", "no/../where"])
async def test_reading_what_is_not_there(box: Sandbox, path: str) -> None:
    with pytest.raises((FileNotFoundError, UnsafePath)):
        await box.read(path)


async def test_a_folder_is_not_a_file(box: Sandbox) -> None:
    await box.exec("mkdir folder; touch file")
    with pytest.raises(IsADirectoryError):
        await box.read("folder")
    with pytest.raises(IsADirectoryError):
        await box.write("folder", "x")
    with pytest.raises(NotADirectoryError):
        await box.write("file/below", "x")
    with pytest.raises(NotADirectoryError):
        await box.download("file")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "", ".", "a\0b", "a\ud800"])
async def test_uploads_out_of_the_workdir_are_refused_whole(box: Sandbox, path: str) -> None:
    with pytest.raises(UnsafePath):
        await box.upload({"good": "1", path: "2"})
    assert await box.download() == {}


async def test_writing_through_a_link_is_refused(box: Sandbox) -> None:
    await box.exec("mkdir -p /tmp/outside; ln -s /tmp/outside link; ln -s /tmp/outside/f file-link")
    for path in ("link/f", "file-link"):
        with pytest.raises(UnsafePath):
            await box.upload({path: "x"})
        with pytest.raises(UnsafePath):
            await box.write(path, "x")
    assert (await box.exec("ls -A /tmp/outside; rm -r /tmp/outside")).out == b""


async def test_special_files_are_neither_read_nor_written(box: Sandbox) -> None:
    await box.exec("mkfifo pipe; ln -s /dev/zero zero; ln -s /etc/passwd secret")
    for path in ("pipe", "zero", "secret", "/dev/zero", "/dev/stdin"):
        with pytest.raises(UnsafePath):
            await box.read(path)
        with pytest.raises(UnsafePath):
            await box.write(path, "x")


async def test_downloads_take_plain_files_only(box: Sandbox) -> None:
    await box.exec(
        "mkdir d; echo 1 > d/plain; mkfifo d/pipe; ln -s /etc/passwd d/link; ln -s / d/all"
    )
    assert await box.download("d") == {"plain": b"1\n"}
    with pytest.raises(UnsafePath):
        await box.download("d/all")


@pytest.mark.slow
async def test_bombs_are_cut_off(box: Sandbox) -> None:
    await box.exec(
        "mkdir sparse many; truncate -s 30M sparse/file; cd many; seq 20000 | xargs touch"
    )
    with pytest.raises(OSError, match="more than 1000000 bytes"):
        await box.download("sparse", max_bytes=10**6)
    if (await box.exec("truncate -s 1T sparse/file")).ok:
        with pytest.raises(OSError, match="more than 67108864 bytes"):
            await box.read("sparse/file")
    if int((await box.exec("ls many | wc -l")).out) > 10_000:  # else there is a limit on files
        with pytest.raises(OSError, match="more than 10000 files"):
            await box.download("many")
    assert (await box.exec(["true"])).ok


async def test_a_file_without_end_is_cut_off(box: Sandbox) -> None:
    await box.exec("(yes > endless) > /dev/null 2>&1 & sleep 0.2")
    with pytest.raises(OSError, match="more than 1000000 bytes"):
        await box.download(max_bytes=10**6)
    with pytest.raises(OSError, match="more than 1000000 bytes"):
        await box.read("endless", max_bytes=10**6)
    with pytest.raises(OSError, match="more than 1000000 bytes"):
        await box.read_text("endless", max_bytes=10**6)


async def test_a_file_of_just_the_bytes_that_were_allowed_is_read(box: Sandbox) -> None:
    await box.write("five", "12345")
    assert await box.read("five", max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        await box.read("five", max_bytes=4)


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "folder link"])
async def test_local_trees_with_special_files_are_refused(
    box: Sandbox, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "plain").write_text("x")
    odd = tmp_path / "odd"
    match kind:
        case "link":
            odd.symlink_to("/etc/passwd")
        case "folder link":
            odd.symlink_to("/etc")
        case "pipe":
            os.mkfifo(odd)
        case _:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(odd)[-100:] if len(str(odd)) < 100 else _short(odd))
    with pytest.raises(UnsafePath, match="odd"):
        await box.upload(tmp_path)
    assert await box.download() == {}


def _short(path: Path) -> str:
    os.chdir(path.parent)
    return path.name


async def test_too_many_or_too_large_uploads_are_refused(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most"):
        await box.upload({f"f{n}": "" for n in range(10_001)})
    os.truncate(_touched(tmp_path / "sparse"), 1 << 40)
    with pytest.raises(ValueError, match="at most"):
        await box.upload(tmp_path)
    assert await box.download() == {}


def _touched(path: Path) -> Path:
    path.touch()
    return path


async def test_no_file_is_owned_or_run_as_another_user(box: Sandbox) -> None:
    await box.write("f", "x")
    assert (await box.exec("find f -user $(id -u) -perm 644")).out == b"f\n"
