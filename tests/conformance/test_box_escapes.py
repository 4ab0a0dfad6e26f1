"""What the model's code finds when it looks around: no network, no privilege, no trace of us."""

from __future__ import annotations

import os
import socket

import pytest
from observing import SPEC, Promise, Sleepers

from sandboxes import Sandbox, SandboxBackend

CONNECT = """
import socket, sys
family, address = {family}, {address}
try:
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect(address)
except OSError as e:
    sys.exit(f"refused: {{e}}")
"""


@pytest.mark.parametrize(
    ("family", "address"),
    [
        ("socket.AF_INET", ("1.1.1.1", 53)),
        ("socket.AF_INET", ("169.254.169.254", 80)),
        ("socket.AF_INET", ("10.0.0.1", 80)),
        ("socket.AF_INET6", ("2606:4700:4700::1111", 53)),
    ],
)
async def test_no_address_can_be_reached(
    box: Sandbox, promises: Promise, family: str, address: tuple[str, int]
) -> None:
    promises("network")
    result = await box.exec(["python3", "-c", CONNECT.format(family=family, address=address)])
    assert b"refused" in result.err
    assert not result.ok


async def test_no_name_is_resolved(box: Sandbox, promises: Promise) -> None:
    promises("network")
    script = "import socket; socket.getaddrinfo('example.com', 80)"
    assert not (await box.exec(["python3", "-c", script])).ok


async def test_sockets_of_the_host_cannot_be_reached(box: Sandbox, promises: Promise) -> None:
    promises("network")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        name = f"\0agentrl-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        for family, address in (
            ("socket.AF_INET", tcp.getsockname()),
            ("socket.AF_UNIX", name),
        ):
            script = CONNECT.format(family=family, address=repr(address))
            assert b"refused" in (await box.exec(["python3", "-c", script])).err


async def test_boxes_cannot_reach_each_other(
    box: Sandbox, neighbour: Sandbox, promises: Promise
) -> None:
    promises("network")
    server = "import socket,time; s=socket.socket(); s.bind(('0.0.0.0', 8123)); s.listen(); time.sleep(20)"
    await neighbour.exec(f'python3 -c "{server}" > /dev/null 2>&1 & sleep 0.5')
    script = CONNECT.format(family="socket.AF_INET", address=("127.0.0.1", 8123))
    assert not (await box.exec(["python3", "-c", script])).ok
    assert (await neighbour.exec(["python3", "-c", script])).ok  # the server is there


async def test_no_privilege(backend: SandboxBackend, box: Sandbox, promises: Promise) -> None:
    promises("network")
    status = dict(
        line.split(":\t", 1)
        for line in (await box.exec(["cat", "/proc/self/status"])).out.decode().splitlines()
    )
    assert int(status["CapEff"], 16) == 0
    assert int(status["CapPrm"], 16) == 0
    if not backend.capabilities(SPEC).kernel_isolation:  # gVisor always sets it, and never tells
        assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Gid"].split() == ["1000"] * 4


OF_NO_HARM_TO_ANOTHER_KERNEL = ("unshare -U true", "dmesg", "mknod dev b 8 0")


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /tmp",
        "unshare -U true",
        "unshare -Ur mount -t tmpfs none /tmp",
        "unshare -n true",
        "chroot / true",
        "cat /proc/kcore | head -c 1 | grep -q .",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
        "dmesg",
        "mknod dev b 8 0",
        "hostname other",
        "date -s 2001-01-01",
        "chown 0 /proc/self/fd/0",
        "cat /dev/mem /dev/vda /dev/sda",
    ],
)
async def test_privileged_things_are_refused(
    backend: SandboxBackend, box: Sandbox, promises: Promise, command: str
) -> None:
    promises("network")
    if command in OF_NO_HARM_TO_ANOTHER_KERNEL and backend.capabilities(SPEC).kernel_isolation:
        pytest.skip("a kernel of the box's own may do that: it has nothing of the host's")
    assert not (await box.exec(command)).ok


async def test_processes_of_the_host_are_not_visible(box: Sandbox, promises: Promise) -> None:
    promises("network")
    pids = (await box.exec("ls /proc | grep '^[0-9]*$' | wc -l")).out
    assert int(pids) < 10


async def test_secrets_of_the_worker_are_not_visible(
    backend: SandboxBackend, promises: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises("network")
    monkeypatch.setenv("HF_TOKEN", "hf_wOrKeRs_SeCrEt")
    async with await backend.create(SPEC) as box:
        seen = await look_around(box)
    assert "hf_wOrKeRs_SeCrEt" not in seen
    assert os.getcwd() not in seen


async def look_around(box: Sandbox) -> str:
    everything = await box.exec(
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls -la ~ / /home /root; "
        "cat /etc/passwd /proc/mounts",
        max_output_bytes=10**6,
    )
    assert "agent" in everything.text
    return everything.text


OF_WHAT_CANNOT_BE_BLOCKED = (
    "kill -9 1",
    "kill -STOP 1",
    "for signal in $(seq 64); do kill -$signal 1; done",
)


async def test_what_watches_over_a_command_is_deaf_to_it(box: Sandbox) -> None:
    """Also where that is no init, which Linux protects."""
    result = await box.exec("for name in HUP INT TERM USR2; do kill -$name $PPID; done; echo well")
    assert (result.rc, result.out) == (0, b"well\n")
    assert (await box.exec(["echo", "still here"])).out == b"still here\n"


@pytest.mark.parametrize(
    "command",
    [
        "kill -9 -1",
        "kill -9 1",
        "kill -STOP 1",
        "kill -TERM 1 -1",
        "for signal in $(seq 64); do kill -$signal 1; done",
    ],
)
async def test_a_command_cannot_end_its_box(
    box: Sandbox, promises: Promise, sleepers: Sleepers, command: str
) -> None:
    """Or a rollout that goes badly could turn itself into a failure of the machine."""
    promises("network")
    if command in OF_WHAT_CANNOT_BE_BLOCKED:
        promises("outlives_commands")
    await box.exec(f"setsid {sleepers.command} & {command}")
    assert (await box.exec(["echo", "still here"])).out == b"still here\n"


async def test_the_daemon_cannot_be_read_or_traced(
    backend: SandboxBackend, box: Sandbox, promises: Promise
) -> None:
    promises("network")
    told_of = ("fd/0", "environ", "maps")  # what gVisor shows of any process of the same user
    has_own_kernel = backend.capabilities(SPEC).kernel_isolation
    for path in ("mem",) if has_own_kernel else ("mem", *told_of):
        assert not (await box.exec(f"head -c 1 /proc/1/{path} | grep -q .")).ok
    attach = "import ctypes; libc = ctypes.CDLL(None); exit(libc.ptrace(16, 1, 0, 0) == 0)"
    assert (await box.exec(["python3", "-c", attach])).ok
