"""Sections of the page about captions, from what the survey found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curate.caption.report.cards import Card, Cards, human
from curate.caption.report.columns import TextColumn
from curate.caption.report.costs import Usage
from curate.caption.report.measures import Measures, Shift, shifts
from curate.caption.report.survey import OUTCOMES, Surveyed
from curate.core.endpoints import Price
from curate.core.nouns.manifest import Manifest
from curate.html.charts import StepChart, share_chart
from curate.kernels.cluster_names import Terms, cluster_names

SHIFTS_SHOWN = 6
FAILURES_OPEN = 3


@dataclass(frozen=True)
class Outcomes:
    """A line of the table of outcomes; its counts add up to `rows`."""

    text: str
    stage: str
    op: str
    outcomes: list[int]
    """As in OUTCOMES."""
    other: int
    """Outcomes that are not in OUTCOMES."""
    errors: int
    no_answer: int
    earlier: int
    rows: int
    reasons: list[tuple[str, int]]
    """Errors by reason."""


def outcomes(texts: Sequence[TextColumn], found: Surveyed, stages: Mapping[str, Manifest]) -> list[Outcomes]:
    lines = []
    for text in texts:
        if text.name in found.asked:
            made = found.asked[text.name]
            counts = [made.outcomes[name] for name in OUTCOMES]
            line = Outcomes(
                text=text.name,
                stage=text.stage or "",
                op=stages[text.stage].op if text.stage else "",
                outcomes=counts,
                other=made.outcomes.total() - sum(counts),
                errors=made.errors.total(),
                no_answer=made.no_answer,
                earlier=made.earlier,
                rows=found.rows,
                reasons=[(human(reason), count) for reason, count in made.errors.most_common()],
            )
            lines.append(line)
    return lines


@dataclass(frozen=True)
class Origin:
    """Answers of one model and prompt, and their cost."""

    text: str
    model: str
    fingerprint: str
    prompt: str
    endpoint: str
    usage: Usage
    dollars: float | None
    per_thousand: float | None
    changed: bool
    """Whether the same endpoint reported another model or fingerprint for other rows."""


def origins(found: Surveyed, prices: Mapping[str, Price]) -> list[Origin]:
    lines = []
    for name, made in found.asked.items():
        servers: dict[str, set[tuple[str, str]]] = {}
        for source in made.usage:
            servers.setdefault(source.endpoint, set()).add((source.model, source.fingerprint))
        for source, usage in sorted(made.usage.items(), key=lambda item: (-item[1].answers, str(item[0]))):
            price = prices.get(source.endpoint)
            cost, each = usage.dollars(price), usage.per_thousand(price)
            changed = len(servers[source.endpoint]) > 1
            lines.append(Origin(name, **vars(source), usage=usage, dollars=cost, per_thousand=each, changed=changed))
    return lines


@dataclass(frozen=True)
class Totals:
    """Sums over all texts."""

    asked: int
    """Texts with an outcome or an error."""
    ok: int
    checked: int
    failed: int
    """Texts that fail their checks."""


def totals(found: Surveyed) -> Totals:
    asked = found.asked.values()
    return Totals(
        asked=sum(made.outcomes.total() + made.errors.total() for made in asked),
        ok=sum(made.outcomes["ok"] for made in asked),
        checked=sum(counts.total() for counts in found.checks.values()),
        failed=sum(counts.total() - counts[""] for counts in found.checks.values()),
    )


@dataclass(frozen=True)
class Distribution:
    """A text beside the original."""

    name: str
    chart: StepChart
    risen: list[Shift]
    fallen: list[Shift]


def measures(texts: Sequence[TextColumn], rows: Sequence[Mapping[str, Any]]) -> dict[str, Measures]:
    return {text.name: Measures.of(row.get(text.name) for row in rows) for text in texts if not text.structured}


def distributions(measured: Mapping[str, Measures]) -> list[Distribution]:
    """The first text is the original."""
    names = list(measured)
    found = []
    for name in names[1:]:
        before, after = measured[names[0]], measured[name]
        if after.texts:
            series = [(names[0], "before", before.lengths), (name, "after", after.lengths)]
            found.append(Distribution(name, share_chart(series, "words"), *shifts(before, after, SHIFTS_SHOWN)))
    return found


@dataclass(frozen=True)
class Checked:
    text: str
    texts: int
    passed: int
    reasons: list[tuple[str, int, str]]
    """(reason, texts, anchor of the examples)."""


def checked(reasons_of: Mapping[str, Counter[str]], anchors: Mapping[tuple[str, str], str]) -> list[Checked]:
    """`reasons_of`: text -> reason -> texts."""
    lines = []
    for name, counts in reasons_of.items():
        reasons = [
            (human(why), count, anchors.get((name, human(why)), "")) for why, count in counts.most_common() if why
        ]
        lines.append(Checked(name, counts.total(), counts[""], reasons))
    return lines


@dataclass(frozen=True)
class Failures:
    anchor: str
    text: str
    reason: str
    count: int
    cards: list[Card]
    open: bool


def failures(found: Surveyed, cards: Cards, order: Sequence[str]) -> list[Failures]:
    """By text, then most frequent first."""
    pairs = sorted(found.failed, key=lambda pair: (order.index(pair[0]), -found.failed[pair], pair[1]))
    largest = {pair for pair, _ in found.failed.most_common(FAILURES_OPEN)}
    return [
        Failures(
            anchor=f"failure-{number}",
            text=pair[0],
            reason=human(pair[1]),
            count=found.failed[pair],
            cards=[cards.card(row, only=pair[0]) for row in found.failures[pair]],
            open=pair in largest,
        )
        for number, pair in enumerate(pairs)
    ]


@dataclass(frozen=True)
class Group:
    """Rows of a cluster, or of all rows."""

    anchor: str
    name: str
    rows: int | None
    cards: list[Card]


def groups(found: Surveyed, cards: Cards, names: Sequence[str]) -> list[Group]:
    """Largest cluster first, named after the words of its rows' texts `names`."""
    order = sorted(found.samples, key=lambda cluster: (-found.clusters[cluster], cluster))
    if order == [-1]:
        return [Group("samples-all", "", None, [cards.card(row) for row in found.samples[-1]])]
    captions = [[" ".join(str(row.get(name) or "") for name in names) for row in found.samples[one]] for one in order]
    background = [" ".join(str(row.get(name) or "") for name in names) for row in found.measured]
    cluster = np.repeat(np.arange(-1, len(order)), [len(background), *map(len, captions)])
    titles = cluster_names(Terms.of([*background, *(text for own in captions for text in own)]), cluster, len(order))
    return [
        Group(
            f"cluster-{one}",
            title or f"cluster {one}",
            found.clusters[one],
            [cards.card(r) for r in found.samples[one]],
        )
        for one, title in zip(order, titles, strict=True)
    ]


def flags(found: Surveyed) -> list[tuple[str, int, int]]:
    """(column, rows where it is true, rows with a value)."""
    return [(name, true, known) for name, (true, known) in sorted(found.flags.items())]


def prompts(texts: Sequence[TextColumn], stages: Mapping[str, Manifest]) -> list[tuple[str, str]]:
    """(text, its prompt or variants as JSON) of the asking stages."""
    found = []
    for text in texts:
        parameters = stages[text.stage].parameters if text.stage else {}
        kept = {name: parameters[name] for name in ("prompt", "variants", "seed") if parameters.get(name) is not None}
        if kept:
            found.append((text.name, json.dumps(kept, indent=1, ensure_ascii=False)))
    return found


def chosen(found: Surveyed) -> Counter[str]:
    """Rows by the text that was chosen; `none` for rows without any."""
    return Counter({human(name) or "none": count for name, count in found.chosen.items()})


TERMS = {
    "outcome": (
        "Outcome",
        "ok: a complete answer. truncated: the answer reached the limit of tokens. refused: the model or its filter "
        "declined to answer. empty: an answer without text. error: no usable answer after all attempts; curate retry "
        "tries again. no answer: the row needs none. left earlier: rejected before this stage. Every row is in exactly "
        "one column.",
    ),
    "cost": (
        "Cost",
        "Tokens of the answers as the endpoint reported them, times its price: whichever run paid for them.",
    ),
    "spent": (
        "Spent by this run",
        "All requests that the run sent until this page was made, also those that led to no answer, at the tokens that "
        "the endpoint reported. Stored answers that a run reuses cost nothing again. curate status shows the same.",
    ),
    "fingerprint": (
        "Fingerprint",
        "What the server says about its configuration (system_fingerprint). If the model or the fingerprint changes "
        "within a run, the answers are not from one and the same model.",
    ),
    "types": (
        "Distinct words",
        "Distinct words per 1,000 words, averaged over segments of 1,000 words, so that sets of different sizes can be "
        "compared. Distinct pairs and triples are shares of all word pairs and triples of a segment. Lower is more "
        "uniform.",
    ),
    "repeated": (
        "Repetition",
        "Share of a text's characters in runs of 4 words that occurred earlier in the same text. A loop is a unit of "
        "words that occurs at least three times in a row.",
    ),
    "check": ("Checks", "caption.check writes the first reason why a text fails; filters decide what happens then."),
    "injection": (
        "Orders in the context",
        "Texts of the web may contain orders to a model. A text that follows one shows a sign of it. Detection is not "
        "complete: a text without a sign may follow an order too.",
    ),
    "shift": (
        "Words that became more or less frequent",
        "Share of texts that contain the word, before and after.",
    ),
}
