"""Stage names, resolved lazily: `curate plan` imports a stage's module only when a recipe names it."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points

from curate.core.contracts import Stage
from curate.core.errors import RecipeError

OPS = {
    "import.folder": "curate.acquire.folder:ImportFolder",
    "import.webdataset": "curate.acquire.webdataset:ImportWebDataset",
    "import.parquet": "curate.acquire.parquet:ImportParquet",
    "image.inspect": "curate.image.inspect:Inspect",
    "image.filter": "curate.image.filter:ImageFilter",
    "image.frames": "curate.image.frames:Frames",
    "image.fingerprint": "curate.image.fingerprint:Fingerprint",
    "image.embed": "curate.image.embed:Embed",
    "duplicates.find": "curate.image.duplicates:FindDuplicates",
    "duplicates.members": "curate.image.duplicate_members:DuplicateMembers",
    "duplicates.drop": "curate.image.duplicate_members:DropDuplicates",
    "duplicates.semantic": "curate.cluster.semantic:SemanticDuplicates",
    "duplicates.reference": "curate.cluster.reference:ReferenceSet",
    "duplicates.match": "curate.cluster.match:MatchReference",
    "duplicates.decontaminate": "curate.cluster.decontaminate:Decontaminate",
    "text.clean": "curate.text.clean:Clean",
    "text.filter": "curate.text.filter:TextFilter",
    "text.sentences": "curate.text.sentences:Sentences",
    "text.language": "curate.text.language:Language",
    "text.language_filter": "curate.text.language:LanguageFilter",
    "text.duplicates": "curate.text.duplicates:FindTextDuplicates",
    "text.copies": "curate.text.duplicates:TextCopies",
    "text.drop_duplicates": "curate.text.duplicates:DropTextDuplicates",
    "text.boilerplate": "curate.text.boilerplate:Boilerplate",
    "text.strip": "curate.text.strip:Strip",
    "text.concepts": "curate.text.concepts:Concepts",
    "text.vocabulary": "curate.text.vocabulary:BuildVocabulary",
    "text.match": "curate.text.match:Match",
    "text.tags": "curate.text.tags:Tags",
    "text.hashtag_map": "curate.text.hashtag_map:HashtagMap",
    "text.hashtags": "curate.text.hashtags:Hashtags",
    "text.counts": "curate.text.counts:TextCounts",
    "align.similarity": "curate.align.similarity:Similarity",
    "align.threshold": "curate.align.threshold:Threshold",
    "align.margin": "curate.align.margin:Margin",
    "align.filter": "curate.align.filter:ScoreFilter",
    "filter.where": "curate.filter.where:Where",
    "cluster.fit": "curate.cluster.fit:FitTree",
    "cluster.assign": "curate.cluster.assign:Assign",
    "cluster.profile": "curate.cluster.profile:Profile",
    "cluster.drift": "curate.cluster.drift:Drift",
    "select.hierarchical": "curate.cluster.select:SelectHierarchical",
    "select.frequency": "curate.text.select_frequency:SelectFrequency",
    "select.metaclip": "curate.text.select_metaclip:SelectMetaClip",
    "select.all": "curate.cluster.select_all:SelectAll",
    "pack.webdataset": "curate.pack.webdataset:PackWebDataset",
    "report.html": "curate.pack.report:ReportHtml",
}
GROUP = "curate.stages"
"""Entry point group by which other packages add stages: `name = "package.module:Class"`."""


def names() -> list[str]:
    return sorted(OPS | {point.name: point.value for point in entry_points(group=GROUP)})


def resolve(op: str) -> type[Stage]:
    """The class of an op: a registered name, or `package.module:Class` for one's own."""
    target = OPS.get(op) or next((p.value for p in entry_points(group=GROUP) if p.name == op), None)
    if target is None and ":" in op:
        target = op
    if target is None:
        near = difflib.get_close_matches(op, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`curate ops` lists them"
        raise RecipeError(f"op: {op!r} is no known stage; {hint}")
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"op: {op!r} cannot be imported ({error}); check the name or install its package") from error
    if not (isinstance(found, type) and issubclass(found, Stage)):
        raise RecipeError(f"op: {op!r} is not a Stage; give a class derived from curate.core.contracts.Stage")
    return found


def resolve_fields(op: str) -> list[str]:
    """Names of an op's parameters; none where there is no such op."""
    try:
        return list(resolve(op).model_fields)
    except RecipeError:
        return []
