"""Bodies of requests have the types that the description says: nothing is taken for something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from curate.service import app
from curate.service.people.quotas import NewQuota
from curate.service.shapes import Order
from tests.service.rest.site import Site

SHAPES = app.PARTS  # imported, so that all bodies are known
WRONG: dict[type, tuple[Any, ...]] = {bool: (0, 1, "true"), int: (False, "5", 5.5), float: (True, "5"), str: (5, True)}


def _cases() -> Iterator[tuple[type[Order], str, Any]]:
    todo = list(Order.__subclasses__())
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        for name, info in cls.model_fields.items():
            types = {info.annotation, *get_args(info.annotation)}
            for kind in types & WRONG.keys():
                yield from ((cls, name, wrong) for wrong in WRONG[kind] if type(wrong) not in types - {kind})


@pytest.mark.parametrize(("cls", "name", "wrong"), list(_cases()))
def test_another_type_is_an_error(cls: type[Order], name: str, wrong: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        cls.model_validate({name: wrong})
    assert (name,) in [error["loc"] for error in raised.value.errors()]


def test_a_whole_number_is_an_integer() -> None:
    """As in JSON Schema, and as some clients write them."""
    assert NewQuota.model_validate({"running": 5.0}).running == 5


def test_a_zero_and_a_false_are_different(site: Site) -> None:
    for method, path, body in (("POST", "workspaces/main/gc", {"delete": 0}), ("PUT", "quotas", {"running": False})):
        answer = site.ask(method, path, site.people.admin, json=body)
        assert answer.status_code == 422 and next(iter(body)) in answer.json()["detail"]
