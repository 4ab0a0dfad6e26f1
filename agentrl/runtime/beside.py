"""Endless work beside work that ends.

A run's main loop has lines beside it that never end by themselves: whatever fails first, there or
in the loop, ends all of them, and is raised as itself rather than in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def beside(main: Awaitable[Result], *endless: Coroutine[Any, Any, Any]) -> Result:
    """Run `main` with endless work beside it. The first error ends everything and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in endless]
            result = await main
            for task in tasks:
                task.cancel()
        return result
    except BaseExceptionGroup as errors:
        error = first_error(errors)
        raise error from error.__cause__


def first_error(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
