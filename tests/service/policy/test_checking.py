"""What a check says about a recipe, in this process."""

from __future__ import annotations

import pytest

from curate.service.policy.checking import Order, carried_out
from curate.service.policy.rules import Rules
from curate.service.settings import Limits

RULES = Rules("main", "/ws", {"root": {"photos": "/data"}})
MANY = """stages:
  pool: {op: acquire.folder, namespace: a, path: /etc}
  good: {op: acquire.folder, namespace: a, path: photos}
  inspect: {op: image.inspect, from: good}
  small: {op: image.filter, from: inspect, min_sde: 5}
  lone: {op: image.inspect}
  odd: {op: image.filter, from: inspekt}
  later: {op: image.filter, from: [small]}
  wrong: {op: text.language_filter, from: good, languages: [en]}
"""


def mistakes(text: str, *sets: str) -> list[tuple[str, int | None, str]]:
    outcome = carried_out(Order(text, sets, RULES, Limits()))
    return [(one["code"], one["line"], one["text"]) for one in outcome.mistakes]


def test_a_check_says_everything_that_is_wrong() -> None:
    """A value that is not admitted, an unknown parameter, an unknown stage, a missing `from` and a missing column, and
    nothing about stages that only depend on one of these."""
    found = mistakes(MANY)
    assert [(code, line) for code, line, _ in found] == [
        ("policy", 2), ("recipe", 5), ("recipe", 7), ("recipe", 6), ("recipe", 9)
    ]  # fmt: skip
    said = [
        "not below a registered root",
        "unknown parameter",
        "unknown input",
        "`from` is missing",
        "is missing upstr",
    ]
    assert all(words in text for words, (_, _, text) in zip(said, found, strict=True)), found


@pytest.mark.parametrize("given", ["pool.path", "pool.b.c.d.e.f.g.h.i.j.k.l.m=1", "nothing=1", "pool.path=[", "a.=1"])
def test_advice_has_the_name_of_the_field_and_not_of_an_option(given: str) -> None:
    ((_, _, text),) = mistakes("stages: {pool: {op: acquire.folder, namespace: a, path: photos}}", given)
    assert text.startswith("`set`") and "--set" not in text


@pytest.mark.parametrize("name", ["x" * 201, "x" * 300])
def test_a_dataset_with_a_name_too_long_for_files_is_rejected(name: str) -> None:
    stages = "pool: {op: acquire.folder, namespace: a, path: photos}, all: {op: select.all, from: pool}"
    packed = f"stages: {{{stages}, set: {{op: pack.webdataset, from: all, name: NAME}}}}"
    assert mistakes(packed.replace("NAME", "x" * 200)) == []
    ((code, _, text),) = mistakes(packed.replace("NAME", name))
    assert code == "recipe" and "expected at most 200 letters" in text
