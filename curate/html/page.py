"""Templates and styles of all pages; renders a page into one HTML file that loads nothing from elsewhere.

A page is a folder of templates: NAME.html, which extends the kit's base.html, with NAME.css and NAME.js if it needs
them. Pages of a folder may share further styles. Its macros come from its own templates and from the kit's kit.html,
whose style is kit.css. base.html, base.css and base.js are the frame of pages in one file; the service has its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from curate.html import numbers

KIT = Path(__file__).parent / "templates"
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(127, 160)], "\ufffd")


def render(folder: Path, name: str, *, styles: Sequence[str] = (), **values: Any) -> bytes:
    """The page NAME.html of `folder`, filled in with `values`, which need a `title`. `styles`: names
    of .css files of the folder to include before the page's own.

    Every value is escaped; only the styles and scripts of the templates are inserted as they are. The page's content
    security policy forbids the network and any other script.
    """
    places = [KIT / "base.css", *(folder / f"{one}.css" for one in (*styles, name))]
    style, script = with_kit(*places), joined(KIT / "base.js", folder / f"{name}.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    text = _template(folder, name).render(
        {"terms": {}} | values, style=Markup(style), script=Markup(script), policy=policy
    )  # fmt: skip
    return text.encode("utf-8", "replace")


@lru_cache
def _template(folder: Path, name: str) -> jinja2.Template:
    """Compiled once per process: compiling takes longer than rendering."""
    return environment(folder).get_template(f"{name}.html")


def environment(folder: Path) -> jinja2.Environment:
    """Templates of `folder`, which come before those of the kit."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, KIT]), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=printable, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters |= {
        "number": numbers.number, "percent": numbers.percent, "score": numbers.score, "size": numbers.size,
        "duration": numbers.duration, "sentence": sentence, "data_uri": data_uri,
    }  # fmt: skip
    return made


def with_kit(*styles: Path) -> str:
    """The kit's tokens and parts, then these styles, as a page inlines them or a server sends them."""
    return joined(KIT / "kit.css", *styles)


def joined(*places: Path) -> str:
    """The text of those files that exist."""
    return "\n".join(place.read_text("utf-8") for place in places if place.exists())


def data_uri(data: bytes, kind: str) -> str:
    """`kind`: the media type, such as image/png."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def sentence(text: str) -> str:
    """The text with a capital first letter, otherwise unchanged (unlike str.capitalize)."""
    return text[:1].upper() + text[1:]


def printable(value: Any) -> Any:
    """Text without control characters, which HTML forbids even as references; other values and markup unchanged."""
    return value.translate(_CONTROLS) if type(value) is str else value
