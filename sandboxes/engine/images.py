"""Images of boxes: looked up once, pulled once however many boxes wait for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from docker.api import APIClient
from docker.errors import APIError, ImageNotFound

from sandboxes.engine.connection import PULL_TIMEOUT_S, Engine
from sandboxes.engine.container import Image
from sandboxes.sandbox import SandboxError


class Images:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, Image] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, name: str) -> Image:
        async with self._locks[name]:
            if name not in self._known:
                details = await self._details(name)
                workdir = (details.get("Config") or {}).get("WorkingDir") or "/"
                self._known[name] = Image(name=name, workdir=workdir)
        return self._known[name]

    async def _details(self, name: str) -> dict[str, Any]:
        def inspect(client: APIClient) -> dict[str, Any]:
            details: dict[str, Any] = client.inspect_image(name)
            return details

        try:
            return await self._engine.call("look up an image", inspect)
        except ImageNotFound:
            await self._pull(name)
            return await self._engine.call("look up an image", inspect)

    async def _pull(self, name: str) -> None:
        try:
            async with asyncio.timeout(PULL_TIMEOUT_S):
                await self._engine.call("pull an image", lambda client: client.pull(name))
        except (APIError, TimeoutError) as e:
            raise SandboxError(
                f"the engine has no image {name!r} and could not pull it ({e}); build the base "
                "image with docker/build-base.sh, or name an image that the engine can reach"
            ) from e
