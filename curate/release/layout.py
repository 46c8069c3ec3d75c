"""The files of a release, and the columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

FORMAT = 1
ABOUT, SUMS, CARD, CROISSANT, RECIPE = "release.json", "SHA256SUMS", "README.md", "croissant.json", "recipe.yaml"
CHANGES, REMOVED = "changes.parquet", "removed.parquet"
BEGUN = ".release-begun"
"""Dataset and options of an unfinished release, as a digest. It is removed last."""
DATA = "data"
SPLIT = "train"

COLUMNS = {
    "key": "Key of the sample: the same in every version.",
    "item": "Which text of the sample, where several were selected.",
    "copies": "How often the dataset has the sample.",
    "url": "Where the source publishes it; null if it has no public URL.",
    "sha256": "SHA-256 of the bytes at the URL when they were fetched; null if it is not known.",
    "stored_sha256": "SHA-256 of the bytes in the pool, where those at the URL are not known, or were re-encoded.",
    "media": "image or video.",
    "width": "Pixels of the stored bytes.",
    "height": "Pixels of the stored bytes.",
    "duration_ms": "Duration of a video in milliseconds.",
    "parent": "Key of the sample that this one was derived from; the URL is its source's.",
    "span": "Which part of the parent, as JSON.",
    "caption": "Text of the source.",
    "text": "Text of the sample in the dataset.",
    "license": "Licence that the source gives.",
    "source": "The publisher, as the source says.",
    "opt_out": "What the source says about use for training.",
}
"""Columns with a fixed name, and what they mean."""
UNIQUE = {"key", "url", "sha256", "stored_sha256", "caption", "text"}
"""Columns whose values hardly repeat, for which a dictionary is not worth its time."""
OWN = {"key", "item", "sha256", "stored_sha256", "media", "parent", "span"}
"""Texts that no source has written."""
NEVER = {"source_id", "name", "offset", "size", "ext", "meta"}
"""Columns of a pool that tell where its samples are, or may: of `meta`, a release has single fields only."""
REQUIRED = {"key": pa.string(), "url": pa.string(), "sha256": pa.string(), "caption": pa.string()}
"""Columns without which a release cannot be fetched."""
REMOVED_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in ("key", "url", "sha256", "why")])
CHANGES_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in ("key", "change", "why")])
TAKEN_DOWN = "taken_down"


def data_file(number: int) -> str:
    return f"{DATA}/{SPLIT}-{number:05d}.parquet"


def described(schema: pa.Schema, given: Mapping[str, str]) -> dict[str, str]:
    """Column -> what it means. `given`: of the columns that this release alone has."""
    return {name: given.get(name) or COLUMNS[name] for name in schema.names}
