"""Work out `12*7+30` with a calculator that does one operation at a time. No sandbox needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from agentrl import Env, Task, ToolCall, ToolError, Turn, reward, tool


class Calculator(Env):
    max_turns = 4
    replayable = True
    largest: int = 30

    @classmethod
    def tasks(cls, split: str) -> Iterator[Task]:
        for a, b, c in product(range(2, cls.largest + 1), repeat=3):
            if ((a + 3 * b + 7 * c) % 10 == 0) == (split == "eval"):
                yield Task(f"{a}*{b}+{c}", prompt=f"{a}*{b}+{c}", data={"numbers": [a, b, c]})

    @tool
    def calc(self, expression: str) -> str:
        """One operation on two numbers: `12*7` or `84+30`."""
        operation = re.fullmatch(r"(\d{1,9})([*+])(\d{1,9})", expression)
        if operation is None:
            raise ToolError("write two numbers with * or + between them")
        a, sign, b = operation.groups()
        return str(int(a) * int(b) if sign == "*" else int(a) + int(b))

    @reward
    async def exact(self) -> float:
        a, b, c = self.task.data["numbers"]
        return float(self.turns[-1].text.strip() == str(a * b + c))

    def demo(self) -> Iterator[Turn]:
        a, b, c = self.task.data["numbers"]
        yield Turn(calls=[ToolCall("calc", {"expression": f"{a}*{b}"})])
        yield Turn(calls=[ToolCall("calc", {"expression": f"{a * b}+{c}"})])
        yield Turn(str(a * b + c))
