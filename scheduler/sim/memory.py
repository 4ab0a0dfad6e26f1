"""Keys and values a simulated worker holds for trajectories between turns, oldest use first."""

from __future__ import annotations

from scheduler.sim.requests import Key


class RestingCaches:
    """An LRU of whole contexts. Running turns are not in here; they cannot be evicted."""

    def __init__(self) -> None:
        self._tokens: dict[Key, int] = {}
        self.total = 0

    def rest(self, key: Key, tokens: int) -> None:
        assert key not in self._tokens
        self._tokens[key] = tokens
        self.total += tokens

    def wake(self, key: Key) -> int:
        """Take a context out for its next turn; 0 when it was evicted or never here."""
        tokens = self._tokens.pop(key, 0)
        self.total -= tokens
        return tokens

    def evict_to(self, total: int) -> int:
        """Drop the least recently used contexts until at most `total` tokens rest; how many fell."""
        evicted = 0
        while self.total > total:
            self.wake(next(iter(self._tokens)))
            evicted += 1
        return evicted
