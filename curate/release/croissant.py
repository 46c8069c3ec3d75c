"""`croissant.json`: the release as JSON-LD of MLCommons' Croissant 1.0, which search engines and loaders read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from curate.release.layout import DATA

_CR = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
CONTEXT = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/", "dct": "http://purl.org/dc/terms/",
    "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
    "conformsTo": "dct:conformsTo", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "examples": {"@id": "cr:examples", "@type": "@json"},
    **{name: f"cr:{name}" for name in _CR},
}  # fmt: skip
"""The context that the specification prescribes."""


ROWS = "rows"


def croissant(about: Mapping[str, Any], schema: pa.Schema, sums: Mapping[str, str]) -> dict[str, Any]:
    """about: what release.json says. sums: sha256 of each file of rows."""
    parquet = {"encodingFormat": "application/x-parquet"}
    files = [
        {"@type": "cr:FileObject", "@id": name, "name": name, "contentUrl": name, "sha256": sums[name], **parquet}
        for name in about["files"]
    ]
    together = {"@type": "cr:FileSet", "@id": "files", "name": "files", "includes": f"{DATA}/*.parquet", **parquet}
    fields = [
        {"@type": "cr:Field", "@id": f"{ROWS}/{name}", "name": name, "description": about["columns"][name],
         "dataType": kind, "source": {"fileSet": {"@id": "files"}, "extract": {"column": name}}}
        for name in schema.names if (kind := _kind(schema.field(name).type))
    ]  # fmt: skip
    return {
        "@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": about["name"], "description": about["title"], "datePublished": about["committed"],
        "version": f"{about['version']}.0.0", "license": about["license"], "distribution": [*files, together],
        "recordSet": [{"@type": "cr:RecordSet", "@id": ROWS, "name": ROWS, "field": fields}],
    }  # fmt: skip


def _kind(kind: pa.DataType) -> str:
    """ "" for a type that Croissant does not have, such as lists."""
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    if pa.types.is_floating(kind):
        return "sc:Float"
    return "sc:Text" if pa.types.is_string(kind) else ""
