"""The media of a source's samples, and the file name extensions that select samples; bytes decide what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from curate.codec.media import DEFAULT, MEDIA
from curate.core.contracts import Added, Source
from curate.core.errors import did_you_mean

VIDEO_EXTENSIONS: tuple[str, ...] = (
    "3g2", "3gp", "asf", "avi", "f4v", "flv", "m2ts", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "mts", "ogv", "qt",
    "ts", "vob", "webm", "wmv",
)  # fmt: skip
"""Usual extensions of the containers that are decoded."""
ONLY_IMAGES = (DEFAULT.name,)


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    """In the order of MEDIA, each once."""
    for name in names:
        if name not in MEDIA:
            raise ValueError(f"{name!r} is not a medium; {did_you_mean(name, MEDIA, f'expected {_CHOICES}')}")
    if not names:
        raise ValueError(f"no medium; expected {_CHOICES}")
    return tuple(name for name in MEDIA if name in names)


def _one_alone(names: Any) -> Any:
    """`media: video` is `media: [video]`."""
    return (names,) if isinstance(names, str) else names


def _bare(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("no extension; expected one or more, such as jpg or mp4")
    return tuple(sorted({value.lower().lstrip(".") for value in values}))


_CHOICES = " or ".join(MEDIA)
Media = Annotated[tuple[str, ...], Added(), BeforeValidator(_one_alone), AfterValidator(_known)]
"""Type of the parameter `media`, which by default is ONLY_IMAGES."""
Extensions = Annotated[tuple[str, ...], AfterValidator(_bare)]


def check_used(stage: Source, media: tuple[str, ...], parameters: Mapping[str, str]) -> None:
    """Raises ValueError if a parameter is given that is about another medium; `parameters`: name -> medium."""
    for name, medium in parameters.items():
        if medium not in media and getattr(stage, name) != type(stage).model_fields[name].default:
            raise ValueError(f"{name}: it is about {medium}s, of which this pool has none; add {medium} to `media`")
