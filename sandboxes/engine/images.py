"""Images of boxes: looked up once, pulled once however many boxes wait for it.

A pull belongs to nobody who waits: it goes on when they give up, and is there for who asks next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from docker.api import APIClient
from docker.errors import APIError, ImageNotFound

from sandboxes.engine.connection import PULL_TIMEOUT_S, Engine
from sandboxes.engine.container import Image
from sandboxes.sandbox import SandboxError

log = logging.getLogger(__name__)


class Images:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._images: dict[str, asyncio.Task[Image]] = {}
        """Those that are known, or about to be."""

    async def get(self, name: str) -> Image:
        """May take minutes. Raises `SandboxError`."""
        image = self._images.get(name)
        if image is None:
            image = self._images[name] = asyncio.create_task(self._fetch(name))
            image.add_done_callback(lambda ended: self._forget_failed(name, ended))
        return await asyncio.shield(image)

    def _forget_failed(self, name: str, image: asyncio.Task[Image]) -> None:
        if image.cancelled() or image.exception():
            del self._images[name]

    async def _fetch(self, name: str) -> Image:
        details = await self._details(name)
        if details is None:
            await self._pull(name)
            details = await self._details(name)
        if details is None:
            raise _not_pulled(name, "the engine said that it had, and has no such image")
        workdir = (details.get("Config") or {}).get("WorkingDir") or "/"
        return Image(name=name, workdir=workdir)

    async def _details(self, name: str) -> dict[str, Any] | None:
        def inspect(client: APIClient) -> dict[str, Any]:
            details: dict[str, Any] = client.inspect_image(name)
            return details

        try:
            return await self._engine.call("look up an image", inspect)
        except ImageNotFound:
            return None
        except APIError as e:
            raise SandboxError(f"the engine could not look up image {name!r}: {e}") from e

    async def _pull(self, name: str) -> None:
        log.info("pulling an image image=%s", name)
        is_unwanted = threading.Event()
        try:
            async with asyncio.timeout(PULL_TIMEOUT_S):
                await self._engine.call(
                    "pull an image", lambda client: _pull(client, name, is_unwanted)
                )
        except TimeoutError as e:
            raise _not_pulled(name, f"not within {PULL_TIMEOUT_S} s") from e
        except (APIError, SandboxError) as e:
            raise _not_pulled(name, str(e)) from e
        finally:
            is_unwanted.set()

    async def close(self) -> None:
        """Pull no more."""
        images = list(self._images.values())
        for image in images:
            image.cancel()
        await asyncio.gather(*images, return_exceptions=True)


def _pull(client: APIClient, name: str, is_unwanted: threading.Event) -> None:
    """Blocks. The engine stops when it is not listened to any more."""
    for said in client.pull(name, stream=True, decode=True):
        if is_unwanted.is_set():
            return
        if "error" in said:
            raise SandboxError(said["error"])


def _not_pulled(name: str, reason: str) -> SandboxError:
    return SandboxError(
        f"the engine has no image {name!r} and could not pull it ({reason}); build the base "
        "image with docker/build-base.sh, or name an image that the engine can reach"
    )
