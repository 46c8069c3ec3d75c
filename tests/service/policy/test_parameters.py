"""The class of every text parameter of every op. A new one fails here until it has a class: if the stage opens it or
connects to it, mark it with `Location`; otherwise add it to PLAIN."""

from __future__ import annotations

from typing import Any

from curate.core.contracts import Location
from curate.core.recipe import registry
from curate.service.policy.admission import kind_of, options, parameters

LEADING = {
    "acquire.download": {"allow_networks": "network", "proxy": "proxy", "deny_hosts": "path", "deny_urls": "path"},
    "acquire.folder": {"path": "path", "metadata": "path"},
    "acquire.list": {"path": "path"},
    "acquire.parquet": {"path": "path"},
    "acquire.webdataset": {"path": "path"},
    "align.similarity": {"encoder": "encoder"},
    "caption.ask": {"endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt"},
    "caption.check": {"prompts[]": "prompt"},
    "caption.compare": {"endpoints": "endpoints"},
    "caption.generate": {"endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt"},
    "caption.judge": {"endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt"},
    "caption.repair": {
        "endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt", "rewrite": "prompt"
    },
    "caption.report": {"endpoints": "endpoints"},
    "caption.rewrite": {"endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt"},
    "caption.summarise": {"endpoints": "endpoints", "prompt": "prompt", "variants[].prompt": "prompt"},
    "image.concepts": {"encoder": "encoder"},
    "image.embed": {"encoder": "encoder"},
    "video.embed": {"encoder": "encoder"},
    "report.html": {"labels": "path"},
    "text.embed": {"encoder": "encoder"},
    "text.hashtag_map": {"edits": "path"},
    "text.language": {"model": "file"},
    "text.vocabulary": {"entries": "path"},
}  # fmt: skip
"""Op -> parameter that leads out of the recipe -> how the service admits it."""

ASKING = {"endpoint", "variants[].endpoint", "columns[]", "output"}
PLAIN = {
    "acquire.download": {"namespace", "media[]", "contact", "disallowed_header_directives[]", "user_agent"},
    "acquire.folder": {"namespace", "media[]", "extensions[]", "videos[]", "caption_field", "metadata_key"},
    "acquire.list": {"columns[]", "keep[]", "delimiter"},
    "acquire.parquet": {"namespace", "image", "caption", "id"},
    "acquire.webdataset": {"namespace", "media[]", "images[]", "videos[]", "caption_field"},
    "align.filter": {"score"},
    "align.margin": {"score"},
    "align.similarity": {"embedding", "column", "output"},
    "align.threshold": {"column"},
    "caption.ask": ASKING,
    "caption.check": {"column", "columns[]", "context[]", "language_column", "languages[]", "similarity_column"},
    "caption.choose": {"order[]", "checks[]", "output"},
    "caption.compare": {"a", "b", "judge", "similarity_a", "similarity_b", "title", "question"},
    "caption.generate": ASKING,
    "caption.judge": {*ASKING, "a", "b"},
    "caption.mix": {"texts[]", "output", "separator"},
    "caption.repair": {*ASKING, "column", "check", "rewrite_endpoint"},
    "caption.report": {"title", "original", "texts[]", "cluster"},
    "caption.rewrite": ASKING,
    "caption.summarise": ASKING,
    "cluster.assign": {"embedding"},
    "cluster.fit": {"embedding"},
    "cluster.profile": {"caption", "source"},
    "duplicates.decontaminate": {"column"},
    "duplicates.drop": {"column"},
    "duplicates.find": {"prefer[]"},
    "duplicates.match": {"embedding", "column"},
    "duplicates.members": {"column"},
    "duplicates.reference": {"embedding"},
    "duplicates.semantic": {"embedding"},
    "duplicates.videos": {"prefer[]"},
    "derive.roll_up": {"column", "into"},
    "filter.where": {"keep", "reason", "items"},
    "filter.split": {"within"},
    "image.concepts": {"embedding"},
    "image.embed": {"column"},
    "image.filter": {"formats[]"},
    "image.frames": {"namespace"},
    "pack.webdataset": {"name", "text", "texts", "carry[]"},
    "project.fit": {"embedding"},
    "project.place": {"embedding", "into"},
    "project.region": {"column", "map", "reason"},
    "report.html": {"title", "caption", "label"},
    "select.frequency": {"columns[]", "by"},
    "select.hierarchical": {"by", "embedding"},
    "select.metaclip": {"columns[]", "by"},
    "select.top": {"by", "score"},
    "search.fit": {"cluster", "embedding"},
    "text.boilerplate": {"column"},
    "text.clean": {"column", "output", "rules[]", "without[]", "also[]"},
    "text.concepts": {"column", "nouns[]", "verbs[]"},
    "text.copies": {"column"},
    "video.clips": {"namespace"},
    "video.embed": {"column"},
    "video.frames": {"namespace"},
    "video.inspect": {"languages[]"},
    "video.windows": {"namespace"},
    "text.counts": {"columns[]", "by"},
    "text.duplicates": {"column"},
    "text.embed": {"column", "output"},
    "text.filter": {"column"},
    "text.hashtag_map": {"nouns[]", "verbs[]", "words"},
    "text.language": {"column"},
    "text.language_filter": {"languages[]"},
    "text.match": {"column", "output"},
    "text.sentences": {"column"},
    "text.strip": {"column", "output", "also[]", "keep[]"},
    "text.tags": {"fields[]", "caption"},
    "text.vocabulary": {"column"},
}
"""Op -> text parameters that only name columns, words or rules. `filter.where.keep` is an SQL expression, in which
`curate.filter.expressions` admits no function that reads files."""


def test_every_text_parameter_has_a_class() -> None:
    found = {op: _classes(op) for op in registry.OPS}
    leading = {op: {name: kind for name, kind in of.items() if kind != "plain"} for op, of in found.items()}
    assert {op: of for op, of in leading.items() if of} == LEADING
    plain = {op: {name for name, kind in of.items() if kind == "plain"} for op, of in found.items()}
    assert {op: of for op, of in plain.items() if of} == PLAIN


def test_no_op_takes_a_secret_itself() -> None:
    assert not [op for op in registry.OPS if "secret" in _classes(op).values()]


def _classes(op: str) -> dict[str, str]:
    """Text parameter -> its class."""
    found = {}
    for name, annotation, metadata in parameters(registry.resolve(op)):
        kind = kind_of(annotation, metadata)
        if kind is not None:
            found[name] = kind.kind if isinstance(kind, Location) else "secret"
        elif _is_text(annotation):
            found[name] = "plain"
    return found


def _is_text(annotation: Any) -> bool:
    """Whether a value may be a text of any content. A container is looked into under a separate name."""
    return any(one in (str, bytes, Any) for one in options(annotation))
