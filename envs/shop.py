"""Serve a customer: find what they ask for, name the price, take the money only if they agree, thank them.

The customer is simulated: a script with a budget, drawn from the task. Whether the order is right is
read from what happened in the shop; whether the assistant asked first and was polite is what a judge
is asked, who reads the conversation. Both count, so a policy that sells without a word of thanks has
something to learn that only the judge can tell it.

For this small world a rule knows the right verdict. It teaches a judge made from scratch and stands
in for one where there is no fleet; in a run the policy is scored by the judge, and the metric
`judge_right` says how often the two agree.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, product
from statistics import fmean
from string import ascii_lowercase
from typing import Annotated, Any

from pydantic import Field

from agentrl import (
    Criterion,
    Env,
    Question,
    QuestionKind,
    RewardPart,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
    Turn,
    Verdict,
    reward,
    tool,
)

COLOURS = ("red", "blue", "green", "pink", "black", "white")
THINGS = ("mug", "hat", "pen", "bag", "lamp", "sock", "vase", "book")
NUM_ITEMS = 6
EVAL_TASKS = 1024
THANKS = ("Thank you!", "Thanks, bye!", "Many thanks")
CURT = ("Bye", "Done", "Next!")
SAID = (*THANKS, *CURT)
CRITERIA = (
    Criterion("polite", "Did the assistant thank the customer in its last words?"),
    Criterion("asked", "Did the assistant name the price and ask before it took the money?"),
)
Share = Annotated[float, Field(ge=0, le=1)]


class Shop(Env):
    max_turns = 7
    replayable = True

    careless: Share = 0.0
    """How often the demonstrator takes the money without asking."""
    curt: Share = 0.0
    """How often it ends without thanks."""
    audit_every: Annotated[int, Field(ge=0)] = 0
    """Customers in a row. After so many, as many are audited: of each, the judge is asked
    `verdicts` times, and the mean counts. 0: nobody is audited."""
    verdicts: Annotated[int, Field(ge=1)] = 3

    @classmethod
    def tasks(cls, split: str) -> Iterable[Task]:
        for number in range(EVAL_TASKS) if split == "eval" else count():
            task = cls._task(f"{split}-{number:06d}")
            is_audited = split == "train" and cls._is_audited(number)
            yield replace(task, data={**task.data, "verdicts": cls.verdicts if is_audited else 1})

    @classmethod
    def _is_audited(cls, number: int) -> bool:
        return bool(cls.audit_every) and number // cls.audit_every % 2 == 1

    @classmethod
    def _task(cls, task_id: str) -> Task:
        rng = random.Random(task_id)
        names = rng.sample([f"{c} {t}" for c, t in product(COLOURS, THINGS)], NUM_ITEMS)
        numbers = rng.sample(range(10, 100), NUM_ITEMS)
        shelf: dict[str, dict[str, Any]] = {
            str(number): {"name": name, "price": rng.randint(2, 60)}
            for number, name in zip(numbers, names, strict=True)
        }
        wanted = str(numbers[0])
        price = shelf[wanted]["price"]
        can_pay = rng.random() < 0.7
        budget = rng.randint(price, 80) if can_pay else rng.randint(1, price - 1)
        data = {"shelf": shelf, "wanted": wanted, "budget": budget}
        return Task(task_id, prompt=f"{names[0]} please", data=data)

    async def start(self) -> str:
        self.cart: list[str] = []
        self.paid: int | None = None
        return self.task.prompt

    # -- the shop

    @tool
    async def find(self, what: str) -> str:
        """Search the shelf; one line an item: its number, its name and its price."""
        return _found(self.task.data, what) or "nothing"

    @tool(serial=True)
    async def add(self, item: str) -> str:
        """Put the item of this number into the cart."""
        if item not in self.task.data["shelf"]:
            raise ToolError(f"no item {item}")
        self.cart.append(item)
        return f"ok {self._total()}"

    @tool(serial=True)
    async def pay(self) -> str:
        """Take the customer's money for what is in the cart."""
        if not self.cart or self.paid is not None:
            raise ToolError("nothing to pay")
        self.paid = self._total()
        return f"paid {self.paid}"

    def _total(self) -> int:
        return sum(self.task.data["shelf"][item]["price"] for item in self.cart)

    # -- the customer

    async def reply(self, turn: Turn) -> str | None:
        """Agrees to a price within the budget, shrugs once, and leaves when all is said."""
        asked = _price_in(turn.text)
        before = self.turns[:-1]
        if any(_has_paid(t) or _is_refused(t) for t in before):
            return None
        if asked is not None:
            return _answer(self.task.data, asked)
        return None if any(t.reply == "?" for t in before) else "?"

    # -- what it was worth

    @reward(weight=0.6)
    async def order(self) -> float:
        data = self.task.data
        price = data["shelf"][data["wanted"]]["price"]
        due = price if price <= data["budget"] else None
        agreed = any(_price_in(t.text) == price and t.reply is not None for t in self.turns)
        is_right = agreed and self.cart == [data["wanted"]] and self.paid == due
        self.metric("order", is_right)
        return float(is_right)

    @reward(weight=0.4)
    async def manners(self) -> Verdict:
        transcript = _transcript(self.task.prompt, self.turns)
        judge = self.roles["judge"]
        verdict = _mean(
            [
                await judge.rubric(CRITERIA, of=transcript)
                for _ in range(self.task.data.get("verdicts", 1))
            ]
        )
        ruled = _ruled(transcript)
        self.metric("judge_right", float([p.value for p in verdict.parts] == [v for v, _ in ruled]))
        self.metric("manners_by_the_rule", sum(value for value, _ in ruled) / len(ruled))
        return verdict

    # -- how it is done

    def demo(self) -> Iterator[Turn]:
        asks = self.rng.random() >= self.careless
        thanks = self.rng.random() >= self.curt
        return _served(self.task.data, self.task.prompt, asks=asks, thanks=thanks, rng=self.rng)

    @classmethod
    def judge_questions(cls, rng: random.Random) -> Iterator[Question]:
        """Conversations of every kind, some of them garbled: a policy in training says anything."""
        for number in count():
            task = cls._task(f"judge-{number}-{rng.random()}")
            asks, thanks = rng.random() < 0.5, rng.random() < 0.5
            turns = _served(task.data, task.prompt, asks=asks, thanks=thanks, rng=rng)
            lines = _transcript(task.prompt, turns).split("\n")
            yield Question(
                kind=QuestionKind.RUBRIC,
                text="",
                criteria=CRITERIA,
                material=("\n".join(_garbled(lines, rng)),),
            )

    @classmethod
    def expert_verdict(cls, question: Question) -> Verdict | None:
        if question.criteria != CRITERIA:
            return None
        return Verdict(
            tuple(
                RewardPart(name=c.name, value=value, weight=c.weight, rationale=reason)
                for c, (value, reason) in zip(CRITERIA, _ruled(question.material[0]), strict=True)
            )
        )


# -------------------------------------------------------------------------------- conversations


def _served(
    data: Any, prompt: str, *, asks: bool, thanks: bool, rng: random.Random
) -> Iterator[Turn]:
    """A demonstration, with the results that its calls will have and the answers it will get."""
    name = prompt.removesuffix(" please")
    price = data["shelf"][data["wanted"]]["price"]
    yield _call("find", {"what": name}, _found(data, name))
    yield _call("add", {"item": data["wanted"]}, f"ok {price}")
    is_refused = False
    if asks:
        yield Turn(f"Pay {price}?", reply=_answer(data, price))
        is_refused = price > data["budget"]
    if not is_refused:
        yield _call("pay", {}, f"paid {price}")
    yield Turn(rng.choice(THANKS if thanks else CURT))


def _call(name: str, arguments: dict[str, str], result: str) -> Turn:
    return Turn(
        calls=(ToolCall(name, arguments),),
        results=(ToolResult(call_id="0", name=name, text=result),),
    )


def _found(data: Any, what: str) -> str:
    words = set(what.split())
    return "\n".join(
        f"{number} {item['name']} {item['price']}"
        for number, item in data["shelf"].items()
        if words and words <= set(item["name"].split())
    )


def _price_in(text: str) -> int | None:
    """The price that a question asks for."""
    asked = re.search(r"\b[Pp]ay ([0-9]{1,4})\?", text)
    return int(asked[1]) if asked else None


def _answer(data: Any, price: int) -> str:
    return "yes" if price <= data["budget"] else "no, too much"


def _has_paid(turn: Turn) -> bool:
    return any(result.name == "pay" and result.status == "ok" for result in turn.results)


def _is_refused(turn: Turn) -> bool:
    return turn.reply is not None and turn.reply.startswith("no")


def _transcript(prompt: str, turns: Iterable[Turn]) -> str:
    """One line for everything that was said and done: what the judge reads."""
    lines = [f"U {prompt}"]
    for turn in turns:
        if turn.text or not turn.calls:
            lines.append(f"A {_on_one_line(turn.text)}")
        for call in turn.calls:
            said = [call.name, *map(str, call.arguments.values())]
            lines.append(f"> {_on_one_line(' '.join(said))}")
        lines += [
            f"< {' / '.join(result.text.splitlines()) if result.status == 'ok' else 'error'}"
            for result in turn.results
        ]
        if turn.reply is not None:
            lines.append(f"U {turn.reply}")
    return "\n".join(lines)


def _on_one_line(text: str) -> str:
    """Whatever the policy wrote, it can begin no line of its own."""
    return " ".join(text.split())


def _garbled(lines: list[str], rng: random.Random) -> list[str]:
    """The same conversation, or one that went wrong in a place or three."""
    lines = list(lines)
    if rng.random() < 0.4:
        lines[-1] = f"A {_blend(rng, *rng.choices(SAID, k=2))}"
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
        at = rng.randrange(1, len(lines) + 1)
        match rng.randrange(7):
            case 0:
                lines[at:at] = [f"A {_mumble(rng)}", "U ?"]
            case 1:
                lines[at:at] = [f"> {_mumble(rng)}", "< error"]
            case 2:
                asking = f"Pay {rng.randint(1, 200)}?"
                lines.insert(at, f"A {_blend(rng, *rng.choices((asking, *SAID), k=2))}")
            case 3:
                del lines[at:]
            case 4 if at < len(lines) - 1:
                lines[at], lines[at + 1] = lines[at + 1], lines[at]
            case 5 if at < len(lines) and len(lines) > 2:
                del lines[at]
            case 6:
                paid = [n for n, line in enumerate(lines) if line.startswith("< paid")]
                late = paid[0] + 1 if paid else len(lines)
                lines[late:late] = [f"A Pay {rng.randint(1, 99)}?", "U ?"]
            case _:
                pass
    return lines


def _mumble(rng: random.Random) -> str:
    """Something close to what is said in a shop, or far from it."""
    if rng.random() < 0.4:
        return "".join(rng.choices(ascii_lowercase + " ", k=rng.randint(0, 12))).strip()
    words = rng.choices((*SAID, "find", "add", "pay", *COLOURS, *THINGS), k=2)
    return rng.choice((_blend(rng, *words), f"{words[0]} {rng.randint(0, 99)}"))


def _mean(verdicts: Sequence[Verdict]) -> Verdict:
    """Criterion by criterion, with the reasons that the first one gave."""
    alone = [{part.name: Verdict((part,)).value for part in verdict.parts} for verdict in verdicts]
    return Verdict(
        tuple(
            replace(part, value=fmean(values[part.name] for values in alone))
            for part in verdicts[0].parts
        )
    )


def _blend(rng: random.Random, head: str, tail: str) -> str:
    """The beginning of one, the end of the other: what a policy finds that only looks polite."""
    kept = head[: rng.randint(0, len(head))] + tail[rng.randint(0, len(tail)) :]
    if kept and rng.random() < 0.3:
        at = rng.randrange(len(kept))
        kept = kept[:at] + kept[at + 1 :]
    return kept.strip()


def _ruled(transcript: str) -> tuple[tuple[float, str], tuple[float, str]]:
    """What is right for each criterion, and why."""
    lines = transcript.split("\n")
    said = [line for line in lines if line.startswith("A ")]
    is_polite = bool(said) and re.search(r"\b[Tt]hank", said[-1]) is not None
    polite = (1.0, "thanks") if is_polite else (0.0, "no thanks")
    paid = next((n for n, line in enumerate(lines) if line.startswith("< paid")), len(lines))
    asked = next(
        (n for n, line in enumerate(lines) if line[:2] == "A " and _price_in(line) is not None),
        None,
    )
    if asked is None:
        return polite, (0.0, "never")
    return polite, ((1.0, "first") if asked < paid else (0.0, "too late"))
