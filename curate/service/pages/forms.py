"""Forms: what was typed, and what a form leads to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from curate.core.errors import CurateError
from curate.service.pages.kit import Visit, link, part
from curate.service.problems import InvalidProblem, NotLoggedInProblem, TooManyProblem
from curate.service.rest.routing import ByWord

Made = TypeVar("Made")


class Pages(ByWord):
    """Routes of pages and of their forms."""

    def form(
        self, path: str, to: str, again: Callable[..., Response], said: str = "saved", typed: bool = False
    ) -> Callable[[Callable[..., Response | None]], Callable[..., Response]]:
        """A form that is sent to `path`. Afterwards its reader gets the page `to`, which says `said`, or the answer of
        the function if it has one; after a problem the page of `again`, with the problem. Both get the parameters of
        the address that `to` names; `again` also gets what was typed, if it shows that."""

        def decorated(function: Callable[..., Response | None]) -> Callable[..., Response]:
            @wraps(function)
            def called(visit: Visit, **values: Any) -> Response:
                names = {name: value for name, value in values.items() if f"{{{name}}}" in to}
                try:
                    answer = function(visit, **values)
                except NotLoggedInProblem:
                    raise
                except CurateError as problem:
                    given = {"typed": dict(values["form"])} if typed else {}
                    return again(visit, **names, problem=problem, **given)
                return answer or done(to.format(**{name: part(value) for name, value in names.items()}), said)

            self.post(path, response_model=None)(called)
            return called

        return decorated


async def _form(request: Request) -> FormData:
    return await request.form()


Form = Annotated[FormData, Depends(_form)]


def words(form: FormData, name: str) -> str:
    """A field of a form without spaces around it; "" if it is absent."""
    return str(form.get(name) or "").strip()


def real(form: FormData, name: str) -> float | None:
    """A number; None if the field is empty."""
    value = words(form, name)
    if not value:
        return None
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidProblem(f"{name}: {value[:50]!r} is not a number; give one, or leave the field empty")
    return found


def whole(form: FormData, name: str) -> int | None:
    """An integer; None if the field is empty."""
    value = real(form, name)
    if value is not None and value != int(value):
        raise InvalidProblem(f"{name}: {value:g} is not an integer; give one, or leave the field empty")
    return None if value is None else int(value)


def made(shape: Callable[..., Made], **fields: Any) -> Made:
    """A body made from a form. Raises InvalidProblem in the words of its first mistake."""
    try:
        return shape(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidProblem(f"{name or 'form'}: {first['msg']} (given: {str(first.get('input'))[:100]!r})") from None


def done(path: str, said: str = "", **query: str | None) -> Response:
    """After a form that succeeded: the page again, so that reloading it repeats nothing."""
    return RedirectResponse(link(path, **query, said=said), 303)


async def in_turn(visit: Visit, action: Callable[[], Response], again: Callable[..., Response]) -> Response:
    """What a form led to that checks a recipe, once it is the user's turn at the sandbox; otherwise its page again."""
    try:
        async with visit.service.limiter.checks.turn(visit.who.user_id):
            return await run_in_threadpool(action)
    except TooManyProblem as problem:
        return await run_in_threadpool(again, problem=problem)
