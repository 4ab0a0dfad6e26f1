"""How much text a context could hold at all, before anybody has tokenized it.

A tool may return a file of millions of characters that the policy wrote. Tokenizing it, to find
that it does not fit, would hold up all other attempts of the process, and keeping it would fill
its memory. A token stands for so many characters at most, so what is certainly too much is known
by its length, and cut there: it still does not fit, and what is recorded says what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.chat.format import ChatFormat


@dataclass(frozen=True, slots=True)
class TextBound:
    context_tokens: int
    max_chars: int

    @classmethod
    def of(cls, chat: ChatFormat, context_tokens: int) -> TextBound:
        return cls(context_tokens, context_tokens * chat.max_token_chars)

    def may_fit(self, texts: Iterable[str]) -> bool:
        """Whether it takes a tokenizer to tell."""
        return sum(map(len, texts)) <= self.max_chars

    def cut(self, text: str) -> str:
        """The text, or as much of one that cannot fit as makes it too long all the same."""
        if len(text) <= self.max_chars:
            return text
        return (
            f"{text[: self.max_chars]}\n[cut here: {len(text)} characters, "
            f"more than {self.context_tokens} tokens can hold]"
        )
