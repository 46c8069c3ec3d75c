"""What a request or a recipe can say that is matched, expanded or filtered costs time in proportion to its length.
Measured by the CPU time of this process, which other work hardly changes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import polars as pl
import pytest
from fsspec.utils import glob_translate

from curate.core.errors import CurateError
from curate.core.recipe import load
from curate.filter.expressions import parse
from curate.service.auth import audit
from curate.service.pages import new
from curate.service.policy import bounds, paths
from curate.service.problems import InvalidProblem
from curate.service.rest import routing
from curate.service.runs import remedies
from curate.service.settings import Limits

SECONDS = 10.0
"""Costly patterns take minutes."""
HEADER = 16_384
"""The server takes no longer one."""
RECIPE = Limits().recipe_bytes
EXPRESSION = 10_000
NAME = "a" * 255


def recipe(text: str) -> Callable[[], object]:
    return lambda: bounds.check_text(text[:RECIPE], [], Limits())


def expression(text: str) -> Callable[[], object]:
    """Parsing one, and judging a long caption by it."""
    return lambda: parse(text[:EXPRESSION]).judge(pl.DataFrame({"caption": ["a" * 20_000 + "!"]}))


def path(text: str) -> Callable[[], object]:
    """Admitting a path, and matching a long name with it as the driver does."""

    def match() -> None:
        found = paths.admitted(f"photos/{text}", {"photos": "/data/photos"})
        re.match(glob_translate(found), f"/data/photos/{NAME}")

    return match


COSTLY: dict[str, Callable[[], Any]] = {
    "If-None-Match of spaces": lambda: routing.knows(" " * HEADER, "x"),
    "If-None-Match of quotes": lambda: routing.knows('"' * HEADER, "x"),
    "If-Match of spaces": lambda: asyncio.run(routing.version_of(" " * HEADER)),
    "If-Match of tags": lambda: asyncio.run(routing.version_of('W/"" ' * (HEADER // 5))),
    "an override of openings": lambda: load.ENVIRONMENT.search("${" * (RECIPE // 2)),
    "variables of openings": lambda: bounds._references("${" * (RECIPE // 2)),
    "flow lists": recipe("[" * RECIPE),
    "quotes": recipe("a: '" + "''" * RECIPE),
    "spaces": recipe("a:\n" + " " * RECIPE),
    "blank lines": recipe("a: |\n" + "\n" * RECIPE),
    "variables of signs": lambda: new.variables("vars:\n" + f"  a:{' #' * 240}\n" * 500),
    "nested repetition": expression("regexp_like(caption, '(a+)+$')"),
    "ambiguous repetition": expression("regexp_like(caption, '(a|a|a)*b')"),
    "counted repetition": expression("regexp_like(caption, '(a{1000}){1000}')"),
    "a back reference": expression(r"regexp_like(caption, '(a*)\1b')"),
    "wildcards of like": expression(f"caption like '{'%a' * 4000}'"),
    "open comments": expression("/*" * EXPRESSION),
    "open texts": expression("'" * (EXPRESSION - 1)),
    "stars": path("*a*a*b"),
    "too many stars": path("*a" * 20 + "b"),
    "deep stars": path("**/*a*a*b"),
    "a trillion files": path("{0..999999999999}"),
    "open braces": path("{a" * 1000),
    "passwords in the audit": lambda: audit._plain("://a@" * 100_000),
    "an error of a run": lambda: remedies.remedy("no such: " * 1000),
}


@pytest.mark.parametrize("name", COSTLY)
def test_it_takes_time_in_proportion_to_its_length(name: str) -> None:
    began = time.process_time()
    with suppress(CurateError, InvalidProblem, ValueError):
        COSTLY[name]()
    assert time.process_time() - began < SECONDS


def test_etags_are_read_as_before() -> None:
    assert routing.knows('W/"a", "b"  ,W/"c-1"', "c-1") and routing.knows("*", "x")
    assert not routing.knows('"a" x', "a")
    assert asyncio.run(routing.version_of(' W/"3-0f" ')) == 3
