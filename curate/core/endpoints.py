"""Endpoints: OpenAI-compatible servers that answer requests, by name, as a file describes them.

    NAME:
      base_urls: [http://node-1:8000/v1, http://node-2:8000/v1]
      model: llava-next
      key: env:LLAVA_KEY                 # a reference; the workers read the value
      requests_per_minute: 6000          # of all workers of a run
      tokens_per_minute: 2000000
      price: {input: 0.15, output: 0.60} # dollars per million tokens
      schema: true                       # it enforces JSON schemas

The model decides the answers, so it enters a stage's fingerprint. Everything else says where and how fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

import fsspec
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from curate.core.errors import InputError, did_you_mean
from curate.core.secrets import Secret

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SECRET_ARGUMENT = re.compile(r"--(api-key|hf-token)(=.*)?", re.DOTALL)
CHAT = "/chat/completions"
"""Path below an endpoint's base URL."""
PER_TOKENS = 1e6
"""Prices are for this many tokens."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_by_name=True)


class Price(_Part):
    """Dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Dollars for some tokens."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / PER_TOKENS


class Launch(_Part):
    """A server that each worker starts beside itself and asks over loopback."""

    server: Literal["vllm", "transformers"]
    environment: str | None = None
    """Folder of the Python environment with the server, on every worker's machine. None: the one that runs curate."""
    gpus: float = Field(1, ge=0)
    """GPUs of each server. 0: it runs on the CPU."""
    arguments: tuple[str, ...] = ()
    """Further arguments of its command line."""
    startup_seconds: float = Field(900.0, gt=0)
    """How long it may take until it is healthy."""

    @field_validator("arguments")
    @classmethod
    def _without_secrets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for argument in value:
            if found := SECRET_ARGUMENT.fullmatch(argument):
                raise ValueError(
                    f"arguments: --{found[1]} would be visible in the list of processes; leave it out: the server "
                    "answers its own machine only, and models that need a token are downloaded before"
                )
        return value


class Endpoint(_Part):
    """One OpenAI-compatible endpoint: several servers with the same model."""

    base_urls: tuple[str, ...] = ()
    """URLs up to and including the version: http://HOST:PORT/v1."""
    model: str = Field(min_length=1)
    key: Secret | None = None
    requests_per_minute: float | None = Field(None, gt=0)
    """Limit over all workers of a run."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Limit of tokens, of requests and answers, over all workers of a run."""
    price: Price | None = None
    """Dollars per million tokens; in a file also a price list, model -> price."""
    enforces_schema: bool = Field(False, alias="schema")
    """Whether it enforces a JSON schema (`response_format`). If not, the schema is part of the prompt. Either way,
    answers are checked."""
    max_in_flight: int | None = Field(None, ge=1)
    """Most requests in flight per worker; None: the stage's. The number in use adapts below it."""
    timeout_seconds: float | None = Field(None, gt=0)
    """Limit of one attempt; None: the stage's."""
    patience_seconds: float = Field(600.0, ge=0)
    """How long all of its URLs may be down before the run ends."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Field of a request with the most tokens of its answer. Most servers know the first, OpenAI's reasoning models
    only the second."""
    seed: bool = True
    """Whether requests have a seed, which some servers do not accept."""
    max_image_bytes: int | None = Field(None, ge=1)
    """The largest encoded image that it accepts."""
    launch: Launch | None = None
    """Start the server instead of asking one that runs; excludes `base_urls`."""

    @field_validator("base_urls", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("base_urls")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            if parts.username or parts.password:
                raise ValueError("base_urls: a URL contains credentials; give them as `key: env:NAME`")
            known = parts.scheme in ("http", "https") and parts.hostname and _has_valid_port(parts)
            if not known or parts.query or parts.fragment or parts.path.rstrip("/").endswith(CHAT):
                raise ValueError(f"base_urls: {url!r} is not a base URL; expected http://HOST:PORT/v1")
        return tuple(url.rstrip("/") for url in value)

    @model_validator(mode="before")
    @classmethod
    def _from_price_list(cls, value: Any) -> Any:
        """`price` may be a price list, from which the model's is taken."""
        prices = value.get("price") if isinstance(value, Mapping) else None
        if isinstance(prices, Mapping) and prices and not {"input", "output"} & prices.keys():
            model = str(value.get("model"))
            if model not in prices:
                remedy = did_you_mean(model, map(str, prices), "add it")
                raise ValueError(f"price: the price list has no model {model!r}; {remedy}")
            return {**value, "price": prices[model]}
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Endpoint:
        if bool(self.base_urls) == (self.launch is not None):
            raise ValueError("expected either base_urls, or launch to start a server")
        return self


def _read(value: Any) -> Any:
    """A mapping of endpoints as it is; a path or URL is read."""
    if not isinstance(value, str):
        return value
    try:
        with fsspec.open(value, "rt", encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(f"{value}: cannot read the file of endpoints ({reason})") from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        raise ValueError(f"{value}:{line}: not valid YAML; expected NAME: {{base_urls: [...], model: ...}}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{value}: expected a mapping NAME: {{base_urls: [...], model: ...}}")
    for name, given in found.items():
        if not NAME.fullmatch(str(name)):
            raise ValueError(f"{value}: {name!r} is not a name; expected letters, digits, . - and _")
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{value}: {name}: expected a mapping {{base_urls: [...], model: ...}}, not {_kind(given)}"
            )
        try:
            Endpoint.model_validate(given)
        except ValidationError as error:
            raise ValueError(f"{value}: {name}: {_problem(error)}") from None
    return {str(name): given for name, given in found.items()}


def _kind(value: Any) -> str:
    """A value's type: the value could be a key, or a URL with a password."""
    return "nothing" if value is None else "a list" if isinstance(value, list) else "a single value"


def _problem(error: ValidationError) -> str:
    """The first problem. An unknown key comes before a missing one, because a typo causes both. Values are not shown:
    one could be a key."""
    problems = error.errors(include_input=False, include_url=False)
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    place = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ").removeprefix(f"{place}: ")
    match first["type"]:
        case "extra_forbidden":
            part = _PARTS.get(".".join(map(str, first["loc"][:-1])), Endpoint)
            known = [info.alias or name for name, info in part.model_fields.items()]
            text = "unknown key; " + did_you_mean(str(first["loc"][-1]), known, f"it may have {', '.join(known)}")
        case "missing":
            text = "missing; add it"
        case "model_type":
            text = f"expected a mapping with {', '.join(_PARTS[place].model_fields)}"
        case "value_error":
            pass
        case _:
            text = text[:1].lower() + text[1:]
    return f"{place}: {text}" if place else text


_PARTS: dict[str, type[_Part]] = {"price": Price, "launch": Launch}


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


Endpoints = Annotated[dict[str, Endpoint], BeforeValidator(_read, json_schema_input_type=str | dict[str, Any])]
"""A parameter with endpoints by name: the path or URL of their file, which is read when the recipe is loaded, or a
mapping."""


def endpoint_of(endpoints: Mapping[str, Endpoint], name: str) -> Endpoint:
    """The endpoint of a name. Raises InputError."""
    if name not in endpoints:
        known = ", ".join(sorted(endpoints)) or "none"
        raise InputError(
            f"endpoint: no endpoint is named {name!r} (there are: {known}); name one, or add it to the file"
        )
    return endpoints[name]


def read_endpoints(path: str) -> dict[str, Endpoint]:
    """Endpoints of a file. Raises InputError."""
    try:
        return {name: Endpoint.model_validate(given) for name, given in _read(path).items()}
    except ValueError as error:
        raise InputError(f"endpoints: {error}") from None
