"""A prompt tried on a few images or texts, through the stage and the client of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curate.api.stages import make_stage
from curate.caption.asking import Asked, Asking
from curate.caption.prompt import Prompt, read_prompt
from curate.codec.images import decode
from curate.core.contracts import Sample
from curate.core.endpoints import Endpoint, read_endpoints
from curate.core.errors import InputError, Reject, did_you_mean
from curate.core.secrets import redact
from curate.engine.requests.client import Answered, Requester
from curate.engine.requests.preflight import problems


@dataclass
class Tried:
    """A request and what came of it."""

    name: str
    """The image; empty if the prompt takes none."""
    image: str
    """Width, height and bytes of the image that is sent."""
    empty: tuple[str, ...]
    """Labels of the prompt's context that were not given: null, as for a row without these texts."""
    request: dict[str, Any]
    """The body, with the image shortened."""
    answer: str | None
    """The text, or JSON."""
    about: dict[str, Any]
    """The other columns of a run, without the name of the output before them."""
    problem: str
    """Why there is no answer, if the row would be in error."""
    seconds: float
    dollars: float | None
    """None: the endpoint has no price, or reported no tokens."""


def try_prompt(
    prompt: str,
    images: Sequence[str],
    endpoints: str,
    endpoint: str | None = None,
    context: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Iterator[Tried]:
    """Ask with a prompt about each image, or once about the context. Raises CurateError."""
    try:
        asked = read_prompt(prompt)
    except ValueError as error:
        raise InputError(f"{prompt}: {error}") from None
    _check(asked, images, context or {})
    stage = _stage(asked, endpoints, endpoint, seed)
    requester = Requester(stage)
    try:
        for name in images or [""]:
            yield _try(stage, requester, name, context or {})
    finally:
        requester.close()


def _check(prompt: Prompt, images: Sequence[str], context: Mapping[str, str]) -> None:
    if prompt.image and not images:
        raise InputError(f"{prompt.name}: the prompt needs an image; give one or several files")
    if images and not prompt.image:
        raise InputError(f"{prompt.name}: the prompt takes no image; give its context by --context LABEL=TEXT instead")
    for label in context:
        if label not in prompt.context:
            remedy = did_you_mean(label, prompt.context, f"it has {', '.join(prompt.context) or 'none'}")
            raise InputError(f"--context {label}: the prompt has no context of this name; {remedy}")
    if not images and not context:
        raise InputError(f"--context is missing; {prompt.name} takes {', '.join(prompt.context)}: give LABEL=TEXT")


def _stage(prompt: Prompt, endpoints: str, endpoint: str | None, seed: int) -> Asking:
    """The stage for a prompt; its columns are the labels of the context."""
    op = "ask" if prompt.schema_of_answer() else "generate" if prompt.image else "summarise"
    made: Asking = make_stage(
        f"caption.{op}",
        prompt=prompt,
        endpoints=read_endpoints(endpoints),
        endpoint=endpoint,
        columns={label: label for label in prompt.context},
        output="text",
        seed=seed,
        attempts=1,
    )
    for problem in (secret.problem() for secret in made.secrets().values()):
        if problem:
            raise InputError(problem)
    for problem in problems(made):
        raise InputError(problem)
    made.setup({})
    return made


def _try(stage: Asking, requester: Requester, name: str, context: Mapping[str, str]) -> Tried:
    row: dict[str, Any] = {**dict.fromkeys(stage.prompt.context), **context}
    if name:
        try:
            row["image"] = stage.prepare(Sample(Path(name).read_bytes(), decode))
        except OSError as error:
            raise InputError(f"{name}: cannot read the image ({error.strerror})") from None
        except Reject as reject:
            raise InputError(f"{name}: {reject}") from None
    asked = stage.request(row)
    assert asked is not None
    began = time.perf_counter()
    answered = requester.send(asked).result()
    seconds = time.perf_counter() - began
    if answered.fatal is not None:
        raise answered.fatal
    empty = tuple(label for label in stage.prompt.context if label not in context)
    return _tried(stage, asked, answered, name, empty, seconds)


def _tried(stage: Asking, asked: Asked, answered: Answered, name: str, empty: tuple[str, ...], seconds: float) -> Tried:
    columns, problem = answered.columns or {}, ""
    if answered.columns is None:
        problem = redact(answered.message or str(answered.reason), stage.secrets().values())
    about = {name.removeprefix(f"{stage.output}_"): one for name, one in columns.items() if name != stage.output}
    answer, image = columns.get(stage.output), asked.image
    size = f"{image.width} x {image.height}, {image.bytes:,} bytes" if image else ""
    endpoint = stage.endpoints[stage.ways()[asked.way].endpoint]
    body, cost = shown(stage.body_of(asked)), _dollars(endpoint, about)
    return Tried(name, size, empty, body, answer, about, problem, seconds, cost)


def _dollars(endpoint: Endpoint, about: Mapping[str, Any]) -> float | None:
    tokens = about.get("prompt_tokens"), about.get("completion_tokens")
    if endpoint.price is None or tokens[0] is None or tokens[1] is None:
        return None
    return endpoint.price.of(tokens[0], tokens[1])


def shown(body: bytes) -> dict[str, Any]:
    """A request's body with its image shortened."""
    found: dict[str, Any] = json.loads(body)
    for message in found["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image_url":
                url = part["image_url"]["url"]
                part["image_url"]["url"] = f"{url[:40]}… ({len(url):,} characters)"
    return found
