"""Base of the stages that ask a model: prompts and endpoints, requests for rows, and columns of answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from curate.caption.answers import read_answer
from curate.caption.chat import OK, REFUSED, TRUNCATED, Completion, EncodedImage, Form, completion_of
from curate.caption.image import encode
from curate.caption.prompt import Prompt, PromptOf, read_prompt
from curate.caption.untrusted.wrap import says_something
from curate.core.contracts import Added, AsyncMap, Client, Location, NoAnswer, Runtime, Sample
from curate.core.endpoints import CHAT, Endpoint, Endpoints, endpoint_of
from curate.core.errors import InputError
from curate.core.hashing import ranks
from curate.kernels.meta import META, field_of

NAME = r"^[a-z][a-z0-9_]*$"
COLUMNS: dict[str, tuple[pa.DataType, dict[str, str]]] = {
    "outcome": (pa.string(), {"values": "ok, truncated (at the token limit), refused, empty"}),
    "model": (pa.string(), {"of": "model that the endpoint reported"}),
    "fingerprint": (pa.string(), {"of": "system_fingerprint that the endpoint reported"}),
    "prompt": (pa.string(), {"of": "name and version of the prompt"}),
    "endpoint": (pa.string(), {"of": "name of the endpoint"}),
    "seed": (pa.int64(), {"of": "seed of the sampling that was requested"}),
    "prompt_tokens": (pa.int32(), {"units": "tokens, as the endpoint reported"}),
    "completion_tokens": (pa.int32(), {"units": "tokens, as the endpoint reported"}),
}
"""Columns beside the text: suffix -> type and field metadata."""


class Variant(BaseModel):
    """One of several prompts and endpoints, and how many of the rows get it, relative to the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: PromptOf
    endpoint: str | None = None
    """null: the stage's endpoint."""
    share: float = Field(1.0, gt=0, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Way:
    """A prompt and the endpoint that gets it."""

    prompt: Prompt
    endpoint: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model. Equal ones are sent once."""

    way: int
    """Place of its prompt among the stage's `ways`."""
    text: str
    image: EncodedImage | None
    seed: int


@dataclass(frozen=True)
class Answer:
    """An answer, and what it took."""

    completion: Completion
    value: Any = None
    """The JSON value, for a prompt with a schema."""


class Asking(AsyncMap):
    """Base of the stages that ask a model for one answer per sample."""

    usual_prompt: ClassVar[str] = ""
    """Name of the prompt that `prompt` defaults to."""

    endpoints: Annotated[Endpoints, Runtime(), Location("endpoints")] = Field(
        description="file of endpoints: its path or URL, which is read when the recipe is loaded"
    )
    endpoint: Annotated[str | None, Runtime()] = Field(
        None,
        description="name of the endpoint to ask; null: the only one of the file. Its model enters the fingerprint",
    )
    prompt: PromptOf = Field(description="an included prompt by name, or the path or URL of a file")
    variants: list[Variant] = Field(
        default_factory=list,
        description="several prompts and endpoints in place of one: a list of {prompt, endpoint, share}; "
        "hash(seed, key) chooses for each row",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="label -> column (or meta.<field>) for the prompt's context, where its own columns differ",
    )
    output: str = Field("generated", pattern=NAME, description="name of the column of texts; others begin with it")
    thoughts: Annotated[Literal["remove", "keep"], Added()] = Field(
        "remove",
        description="what a model thinks before its answer, between marks such as <think>; keep: texts are unchanged, "
        "for answers that rightly have such marks",
    )
    seed: int = Field(0, description="seed of the choice among variants and of the sampling; another asks again")
    image_side: int = Field(512, ge=1, description="pixels of the longer side above which an image is reduced")
    image_least_side: Annotated[int, Added()] = Field(
        28, ge=1, description="pixels of the shorter side below which an image is reduced less, or padded with white"
    )
    image_quality: int = Field(90, ge=1, le=100, description="JPEG quality of the image that is sent")

    _forms: list[Form] = PrivateAttr()

    # --- what it asks ---

    def ways(self) -> tuple[Way, ...]:
        """The prompts, each with its endpoint."""
        if not self.variants:
            return (Way(self.prompt, self._endpoint(self.endpoint)),)
        return tuple(Way(one.prompt, self._endpoint(one.endpoint or self.endpoint), one.share) for one in self.variants)

    def _endpoint(self, name: str | None) -> str:
        """The name of an endpoint that exists. Raises ValueError."""
        if name is None and len(self.endpoints) == 1:
            return next(iter(self.endpoints))
        try:
            if name is None:
                known = ", ".join(sorted(self.endpoints)) or "none"
                raise InputError(f"endpoint: missing; name one of the file's endpoints (there are: {known})")
            endpoint_of(self.endpoints, name)
        except InputError as error:
            raise ValueError(str(error)) from None
        return name

    @model_validator(mode="after")
    def _check(self) -> Asking:
        if self.variants and self.prompt != read_prompt(self.usual_prompt):
            raise ValueError("variants: give either them or `prompt`")
        labels: dict[str, None] = {}
        for way in self.ways():
            labels |= dict.fromkeys(way.prompt.context)
            problem = self.problem_of(way.prompt)
            if problem:
                raise ValueError(f"{'variants' if self.variants else 'prompt'}: {way.prompt.name}: {problem}")
        unknown = next((label for label in self.columns if label not in labels), None)
        if unknown is not None:
            known = ", ".join(labels) or "none"
            raise ValueError(f"columns: the prompt has no context {unknown!r}; it has: {known}")
        return self

    def problem_of(self, prompt: Prompt) -> str:
        """Why the stage cannot use a prompt; empty if it can."""
        if prompt.image and not self.pixels:
            return f"needs images, which {self.op} does not send; use caption.generate"
        if prompt.schema_of_answer():
            return f"has a JSON schema, but {self.op} writes texts; use caption.ask"
        return ""

    def asks(self) -> Mapping[str, Endpoint]:
        return {way.endpoint: self.endpoints[way.endpoint] for way in self.ways()}

    def parameters(self) -> dict[str, Any]:
        found = super().parameters()
        prompts = [found.pop("prompt"), *(one["prompt"] for one in found["variants"])]
        for prompt in prompts:
            del prompt["description"]
        variants = [{"prompt": one["prompt"], "share": one["share"]} for one in found["variants"]]
        return found | ({"variants": variants} if variants else {"prompt": prompts[0]})

    def identity(self) -> dict[str, Any]:
        return {"models": [self.endpoints[way.endpoint].model for way in self.ways()]}

    # --- columns ---

    def column_of(self, label: str, prompt: Prompt) -> str:
        """The column, or meta.<field>, of a label of the prompt's context."""
        return self.columns.get(label, prompt.context[label])

    def meta_fields(self) -> tuple[str, ...]:
        return tuple(self.column_of(label, way.prompt) for way in self.ways() for label in way.prompt.context)

    def _read(self) -> dict[str, str]:
        """Column that is read -> the prompt that reads it, and as what."""
        found: dict[str, str] = {"key": "the choice among variants"} if self.variants else {}
        for way in self.ways():
            for label in way.prompt.context:
                name = self.column_of(label, way.prompt)
                found.setdefault("meta" if name.startswith(META) else name, f"{label!r} of prompt {way.prompt.name}")
        return found

    def reads(self) -> tuple[str, ...]:
        return tuple(self._read())

    def use_of(self, column: str) -> str:
        return self._read().get(column, "")

    def standard(self) -> pa.Schema:
        """The text and the columns about it."""
        text = pa.field(self.output, pa.string(), metadata={"of": "the model's answer; null for any other outcome"})
        others = [pa.field(f"{self.output}_{name}", kind, metadata=about) for name, (kind, about) in COLUMNS.items()]
        return pa.schema([text, *others])

    def schema(self) -> pa.Schema:
        return self.standard()

    # --- requests ---

    def setup(self, artifacts: Mapping[str, Any]) -> None:
        self._forms = [Form(way.prompt, self.endpoints[way.endpoint]) for way in self.ways()]

    def prepare(self, sample: Sample) -> EncodedImage:
        return encode(sample.image(), self.image_side, self.image_quality, self.image_least_side)

    def request(self, row: Mapping[str, Any]) -> Any:
        return self.asked(row, self.way_of(row))

    def way_of(self, row: Mapping[str, Any]) -> int:
        """The variant of a row: hash(seed, key)."""
        return choice(self.seed, row["key"], [one.share for one in self.variants]) if self.variants else 0

    def asked(self, row: Mapping[str, Any], way: int = 0, attempt: int = 0) -> Asked | None:
        """The request for a row; None if there is nothing to ask about. Another `attempt` has another seed."""
        prompt = self.ways()[way].prompt
        values = self.context_of(row, prompt)
        if not self.answerable(values, prompt):
            return None
        seed = self.seed if not attempt else f"{self.seed}/{attempt}"
        text = prompt.user_text(values, str(self.seed))
        image = row["image"] if prompt.image else None
        hashed = hashlib.blake2b(f"{seed}\0{way}\0{text}".encode("utf-8", "replace"), digest_size=8)
        hashed.update(image.digest if image else b"")
        return Asked(way, text, image, int.from_bytes(hashed.digest(), "big") >> 33)

    def context_of(self, row: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
        """Label -> value; labels without a value are left out."""
        values: dict[str, Any] = {}
        for label in prompt.context:
            name = self.column_of(label, prompt)
            value = field_of(row["meta"], name) if name.startswith(META) else row[name]
            if says_something(value):
                values[label] = value
        return values

    def answerable(self, values: Mapping[str, Any], prompt: Prompt) -> bool:
        """Whether there is anything to ask about, given the context."""
        return prompt.image or bool(values)

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        return self.columns_of(request, await self.reply(request, client))

    def body_of(self, asked: Asked, follow: Sequence[Mapping[str, str]] = ()) -> bytes:
        """The body of a request, with messages after it."""
        return self._forms[asked.way].body(asked.text, asked.image, asked.seed, follow)

    async def reply(self, asked: Asked, client: Client) -> Answer:
        """Send a request; twice, if the first answer does not fit the prompt's schema. Raises NoAnswer."""
        form, name = self._forms[asked.way], self.ways()[asked.way].endpoint
        self._check_size(asked.image, name)
        first = await self._post(client, name, self.body_of(asked))
        if form.schema is None or first.outcome not in (OK, TRUNCATED):
            return Answer(first)
        value, problem = read_answer(first.text or "", form.schema, repair=first.outcome == OK)
        if not problem:
            return Answer(first, value)
        if first.outcome == TRUNCATED:  # the limit of tokens would end the next answer too
            return Answer(without_text(first))
        again = form.again(first.text or "", problem)
        second = await self._post(client, name, self.body_of(asked, again))
        value, problem = read_answer(second.text or "", form.schema)
        if problem:
            raise NoAnswer("bad_schema", f"{problem}, also when asked again")
        return Answer(with_tokens_of(second, first), value)

    def _check_size(self, image: EncodedImage | None, name: str) -> None:
        most = self.endpoints[name].max_image_bytes
        if image is not None and most is not None and image.bytes > most:
            remedy = "lower image_side or image_quality"
            raise NoAnswer(
                "image_too_large",
                f"{image.bytes:,} bytes, endpoint {name} accepts {most:,} (max_image_bytes); {remedy}",
            )

    async def _post(self, client: Client, name: str, body: bytes) -> Completion:
        try:
            found = await client.post(CHAT, body, endpoint=name)
        except NoAnswer as error:
            if error.reason != REFUSED:
                raise
            return Completion(None, REFUSED, None, None, None, None)
        return completion_of(found, thoughts=self.thoughts == "keep")

    def columns_of(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """The standard columns."""
        found, way = answer.completion, self.ways()[asked.way]
        text = found.text if answer.value is None else json.dumps(answer.value, ensure_ascii=False, sort_keys=True)
        about = {
            "outcome": found.outcome,
            "model": found.model,
            "fingerprint": found.fingerprint,
            "prompt": way.prompt.label,
            "endpoint": way.endpoint,
            "seed": asked.seed,
            "prompt_tokens": found.prompt_tokens,
            "completion_tokens": found.completion_tokens,
        }
        return {self.output: text} | {f"{self.output}_{name}": value for name, value in about.items()}


def choice(seed: int, key: str, shares: Sequence[float]) -> int:
    """A place among shares, by hash(seed, key)."""
    left = int(ranks(seed, [key], VARIANT)[0]) / 2.0**64 * sum(shares)
    for place, share in enumerate(shares):
        left -= share
        if left < 0:
            return place
    return len(shares) - 1


VARIANT = 0x766172
"""Salt of the choice: other choices by the same seed and key are independent of it."""


def without_text(found: Completion) -> Completion:
    return Completion(None, found.outcome, found.model, found.fingerprint, found.prompt_tokens, found.completion_tokens)


def with_tokens_of(found: Completion, other: Completion) -> Completion:
    """A completion with the tokens of both, where both are reported."""
    pairs = (
        (found.prompt_tokens, other.prompt_tokens),
        (found.completion_tokens, other.completion_tokens),
    )
    tokens = [None if None in pair else sum(pair) for pair in pairs]  # type: ignore[arg-type]
    return Completion(found.text, found.outcome, found.model, found.fingerprint, *tokens)
