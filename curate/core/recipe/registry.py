"""Names of stages, resolved lazily: a stage's module is imported only when a recipe names it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.metadata import entry_points

from curate.core.contracts import Stage
from curate.core.errors import CurateError, RecipeError, did_you_mean
from curate.core.plugins import load_class

OPS = {
    "acquire.folder": "curate.acquire.folder:AcquireFolder",
    "acquire.webdataset": "curate.acquire.webdataset:AcquireWebDataset",
    "acquire.download": "curate.acquire.download.download:AcquireDownload",
    "acquire.parquet": "curate.acquire.parquet:AcquireParquet",
    "acquire.list": "curate.acquire.lists.list:AcquireList",
    "image.inspect": "curate.image.inspect:Inspect",
    "image.appearance": "curate.image.appearance:Appearance",
    "image.concepts": "curate.image.concepts:ImageConcepts",
    "image.filter": "curate.image.filter:ImageFilter",
    "image.frames": "curate.image.frames:Frames",
    "derive.roll_up": "curate.derive.roll_up:RollUp",
    "image.fingerprint": "curate.image.fingerprint:Fingerprint",
    "image.embed": "curate.image.embed:Embed",
    "duplicates.find": "curate.duplicates.near.find:FindDuplicates",
    "duplicates.videos": "curate.duplicates.near.videos:FindVideoDuplicates",
    "duplicates.members": "curate.duplicates.near.members:DuplicateMembers",
    "duplicates.drop": "curate.duplicates.near.members:DropDuplicates",
    "duplicates.semantic": "curate.duplicates.semantic.find:SemanticDuplicates",
    "duplicates.reference": "curate.duplicates.reference.reference:ReferenceSet",
    "duplicates.match": "curate.duplicates.reference.match:MatchReference",
    "duplicates.decontaminate": "curate.duplicates.reference.decontaminate:Decontaminate",
    "video.inspect": "curate.video.inspect:Inspect",
    "video.look": "curate.video.look:Look",
    "video.divide": "curate.video.divide:Divide",
    "video.clips": "curate.video.divide:Clips",
    "video.windows": "curate.video.divide:Windows",
    "video.frames": "curate.video.frames:Frames",
    "video.embed": "curate.video.embed:Embed",
    "text.clean": "curate.text.clean.clean:Clean",
    "text.filter": "curate.text.filter:TextFilter",
    "text.sentences": "curate.text.sentences:Sentences",
    "text.language": "curate.text.language.language:Language",
    "text.language_filter": "curate.text.language.language:LanguageFilter",
    "text.duplicates": "curate.text.duplicates.find:FindTextDuplicates",
    "text.copies": "curate.text.duplicates.copies:TextCopies",
    "text.drop_duplicates": "curate.text.duplicates.copies:DropTextDuplicates",
    "text.boilerplate": "curate.text.boilerplate.find:Boilerplate",
    "text.strip": "curate.text.boilerplate.strip:Strip",
    "text.concepts": "curate.text.wordnet.concepts:Concepts",
    "text.vocabulary": "curate.text.vocabulary.build:BuildVocabulary",
    "text.match": "curate.text.vocabulary.match:Match",
    "text.tags": "curate.text.hashtags.tags:Tags",
    "text.hashtag_map": "curate.text.hashtags.map:HashtagMap",
    "text.hashtags": "curate.text.hashtags.apply:Hashtags",
    "text.counts": "curate.text.counts:TextCounts",
    "text.embed": "curate.text.embed:Embed",
    "align.similarity": "curate.align.similarity:Similarity",
    "align.threshold": "curate.align.threshold:Threshold",
    "align.margin": "curate.align.margin:Margin",
    "align.filter": "curate.align.filter:ScoreFilter",
    "caption.mix": "curate.caption.mix:Mix",
    "caption.generate": "curate.caption.generate:Generate",
    "caption.rewrite": "curate.caption.rewrite:Rewrite",
    "caption.summarise": "curate.caption.summarise:Summarise",
    "caption.ask": "curate.caption.ask:Ask",
    "caption.check": "curate.caption.checks.check:Check",
    "caption.repair": "curate.caption.repair:Repair",
    "caption.choose": "curate.caption.choose:Choose",
    "caption.judge": "curate.caption.compare.judge:Judge",
    "caption.compare": "curate.caption.compare.compare:Compare",
    "caption.report": "curate.caption.report.report:CaptionReport",
    "filter.where": "curate.filter.where:Where",
    "filter.split": "curate.filter.split:Split",
    "cluster.fit": "curate.cluster.fit:FitTree",
    "cluster.assign": "curate.cluster.assign:Assign",
    "cluster.profile": "curate.cluster.profile.profile:Profile",
    "cluster.drift": "curate.cluster.profile.drift:Drift",
    "search.fit": "curate.search.fit:FitSearch",
    "project.fit": "curate.project.fit:FitProjection",
    "project.place": "curate.project.place:Place",
    "project.region": "curate.project.region:InRegion",
    "select.hierarchical": "curate.select.hierarchical:SelectHierarchical",
    "select.frequency": "curate.select.frequency:SelectFrequency",
    "select.metaclip": "curate.select.metaclip:SelectMetaClip",
    "select.all": "curate.select.all:SelectAll",
    "select.uniform": "curate.select.uniform:SelectUniform",
    "select.top": "curate.select.top:SelectTop",
    "pack.webdataset": "curate.pack.webdataset:PackWebDataset",
    "report.html": "curate.report.html:ReportHtml",
}
GROUP = "curate.stages"
"""Entry point group by which other packages add stages: `name = "package.module:Class"`."""


def names() -> list[str]:
    return sorted(OPS | {point.name: point.value for point in entry_points(group=GROUP)})


def resolve(op: str) -> type[Stage]:
    """The class of an op, by its registered name or as `package.module:Class`."""
    target = OPS.get(op) or next((p.value for p in entry_points(group=GROUP) if p.name == op), None)
    if target is None and ":" in op:
        target = op
    if target is None:
        current = re.sub(r"^import\.", "acquire.", op)  # the former prefix
        raise RecipeError(f"op: unknown stage {op!r}; {did_you_mean(current, names(), '`curate ops` lists them')}")
    return load_class(target, Stage, "op")


def classes() -> Iterator[tuple[str, type[Stage]]]:
    """Ops and their classes, without those that cannot be imported."""
    for op in names():
        with contextlib.suppress(CurateError):
            yield op, resolve(op)


def resolve_fields(op: str) -> list[str]:
    """Names of an op's parameters; empty for an unknown op."""
    try:
        return list(resolve(op).model_fields)
    except RecipeError:
        return []
