"""Sections of the page that compares two texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.caption.checks.words import words_of
from curate.caption.compare.statistics import Interval, Paired, Wins, paired, wilson
from curate.caption.compare.survey import Compared
from curate.caption.report.cards import TEXT_CHARACTERS, clipped
from curate.caption.report.costs import Usage
from curate.caption.report.measures import Measures, shifts
from curate.caption.report.page import SHIFTS_SHOWN, Distribution
from curate.core.endpoints import Price
from curate.html.charts import share_chart
from curate.html.thumbnails import MISSING, Thumbnail


@dataclass(frozen=True)
class Judgement:
    """What the model judged in both orders."""

    wins: Wins
    rate: Interval | None
    inconsistent: Interval | None
    """Share of the samples whose verdict changed with the order: the judge's bias, and its noise."""
    prefer_first: int
    prefer_second: int


def judgement(found: Compared) -> Judgement:
    wins = found.wins
    bias = wilson(wins.inconsistent, wins.judged)
    return Judgement(wins, wins.rate, bias, found.prefer_first, found.prefer_second)


@dataclass(frozen=True)
class Side:
    """One of the two texts."""

    name: str
    origin: str
    """Prompts and models of its answers, most answers first."""
    measures: Measures
    usage: Usage
    dollars: float | None
    per_thousand: float | None


def sides(found: Compared, texts: Sequence[str], prices: Mapping[str, Price]) -> list[Side]:
    """Cost per 1,000 answers: None if any answer lacks a price."""
    made = []
    for name in texts:
        sources = sorted(found.usage.get(name, {}).items(), key=lambda item: (-item[1].answers, str(item[0])))
        usage = sum((usage for _, usage in sources), Usage())
        costs = [usage.dollars(prices.get(source.endpoint)) for source, usage in sources]
        known = [cost for cost in costs if cost is not None]
        dollars = sum(known) if known and len(known) == len(costs) else None
        origins = (" by ".join(filter(None, (source.prompt, source.model))) for source, _ in sources)
        side = Side(
            name=name,
            origin="; ".join(filter(None, dict.fromkeys(origins))),
            measures=Measures.of(row[name] for row in found.measured),
            usage=usage,
            dollars=dollars,
            per_thousand=None if dollars is None or not usage.reported else 1000 * dollars / usage.reported,
        )
        made.append(side)
    return made


@dataclass(frozen=True)
class Difference:
    name: str
    found: Paired
    decimals: int


def differences(found: Compared, texts: Sequence[str], similarities: Sequence[str], seed: int) -> list[Difference]:
    """Paired differences of the measured samples: similarity to the image, words, characters, tokens of the answer."""
    rows = found.measured
    pairs = {"Similarity to the image": [[_similarity(row[name]) for row in rows] for name in similarities]}
    pairs["Words"] = [[len(words_of(row[name])) for row in rows] for name in texts]
    pairs["Characters"] = [[len(row[name]) for row in rows] for name in texts]
    pairs["Answer tokens"] = [[row.get(f"{name}_completion_tokens") for row in rows] for name in texts]
    made = []
    for name, columns in pairs.items():
        values = paired(_floats(columns[0]), _floats(columns[1]), seed) if len(columns) == 2 else None
        if values is not None:
            made.append(Difference(name, values, 3 if name.startswith("Similarity") else 1))
    return made


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _similarity(value: Any) -> float | None:
    """A cosine, or the mean of a list of them."""
    if isinstance(value, list):
        known = [one for one in value if one is not None]
        return sum(known) / len(known) if known else None
    return None if value is None else float(value)


def distribution(found: Compared, texts: Sequence[str]) -> Distribution | None:
    a, b = (Measures.of(row[name] for row in found.measured) for name in texts)
    if not a.texts:
        return None
    chart = share_chart([(texts[0], "before", a.lengths), (texts[1], "after", b.lengths)], "words")
    return Distribution(texts[1], chart, *shifts(a, b, SHIFTS_SHOWN))


@dataclass(frozen=True)
class Opened:
    """A pair with the names of its columns, and what the judge said."""

    key: str
    thumb: Thumbnail
    texts: list[tuple[str, str]]
    verdict: str | None
    reasons: list[tuple[str, str, str]]
    """(order, answer, reason) of each request to the judge."""


def opened(row: Mapping[str, Any], texts: Sequence[str], judge: str | None, thumbs: Mapping[str, Thumbnail]) -> Opened:
    shown = [(name, clipped(row[name], TEXT_CHARACTERS, lines=True)) for name in texts]
    verdict = row.get(f"{judge}_verdict") if judge else None
    names = dict(zip("ab", texts, strict=True))
    reasons = []
    answers = _json(row.get(judge)) if judge else {}
    for order, first in (("ab", "a"), ("ba", "b")):
        answer = answers.get(order)
        if isinstance(answer, dict):
            said = f"{names[first]} shown first"
            reasons.append((said, str(answer.get("verdict", "")), clipped(str(answer.get("reason", "")), 600)))
    return Opened(row["key"], thumbs.get(row["key"], MISSING), shown, names.get(verdict or "", verdict), reasons)


def _json(value: str | None) -> dict[str, Any]:
    try:
        found = json.loads(value) if value else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def links(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(anchor, name) of the sections that the page has."""
    found = [
        ("blind", "Judge blind", True),
        ("summary", "Summary", True),
        ("verdicts", "Model's verdicts", values["judge"]),
        ("figures", "Figures", values["differences"]),
        ("lengths", "Lengths and words", values["distribution"]),
        ("opened", "Pairs", values["opened"]),
    ]
    return [(anchor, name) for anchor, name, shown in found if shown]


TERMS = {
    "rate": (
        "Win rate",
        "Share of the samples with a winner that b wins, with its 95 % interval (Wilson score). Ties and inconsistent "
        "verdicts have no winner and are stated beside it. An interval that contains 50 % does not show a difference.",
    ),
    "inconsistent": (
        "Inconsistent",
        "The model judges each pair twice, with either text first. If the two verdicts differ, the order decided and "
        "not the texts, so neither text wins. The share of such pairs measures the judge's order bias and noise.",
    ),
    "difference": (
        "Difference",
        "Mean of b − a over the samples that have both, with its 95 % interval (percentile bootstrap over samples). An "
        "interval that contains 0 does not show a difference.",
    ),
    "types": (
        "Distinct words",
        "Distinct words per 1,000 words, averaged over segments of 1,000 words, so that sets of different sizes can be "
        "compared. Lower is more uniform.",
    ),
    "repeated": (
        "Repetition",
        "Share of a text's characters in runs of 4 words that occurred earlier in the same text. A loop is a unit of "
        "words that occurs at least three times in a row.",
    ),
    "shift": ("Words that differ", "Share of texts that contain the word, in a and in b."),
    "cost": (
        "Cost",
        "Tokens as the endpoint reported them, times its price, per 1,000 answers: what the requests cost when they "
        "were sent.",
    ),
}
