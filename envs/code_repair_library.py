"""The correct code that `code_repair` breaks: small modules of plain functions.

A repository holds the source of some of these functions as it stands here, so it is written the
way repositories are. Rules that keep a broken version harmless and its repair decidable:
- for loops and recursion, never `while`: whatever is broken, it comes to an end;
- arguments and results are JSON without fractions: lists, strings, whole numbers, dicts by name;
- no argument is ever changed, and nothing is remembered from call to call;
- a module uses only modules above it; docstrings put names of the code between backquotes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# ----------------------------------------------------------------------------------------- paging


def page_count(total: int, size: int = 10) -> int:
    """How many pages it takes for `total`; none for nothing."""
    return (total + size - 1) // size


def page_bounds(page: int, total: int, size: int = 10) -> list[int]:
    """Where a page starts and where it stops; pages are counted from 1, the last may be short."""
    first = (page - 1) * size
    return [first, min(first + size, total)]


def page_items(items: list[int], page: int = 1, size: int = 10) -> list[int]:
    """The things on one page."""
    first, last = page_bounds(page, len(items), size)
    return items[first:last]


def page_label(page: int, total: int, size: int = 10) -> str:
    """What is written under a page, such as `2 of 5`, and `last` on the last one."""
    pages = page_count(total, size)
    if page < pages:
        return f"{page} of {pages}"
    return "last"


# ------------------------------------------------------------------------------- spans and agenda


def overlaps(one: list[int], other: list[int]) -> bool:
    """Whether two spans share more than an end; a span holds its start and not its end."""
    return one[0] < other[1] and other[0] < one[1]


def merge_spans(spans: list[list[int]]) -> list[list[int]]:
    """Spans that touch or overlap made one, in the order of their starts."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = [merged[-1][0], max(merged[-1][1], end)]
        else:
            merged.append([start, end])
    return merged


def covered(spans: list[list[int]]) -> int:
    """The length that spans cover together; what is covered twice counts once."""
    return sum(end - start for start, end in merge_spans(spans))


def is_free(busy: list[list[int]], start: int, end: int) -> bool:
    """Whether nothing is booked between two hours."""
    return not any(overlaps([start, end], span) for span in busy)


def free_spans(busy: list[list[int]], opens: int = 4, closes: int = 9) -> list[list[int]]:
    """The free spans of a day, from opening to closing time, in order."""
    free = []
    at = opens
    for start, end in merge_spans(busy):
        if at < min(start, closes):
            free.append([at, min(start, closes)])
        at = max(at, end)
    if at < closes:
        free.append([at, closes])
    return free


def book(busy: list[list[int]], start: int, end: int) -> list[list[int]]:
    """The bookings with one more at the end, if its time is free; `busy` stays as it was."""
    booked = list(busy)
    if is_free(busy, start, end):
        booked.append([start, end])
    return booked


# --------------------------------------------------------------------------------------- wording


def shorten(text: str, limit: int = 6) -> str:
    """The text, cut to `limit` letters of which the last two are dots if it is longer."""
    if len(text) <= limit:
        return text
    return text[: limit - 2] + ".."


def wrap_words(words: list[str], width: int = 12) -> list[str]:
    """Lines of words with a space between them, none longer than `width` if words allow it."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] = lines[-1] + " " + word
        else:
            lines.append(word)
    return lines


def is_palindrome(text: str) -> bool:
    """Whether a text reads the same from its end."""
    if len(text) < 2:
        return True
    return text[0] == text[-1] and is_palindrome(text[1:-1])


def run_lengths(text: str) -> list[list[object]]:
    """Each run of one letter as the letter and how often it follows itself."""
    runs: list[list[object]] = []
    count = 0
    for index, letter in enumerate(text):
        count = count + 1
        if index + 1 == len(text) or text[index + 1] != letter:
            runs.append([letter, count])
            count = 0
    return runs


# ---------------------------------------------------------------------------------------- numbers


def digit_sum(number: int) -> int:
    """The sum of the decimal digits."""
    if number == 0:
        return 0
    return number % 10 + digit_sum(number // 10)


def to_base(number: int, base: int = 2) -> str:
    """The digits of a number in a base up to ten."""
    if number < base:
        return str(number)
    return to_base(number // base, base) + str(number % base)


def common_divisor(one: int, other: int) -> int:
    """The greatest number that divides both."""
    if other == 0:
        return one
    return common_divisor(other, one % other)


def power(base: int, exponent: int) -> int:
    """`base` times itself, `exponent` times."""
    if exponent == 0:
        return 1
    half = power(base, exponent // 2)
    return half * half * base if exponent % 2 == 1 else half * half


# ----------------------------------------------------------------------------------------- ledger


def running_balances(amounts: list[int], opening: int = 0) -> list[int]:
    """The balance after each booking."""
    balances = []
    balance = opening
    for amount in amounts:
        balance = balance + amount
        balances.append(balance)
    return balances


def fee(amount: int, percent: int = 4, least: int = 2) -> int:
    """The fee on an amount in whole units, rounded down, and never below the least one."""
    return max(amount * percent // 100, least)


def transfer(accounts: dict[str, int], source: str, target: str, amount: int) -> dict[str, int]:
    """The accounts after a transfer, for which the source pays the fee; or as they were, if the
    source has too little. `accounts` is never changed."""
    after = dict(accounts)
    cost = amount + fee(amount)
    if after[source] >= cost:
        after[source] = after[source] - cost
        after[target] = after[target] + amount
    return after


def overdrawn(accounts: dict[str, int], limit: int = 0) -> list[str]:
    """The names of accounts that are below the limit, sorted."""
    return sorted(name for name, balance in accounts.items() if balance < limit)


# ---------------------------------------------------------------------------------------- ranking


def top_scores(scores: list[int], count: int = 3) -> list[int]:
    """The best scores, highest first."""
    ordered = list(scores)
    ordered.sort(reverse=True)
    return ordered[:count]


def rank_of(score: int, scores: list[int]) -> int:
    """The place of a score among others, counted from 1; equal scores share the better place."""
    return 1 + sum(other > score for other in scores)


def middle(scores: list[int]) -> int:
    """The score in the middle of all in order; of two in the middle, the lower."""
    ordered = sorted(scores)
    return ordered[(len(ordered) - 1) // 2]


def trimmed(scores: list[int], cut: int = 1) -> list[int]:
    """The scores in order, without the `cut` lowest and the `cut` highest."""
    ordered = list(scores)
    ordered.sort()
    return ordered[cut : len(ordered) - cut]


def medal(score: int, scores: list[int], medals: int = 3) -> bool:
    """Whether a score is good for one of the medals."""
    return rank_of(score, scores) <= medals


# ------------------------------------------------------------------------------------------- grid


def inside(rows: list[list[int]], row: int, column: int) -> bool:
    """Whether a grid has such a cell."""
    return min(row, column) >= 0 and row < len(rows) and column < len(rows[0])


def neighbours(rows: list[list[int]], row: int, column: int) -> int:
    """How many of the cells left, right, above and below are set."""
    beside = [[row, column - 1], [row, column + 1], [row - 1, column], [row + 1, column]]
    return sum(rows[r][c] for r, c in beside if inside(rows, r, c))


def turned(rows: list[list[int]]) -> list[list[int]]:
    """The grid turned clockwise by a quarter."""
    height = len(rows)
    return [[rows[height - 1 - r][c] for r in range(height)] for c in range(len(rows[0]))]


def with_rows_swapped(rows: list[list[int]], one: int, other: int) -> list[list[int]]:
    """The grid with two of its rows in each other's place; `rows` stays as it was."""
    swapped = list(rows)
    swapped[one], swapped[other] = rows[other], rows[one]
    return swapped


def longest_way(rows: list[list[int]], row: int, column: int) -> int:
    """The most set cells on a way from this one that goes right and down, itself counted."""
    if not inside(rows, row, column) or rows[row][column] == 0:
        return 0
    right = longest_way(rows, row, column + 1)
    return 1 + max(right, longest_way(rows, row + 1, column))


# ------------------------------------------------------------------------------- trees and lookup


def flatten(tree: object) -> list[object]:
    """The leaves of nested lists, from left to right."""
    if not isinstance(tree, list):
        return [tree]
    return [leaf for branch in tree for leaf in flatten(branch)]


def depth(tree: object) -> int:
    """How deep lists are nested; a leaf has no depth."""
    if not isinstance(tree, list):
        return 0
    return 1 + max([depth(branch) for branch in tree], default=0)


def insert_position(values: list[int], wanted: int, low: int, high: int) -> int:
    """Where in the sorted values, from `low` up to `high`, the first that is not less stands."""
    if low >= high:
        return low
    half = (low + high) // 2
    if values[half] < wanted:
        return insert_position(values, wanted, half + 1, high)
    return insert_position(values, wanted, low, half)


def inserted(values: list[int], wanted: int) -> list[int]:
    """The sorted values with one more in its place; `values` stays as it was."""
    longer = list(values)
    longer.insert(insert_position(values, wanted, 0, len(values)), wanted)
    return longer


def count_between(values: list[int], least: int, most: int) -> int:
    """How many of the sorted values are from `least` to `most`, both counted."""
    size = len(values)
    below = insert_position(values, least, 0, size)
    return insert_position(values, most + 1, 0, size) - below


# ----------------------------------------------------------------------------------------- report


def statement(amounts: list[int], opening: int = 0, page: int = 1, size: int = 4) -> list[str]:
    """One page of an account's balances, each with its number, and the label of the page."""
    balances = running_balances(amounts, opening)
    first = page_bounds(page, len(balances), size)[0]
    lines = [
        f"{first + 1 + index}: {balance}"
        for index, balance in enumerate(page_items(balances, page, size))
    ]
    return [*lines, page_label(page, len(balances), size)]


def headline(words: list[str], limit: int = 14) -> str:
    """The first line of a report, in capitals and cut to the limit."""
    return shorten(" ".join(words), limit).upper()


MODULES: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "paging": (page_count, page_bounds, page_items, page_label),
    "spans": (overlaps, merge_spans, covered),
    "agenda": (is_free, free_spans, book),
    "wording": (shorten, wrap_words, is_palindrome, run_lengths),
    "numbering": (digit_sum, to_base, common_divisor, power),
    "ledger": (running_balances, fee, transfer, overdrawn),
    "ranking": (top_scores, rank_of, middle, trimmed, medal),
    "grid": (inside, neighbours, turned, with_rows_swapped, longest_way),
    "trees": (flatten, depth),
    "lookup": (insert_position, inserted, count_between),
    "report": (statement, headline),
}
