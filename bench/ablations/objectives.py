"""Objectives and options of the students of PE and Xray, each against plain contrastive training on clip-arts.

Students train on the clip-arts' titles, 240 updates of 64 images. Judged on held-out clip-arts: the own title among all
of them, the own keywords, which no arm but the siamese one reads, and the folder by kNN and a linear probe of the
training images. FLOPs are about equal for `progressive`; `mae first` has 120 more updates, on a quarter of the patches.
`frozen texts` learns against vectors of `language`, `untrained texts` against those of the same model with random
weights. The arms `kl` learn from `teacher`, which is `plain` with 400 updates, and have the smaller student of `small`;
their number is the factor of the teacher's own scale.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from bench.ablations import judge
from bench.ablations.clip_arts import LEAST, images
from bench.ablations.folders import Curated, curate
from bench.ablations.language import WIDTH, language_model
from bench.ablations.runs import Ablation, Arm, Scores
from bench.ablations.texts import FIRST, first, held, ranks
from curate.encoders import load
from curate.encoders.base import Encoder
from curate.encoders.student.model import DistilledModel
from curate.encoders.texts import encode_texts
from distill.objectives import Objective
from distill.objectives.denoising import Denoising
from distill.objectives.kl import Kl
from distill.objectives.mae import Mae
from distill.objectives.masking import Masking
from distill.objectives.slip import Slip
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader

_FROZEN = {"frozen texts": "", "untrained texts": "?random=0"}
"""Options of the language model by arm."""
_SMALL = (
    "student.width=64",
    "student.depth=3",
    "student.heads=2",
    "student.text.width=64",
    "student.text.heads=2",
    "student.embed=64",
)


def dataset(seed: int) -> Curated:
    """The same for every seed."""
    return curate("clip-art-vectors", [f"images={images()}", f"language={language_model()}"])


def scores(folder: Path, arm: Arm, seed: int) -> Scores:
    model, url = judge.model_of(folder), dataset(0).dataset
    found = ranks(url, partial(judge.embed_images, model), partial(_texts, model, arm), seed, together=False)
    result: Scores = {}
    for kind, rank in found.items():
        result[f"{kind} among all, first {FIRST}"] = first(rank)
        result[f"{kind}, reciprocal rank"] = 1 / (1 + rank)
    return result | folders(model, url, seed)


def _texts(model: DistilledModel, arm: Arm, texts: list[str]) -> judge.Floats:
    """Embeddings (n, embed) of texts."""
    if arm.name not in _FROZEN:
        return judge.embed_texts(model, texts)
    vectors = encode_texts(_encoder(_FROZEN[arm.name]), texts)
    tower = model.student.text
    assert tower is not None
    embedded: judge.Floats = tower(torch.from_numpy(judge.unit(vectors))).detach().numpy()
    return embedded


@lru_cache
def _encoder(options: str) -> Encoder:
    return load(f"hf:{language_model()}{options}", device="cpu")


def folders(model: DistilledModel, url: str, seed: int) -> Scores:
    """1 if the predicted folder of a held-out clip-art is right; NaN for those that are not tested."""
    source = open_dataset(url)
    members = MemberReader(source)
    names, labels = np.unique(np.array([str(name) for name in source.strings("label")]), return_inverse=True)
    labels = labels.astype(np.int64)
    known = ~held(source, seed)
    tested = ~known & (np.bincount(labels[known], minlength=len(names))[labels] >= LEAST)
    summaries = judge.outputs(model, [members.read(row) for row in range(len(source))]).summary
    given = summaries[known], labels[known], summaries[tested], labels[tested], len(names)
    result = {}
    for name, right in (("kNN", judge.knn_right(*given)), ("linear probe", judge.probe_right(*given))):
        result[f"folder, {name}"] = np.full(len(source), np.nan, np.float32)
        result[f"folder, {name}"][tested] = right
    return result


def trained(kind: type[Objective], values: str = "") -> str:
    """The setting of an arm that has this objective too."""
    return f"objectives=[{objective(kind, values)}]"


def objective(kind: type[Objective], values: str = "") -> str:
    """It in a recipe, with these values."""
    return f"{{objective: {kind.__module__}:{kind.__qualname__}{values and ', ' + values}}}"


def _arm(name: str, *settings: str, sources: tuple[str, ...] = ("data.sources.0",)) -> Arm:
    return Arm(name, ("data.sources.0.texts={title: 1}", *settings), dataset, sources)


def _frozen(name: str, column: str) -> Arm:
    return _arm(name, f"student.text={{tower: columns, column: {column}, width: {WIDTH}, depth: 4}}")


def _distilled(factor: float) -> Arm:
    """From the arm `teacher`, whose cosines are multiplied by `factor` times the scale it has learned."""

    def taught(folder: Path) -> tuple[str, ...]:
        scale = factor * judge.model_of(folder).student.logit_scale.exp().item()
        weights = ", ".join(f"{kind}: {{weight: 0}}" for kind in ("summary", "patches", "registers"))
        return (
            f"teachers=[{{name: teacher, encoder: 'distill:{folder}', standardise: none, {weights}}}]",
            trained(Kl, f"teacher: teacher, teacher_scale: {scale:.3f}"),
        )

    arm = _arm(f"kl x{factor:g}", *_SMALL, "contrastive=null")
    return replace(arm, teacher="teacher", taught=taught)


def ablation() -> Ablation:
    arms = (
        _arm("plain"),
        _arm("masking", trained(Masking, "share: 0.25")),
        _arm("denoising", trained(Denoising)),
        _arm("two crops", trained(Slip, "hidden: 256, embed: 64")),
        _arm("attention pool", "student.pool=attention", "student.pool_heads=3"),
        _arm("mean pool", "student.pool=mean"),
        _arm("keep 0.7", "student.keep=0.7"),
        _arm("merge 3", "student.merge=3"),
        _arm(
            "progressive",
            "data.sources.0.max_tokens=16",
            "train.steps=253",
            "stages=[{}, {data: {sources: [{max_tokens: 36, texts: {title: 1}}]},"
            " train: {steps: 120, restart: false}}]",
            sources=("data.sources.0", "stages.1.data.sources.0"),
        ),
        _arm(
            "mae first",
            "train.steps=120",
            "stages=[{student: {text: null}, contrastive: null, objectives: ["
            f"{objective(Mae, 'decoder: {depth: 1, width: 96}')}]}},"
            " {train: {steps: 240, warmup_steps: 20}}]",
        ),
        _arm("siamese", "data.sources.0.texts={title: 0.5, tags: 0.5}", "data.sources.0.text_pair=[title, tags]"),
        _frozen("frozen texts", "text_embedding"),
        _frozen("untrained texts", "random_embedding"),
        _arm("teacher", "train.steps=400"),
        _arm("small", *_SMALL),
        *(_distilled(factor) for factor in (0.5, 1.0, 2.0)),
    )
    plain = [arm.name for arm in arms[1:] if arm.name not in ("teacher", "small") and arm.teacher is None]
    pairs = [(name, "plain") for name in plain] + [("frozen texts", "untrained texts"), ("teacher", "small")]
    pairs += [(f"kl x{factor}", other) for other in ("small", "kl x1") for factor in (0.5, 1, 2)]
    return Ablation(
        name="objectives",
        question="objectives and options of Perception Encoder and Xray-Visual against plain contrastive training",
        recipe="clip-art-pairs",
        arms=arms,
        pairs=tuple(pair for pair in pairs if pair[0] != pair[1]),
        judge=scores,
        expected={},
        source="Perception Encoder, sections 2.1 and C.3; Xray-Visual, sections 3.2 and 4",
        settings=("train.steps=240", "train.warmup_steps=20", "data.sequence_images=16"),
    )
