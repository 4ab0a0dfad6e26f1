"""The system calls that turn a fork of the zygote into a box.

They are made by the C library, as Python has names for few of them. The order matters: whatever
needs a privilege happens in the zygote's user namespace, which owns the new namespaces; the box
then goes into a user namespace of its own, where no privilege reaches anything, and drops those
too. So a box can change neither its mounts nor its network, nor any of another box.
"""

import ctypes
import posix

LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x08000000, 0x10000000, 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
CAPABILITY_VERSION_3 = 0x20080522
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr")
"""Files of /proc that belong to root, who may be us; a box's user has our kernel identity."""


def must(call: "ctypes._NamedFuncPointer", *args: object) -> None:
    if call(*args) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call.__name__}{args}: {posix.strerror(code)}")


def mount(
    source: "bytes | None", target: bytes, kind: "bytes | None", flags: int, data: bytes
) -> None:
    must(LIBC.mount, source, target, kind, flags, data)


def make_mounts_private() -> None:
    """What a box mounts is seen by it alone."""
    mount(None, b"/", None, MS_REC | MS_PRIVATE, b"")


def forget_neighbours() -> None:
    """New namespaces for all but processes, which its parent has arranged, and users."""
    rest = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET
    must(LIBC.unshare, rest)


def mount_proc() -> int:
    """Our own processes only, the kernel's settings read-only. Returns /proc/sys as it was."""
    mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, b"")
    settings = posix.open(b"/proc/sys", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    for name in KERNEL_SETTINGS:
        path = b"/proc/" + name.encode()
        if posix.access(path, posix.F_OK):
            mount(path, path, None, MS_BIND, b"")
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
            mount(None, path, None, flags, b"")
    return settings


def mount_empty(folder: bytes, num_bytes: int, num_files: int) -> None:
    options = b"mode=0755,size=%d,nr_inodes=%d" % (num_bytes, num_files)
    mount(b"tmpfs", folder, b"tmpfs", MS_NOSUID | MS_NODEV, options)


def mount_terminals() -> None:
    """Terminals are numbered in a file system of their own, or all boxes would share them."""
    options = b"newinstance,ptmxmode=0666,mode=620"
    mount(b"devpts", b"/dev/pts", b"devpts", MS_NOSUID | MS_NOEXEC, options)


def start_loopback() -> None:
    import _socket

    request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + bytes((IFF_UP, 0)), 40)
    with_fd = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        must(LIBC.ioctl, with_fd.fileno(), SIOCSIFFLAGS, request)
    finally:
        with_fd.close()


def become_user(user: int, settings: int) -> None:
    """A user namespace of one user, who may not make another one; `settings` is closed."""
    outside = posix.geteuid(), posix.getegid()
    must(LIBC.unshare, CLONE_NEWUSER)
    write_file(b"/proc/self/setgroups", b"deny")
    write_file(b"/proc/self/uid_map", b"%d %d 1" % (user, outside[0]))
    write_file(b"/proc/self/gid_map", b"%d %d 1" % (user, outside[1]))
    write_file(b"user/max_user_namespaces", b"0", dir_fd=settings)
    posix.close(settings)


def drop_privileges() -> None:
    """All capabilities, and that any program could bring them back."""
    capability = 0
    while LIBC.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        must(LIBC.prctl, PR_CAPBSET_DROP, capability, 0, 0, 0)
        capability += 1
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    must(LIBC.capset, header, bytes(24))


def write_file(path: bytes, data: bytes, dir_fd: "int | None" = None) -> None:
    fd = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=dir_fd)
    try:
        posix.write(fd, data)
    finally:
        posix.close(fd)
