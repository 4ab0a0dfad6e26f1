"""Boxes in an engine, whose they are, and the removal of those that nobody has any more.

A container is ours by its labels, which it has from before it exists. One without a readable
owner is listed and left alone: labels can be inherited from an image or set by anybody. One without
a name is gone: Docker that was killed may list it until it starts again, and know it no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from docker.api import APIClient
from docker.errors import APIError

from sandboxes.engine.connection import Engine
from sandboxes.engine.container import LABEL, remove
from sandboxes.ownership import Owner
from sandboxes.sandbox import SandboxError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBox:
    """A container with our label."""

    container_id: str
    name: str
    run_id: str
    backend_id: str
    owner: Owner | None
    """None when the label is missing or unreadable."""
    lease_until: float
    created: float
    state: str

    @classmethod
    def of(cls, container: Mapping[str, Any]) -> Self:
        labels = container["Labels"]
        lease = labels.get(f"{LABEL}.lease", "")
        return cls(
            container_id=container["Id"],
            name=container["Names"][0].lstrip("/"),
            run_id=labels.get(f"{LABEL}.run", ""),
            backend_id=labels.get(f"{LABEL}.backend", ""),
            owner=_owner(labels.get(f"{LABEL}.owner", "")),
            lease_until=float(lease) if lease.isdecimal() else float("inf"),
            created=float(container["Created"]),
            state=container["State"],
        )

    def is_forsaken(self, now: float) -> bool:
        """Its owner is certainly dead, or it has outlived every rollout."""
        if self.owner is None:
            return False
        return not self.owner.may_live() or now > self.lease_until


def _owner(text: str) -> Owner | None:
    try:
        return Owner.parse(text)
    except ValueError:
        return None


async def boxes_in(engine: Engine) -> list[EngineBox]:
    """All of anybody's."""

    def request(client: APIClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.containers(all=True, filters={"label": LABEL})
        return [container for container in found if container["Names"]]

    try:
        return [EngineBox.of(container) for container in await engine.call("list boxes", request)]
    except APIError as e:
        raise SandboxError(f"the engine could not list its boxes: {e.explanation}") from e


async def remove_boxes(engine: Engine, is_unwanted: Callable[[EngineBox], bool]) -> list[EngineBox]:
    """One that cannot be removed is told of and tried again another time."""
    removed = []
    for box in await boxes_in(engine):
        if is_unwanted(box):
            try:
                await remove(engine, box.container_id)
            except SandboxError as e:
                log.warning("could not remove a box without an owner box=%s: %s", box.name, e)
            else:
                removed.append(box)
    if removed:
        log.info("removed boxes without an owner boxes=%s", [box.name for box in removed])
    return removed
