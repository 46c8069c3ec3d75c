"""Labelled texts: 34 phrases in each of 12 languages, and short alt texts of the web, drawn at random.

The phrases are captions, titles and proverbs, the same ones in every language where that sounds natural. The alt texts
were labelled by hand; those that are names alone or mix languages were left out, and 28 that are not English were added
to the 296 that are.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent / "data" / "phrases.tsv"


class Phrase(NamedTuple):
    language: str
    kind: str
    """phrase or alt."""
    text: str


def phrases() -> list[Phrase]:
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [Phrase(*row) for row in rows[1:]]
