"""Reads and writes maps of hashtags as files to edit: tab-separated text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.core.errors import InputError
from curate.text.hashtags.rules import UNMAPPED, Edit
from curate.text.hashtags.segment import folded

KINDS = ("noun", "action", UNMAPPED)
COLUMNS = ("tag", "canonical", "kind", "count", "how", "words", "synset")
_WHERE = "text.hashtag_map.edits"


def to_tsv(table: pa.Table) -> Iterator[str]:
    """Lines of a map's table, after a header line, to edit and give to `read_edits`."""
    yield "\t".join(COLUMNS)
    for row in table.select(list(COLUMNS)).to_pylist():
        yield "\t".join("" if row[name] is None else str(row[name]) for name in COLUMNS)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{_WHERE}: cannot read {path} ({error.strerror or error}); give a .tsv or .json file that all workers can "
            "read"
        ) from None


def read_edits(path: Path | None) -> dict[str, Edit]:
    """Tag (folded) -> edit, from lines `tag TAB canonical [TAB kind]`, from lines of `to_tsv`, or from a JSON object
    with a canonical tag, null, or {"canonical": …, "kind": …} per tag. Raises InputError (one line)."""
    if path is None:
        return {}
    try:
        text = read_bytes(path).decode("utf-8-sig")
        pairs = list(_from_json(path, json.loads(text)) if path.suffix == ".json" else _from_lines(path, text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_WHERE}: {path} is not {'JSON' if path.suffix == '.json' else 'UTF-8'} ({error})") from None
    edits: dict[str, Edit] = {}
    for place, tag, edit in pairs:
        key = folded(tag)
        if not key:
            raise InputError(f"{_WHERE}: {path}, {place}: {tag[:40]!r} is not a tag; expected letters or digits")
        if edits.setdefault(key, edit) != edit:
            raise InputError(f"{_WHERE}: {path}, {place}: {key!r} has another canonical tag above; keep one of them")
    return edits


def _from_lines(path: Path, text: str) -> Iterator[tuple[str, str, Edit]]:
    names = list(COLUMNS[:3])
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if number == 1 and cells[:2] == ["tag", "canonical"]:
            names = cells
        elif line.strip():
            if len(cells) < 2:
                raise InputError(
                    f"{_WHERE}: {path}, line {number}: expected tag, TAB, canonical tag, not {line[:40]!r}"
                )
            row = dict(zip(names, cells, strict=False))
            yield f"line {number}", row["tag"], _edit(path, f"line {number}", row["canonical"], row.get("kind") or None)


def _from_json(path: Path, value: Any) -> Iterator[tuple[str, str, Edit]]:
    if not isinstance(value, dict):
        raise InputError(f"{_WHERE}: {path} holds a JSON {type(value).__name__}; expected an object with tags as names")
    for tag, found in value.items():
        fields = found if isinstance(found, dict) else {"canonical": found}
        canonical, kind = fields.get("canonical"), fields.get("kind")
        if not isinstance(canonical, str | None) or not isinstance(kind, str | None):
            raise InputError(
                f"{_WHERE}: {path}, tag {tag[:40]!r}: expected a canonical tag, null, or an object of both"
            )
        yield f"tag {tag[:40]!r}", tag, _edit(path, f"tag {tag[:40]!r}", canonical, kind)


def _edit(path: Path, place: str, canonical: str | None, kind: str | None) -> Edit:
    if kind is not None and kind not in KINDS:
        raise InputError(f"{_WHERE}: {path}, {place}: unknown kind {kind[:40]!r}; choose from {', '.join(KINDS)}")
    if not canonical or kind == UNMAPPED:
        return Edit(None, UNMAPPED)
    return Edit(" ".join(canonical.encode("utf-8", "replace").decode().split()), kind)
