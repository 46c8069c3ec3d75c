"""Runs of words that a text shares with other texts, in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GRAM = 3
"""Words of the n-grams that are compared; shorter runs do not count."""


class Grams:
    """The n-grams of some texts (word lists)."""

    def __init__(self, texts: Iterable[Sequence[str]], n: int = GRAM) -> None:
        self.n = n
        self._grams = {tuple(words[i : i + n]) for words in texts for i in range(len(words) - n + 1)}

    def longest_run(self, words: Sequence[str]) -> int:
        """Words of the longest run whose n-grams all occur in the texts; 0 if none does."""
        longest = run = 0
        for start in range(len(words) - self.n + 1):
            run = run + 1 if tuple(words[start : start + self.n]) in self._grams else 0
            longest = max(longest, run)
        return longest + self.n - 1 if longest else 0
