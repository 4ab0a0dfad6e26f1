"""boxd: the process inside a box that runs every command of that box.

It serves one framed stream, so a call costs a fork or two instead of an engine round trip. The
modules of this folder are joined into one program (`sandboxes.bundle`) that is sent into the box
over that same stream: nothing is mounted, copied or installed, and any image with a python3
(3.8 or newer) will do. Hence the rules of this folder: standard library only, no module-level
name twice, imports of each other only as `from sandboxes.boxd.x import y`, and whatever is
imported from `collections.abc` is used in quoted annotations only, because the bundle drops it.

A box is made for each rollout, so start-up time counts: only C modules are imported (`signal`,
`os` or `subprocess` would double it). Where a box can be made of a fork, that is the `zygote`'s
matter: two more modules of this folder, for our own Python only.

Invariants:
- Each command has a process that is the reaper of everything the command starts and of nothing
  else: boxd for one command at a time, where it is the box's init (`direct`), else a supervisor.
  Killing a reaper's children until it has none is therefore exact: `setsid`, double forks
  and cleared environments do not get away, and siblings are not touched. When that does not end
  quickly (a fork bomb), everything in the box but boxd and init is killed in one system call.
- Memory is bounded whatever a command prints, and no command can hold up the loop.
- boxd is the box's init where the backend can make it so: it reaps orphans, and no signal from
  inside the box can end or stop it. It ends when its stream does, and the box with it.
"""
