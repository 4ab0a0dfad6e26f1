"""`agentrl inspect show`: prints whatever an address points to."""

from __future__ import annotations

from rich.console import Console

from agentrl.inspect.address import find_group, find_trajectory, parse_address
from agentrl.inspect.blocks import show
from agentrl.inspect.group import group_view
from agentrl.inspect.overview import overview
from agentrl.inspect.step import step_view
from agentrl.inspect.trajectory import trajectory_view
from agentrl.record.reader import RunReader


def show_address(text: str, console: Console, *, split: str | None = None) -> None:
    """Raises ValueError when there is nothing at the address; the message says what is there."""
    address = parse_address(text)
    reader = RunReader(address.run)
    if address.step is None:
        blocks = overview(reader)
    elif address.group is None:
        blocks = step_view(reader, address.step, split)
    else:
        members = find_group(reader, address.step, address.group, split)
        if address.trajectory is None:
            blocks = group_view(reader, members, width=console.width)
        else:
            blocks = trajectory_view(reader, find_trajectory(members, address.trajectory))
    show(blocks, console)
