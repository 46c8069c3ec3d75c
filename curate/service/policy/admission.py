"""Which values of a stage lead out of the recipe, and whether the rules admit them.

Values are judged as they are written, before a stage is built: building one already opens files of endpoints and
prompts. Every parameter's type says what it is (`core.contracts.Location`, `Secret`, `Path`); a test keeps the list of
all parameters of all ops, so that none is added without a decision.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from curate.core.contracts import Location, Stage
from curate.core.errors import CurateError, RecipeError
from curate.core.recipe import registry
from curate.core.secrets import Secret
from curate.service.policy import paths
from curate.service.policy.rules import Rules
from curate.service.problems import PolicyProblem

FOREIGN = Location("path")
_LEADS_OUT = re.compile(r"[/\\]|^~|^[A-Za-z][A-Za-z0-9+.-]*:|\.\.")
"""Texts of a stage from outside of the package that may lead somewhere, because its parameters have no marks."""
Kind = Location | type[Secret] | None


@dataclass
class Admission:
    """The stages of a recipe with registered names replaced, and what is not admitted."""

    rules: Rules
    place: Callable[[str, tuple[str, ...]], str]
    """(stage, place in it) -> `file:line` in messages."""
    problems: list[CurateError] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """Stages with problems."""
    files: int = 0
    """That the paths of all stages stand for."""

    def stages(self, stages: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._stage(name, values) for name, values in stages.items()}

    def _stage(self, name: str, values: Any) -> Any:
        op = values.get("op") if isinstance(values, dict) else None
        if not isinstance(op, str):
            return values  # which building explains
        target = self._op(name, op)
        if target is None:
            return values
        try:
            cls = registry.resolve(target)
        except CurateError as error:
            self._reject(name, ("op",), str(error).removeprefix("op: "), RecipeError)
            return values
        admitted = dict(values, op=target)
        known = cls.model_fields
        for key, value in values.items():
            if key in known:
                part = _Part(self, name, (key,), foreign=target not in registry.OPS)
                admitted[key] = part.admitted(known[key].annotation, known[key].metadata, value)
        return admitted

    def _op(self, stage: str, op: str) -> str | None:
        """The op to build; None if it may not be used."""
        registered = self.rules.value("op", op)
        if registered is not None:
            return registered
        if ":" in op:
            text = f"{op!r} is a class that is not registered; use an op of `curate ops`, or ask an admin to add it"
            self._reject(stage, ("op",), f"{text} (registered: {self.rules.known('op')})")
            return None
        return op

    def _reject(self, stage: str, path: tuple[str, ...], text: str, kind: type[CurateError] = PolicyProblem) -> None:
        where = ".".join((stage, *path))
        self.rejected.append(stage)
        self.problems.append(kind(f"{self.place(stage, path)}: {where}: {text}"))


@dataclass(frozen=True)
class _Part:
    """A value inside a stage."""

    whole: Admission
    stage: str
    path: tuple[str, ...]
    foreign: bool

    def admitted(self, annotation: Any, metadata: Any, value: Any) -> Any:
        kind = kind_of(annotation, metadata)
        if kind is not None:
            return self._judged(kind, value)
        model = _model(annotation)
        if isinstance(value, dict):
            return {key: self._inside(annotation, model, key, item) for key, item in value.items()}
        if isinstance(value, list):
            item_type = _item(annotation, list)
            return [self._at(str(n)).admitted(item_type, (), item) for n, item in enumerate(value)]
        if isinstance(value, str) and (inner := _nested(annotation)) is not None:
            return self._judged(inner, value)  # a validator may take it for a list of one
        if self.foreign and isinstance(value, str) and _LEADS_OUT.search(value):
            return self._judged(FOREIGN, value)
        return value

    def _inside(self, annotation: Any, model: type[BaseModel] | None, key: Any, item: Any) -> Any:
        if self.foreign and isinstance(key, str) and _LEADS_OUT.search(key):
            self._fail(f"{key!r}: a key that looks like a path; ask an admin to register the file")
        part = self._at(str(key))
        if model is None:
            return part.admitted(_item(annotation, dict), (), item)
        info = next((info for name, info in model.model_fields.items() if key in (name, info.alias)), None)
        return part.admitted(info.annotation, info.metadata, item) if info else part.admitted(Any, (), item)

    def _at(self, key: str) -> _Part:
        return _Part(self.whole, self.stage, (*self.path, key), self.foreign)

    def _judged(self, kind: Location | type[Secret], value: Any) -> Any:
        """The value that the job gets. None and empty lists and mappings name nothing."""
        if value is None or value in ([], {}):
            return value
        if isinstance(value, list):
            return [self._at(str(n))._judged(kind, item) for n, item in enumerate(value)]
        if not isinstance(value, str):
            shown = "a mapping" if isinstance(value, dict) else repr(value)
            self._fail(f"{shown} is not allowed here; expected the name of something registered ({self._known(kind)})")
            return value
        return self._text(kind, value)

    def _text(self, kind: Location | type[Secret], text: str) -> str:
        rules = self.whole.rules
        if not isinstance(kind, Location):
            found = rules.value("secret", text)
            if found is None:  # without the value, which may be the secret itself
                self._fail(f"a secret that is not registered; expected the name of one ({self._known(kind)})")
            return found or text
        found = rules.value(REGISTERED[kind.kind], text)
        if found is not None:
            return found
        if kind.included is not None and kind.included(text):
            return text
        if kind.kind != "path":
            self._fail(f"{text!r}: {EXPECTED[kind.kind]}; it may be registered by an admin ({self._known(kind)})")
            return text
        try:
            found = paths.admitted(text, rules.names("root"))
        except paths.OutsideError as error:
            self._fail(f"{text!r} {error}; give a path below one of the workspace's roots ({rules.known('root')})")
            return text
        self.whole.files += paths.files(found)
        if self.whole.files > paths.MOST_FILES:
            self._fail(f"the recipe's paths stand for more than {paths.MOST_FILES:,} files; give their folder")
        return found

    def _known(self, kind: Location | type[Secret]) -> str:
        return f"there are: {self.whole.rules.known(REGISTERED[kind.kind] if isinstance(kind, Location) else 'secret')}"

    def _fail(self, text: str) -> None:
        self.whole._reject(self.stage, self.path, text)


REGISTERED = {
    "path": "file",
    "file": "file",
    "prompt": "file",
    "endpoints": "endpoints",
    "encoder": "encoder",
    "proxy": "proxy",
    "network": "network",
}
"""Kind of a location -> kind of the registrations that may stand for it. Paths may also be below roots."""
EXPECTED = {
    "file": "expected the name of a registered file, since users may write below roots",
    "prompt": "expected an included prompt or a registered file",
    "endpoints": "expected the name of registered endpoints",
    "encoder": "expected tiny, descriptor, timm:NAME, open_clip:NAME/TAG or a registered encoder, since others read "
    "local files or other repositories",
    "proxy": "expected a registered proxy",
    "network": "expected a registered network",
}


# --- types ------------------------------------------------------------------------------------------------------------


def kind_of(annotation: Any, metadata: Any = ()) -> Kind:
    """What a value of a type leads to; None if it leads nowhere itself. Containers and models are looked into by their
    values. A union leads wherever one of its types does."""
    for item in metadata:
        if isinstance(item, Location):
            return item
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return next((kind for part in arguments if (kind := kind_of(part)) is not None), None)
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return FOREIGN
    if isinstance(annotation, type) and issubclass(annotation, Secret):
        return Secret
    return None


def options(annotation: Any) -> Iterator[Any]:
    """The types of a union, without `Annotated`."""
    if get_origin(annotation) is Annotated:
        yield from options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from options(part)
    else:
        yield annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    found = (one for one in options(annotation) if isinstance(one, type) and issubclass(one, BaseModel))
    return next(found, None)


def _item(annotation: Any, container: type) -> Any:
    """Type of the items of a list or tuple, or of the values of a mapping. A container of another form than the type
    has could be converted by a validator, so its items are judged by any kind inside the type."""
    for one in options(annotation):
        arguments = [part for part in get_args(one) if part is not Ellipsis]
        mapping = get_origin(one) is not None and issubclass(get_origin(one), Mapping)
        if arguments and mapping == (container is dict):
            return Union[tuple(arguments[1:] if mapping else arguments)]  # noqa: UP007 - made at run time
    inner = _nested(annotation)
    return Any if inner is None else Annotated[str, inner] if isinstance(inner, Location) else inner


def _nested(annotation: Any) -> Kind:
    """The first kind of a value anywhere inside a type."""
    kinds = (kind_of(part, metadata) for _, part, metadata in _below("", annotation, ()))
    return next((kind for kind in kinds if kind is not None), None)


def parameters(cls: type[Stage]) -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, type, metadata) of a stage's parameters, with those of models inside."""
    for name, info in cls.model_fields.items():
        yield from _below(name, info.annotation, info.metadata)


def _below(name: str, annotation: Any, metadata: Any) -> Iterator[tuple[str, Any, Any]]:
    yield name, annotation, metadata
    if kind_of(annotation, metadata) is not None:
        return
    for one in options(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            for inner, info in one.model_fields.items():
                yield from _below(f"{name}.{inner}", info.annotation, info.metadata)
        for part in get_args(one) if get_origin(one) is not Literal else ():
            if part is not Ellipsis:
                yield from _below(f"{name}[]", part, ())
