"""Perception Encoder's ladder of changes to CLIP (Figure 2, Table 16), cumulative, on clip-arts.

python -m bench.ablations.pe_ladder      the rungs of `pe.yaml` at full size, as `distill train` commands

Here the students have 96 pixels at first and 4 layers. Steps are in proportion to the paper's samples: 200 of 64 images
at one resolution, then as many in three, then twice as many images. Judged as `objectives`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.ablations.objectives import dataset, scores
from bench.ablations.runs import Ablation, Arm
from distill.objectives.masking import Masking


@dataclass(frozen=True)
class Size:
    """What a rung is multiplied by."""

    dataset: str
    texts: str
    sides: tuple[int, int, int, int]
    """Pixels of the resolutions, the third is the baseline's."""
    patch: int
    steps: int
    sequences: int
    """In the baseline, as the steps."""
    images: int
    """In a sequence."""
    prefix: int
    rate: float
    high_rate: float
    heads: int


FULL = Size(
    dataset="datasets/metaclip", texts="{txt: 1}", sides=(98, 154, 224, 336), patch=14, steps=366_211, sequences=512,
    images=64, prefix=1, rate=5e-4, high_rate=2e-3, heads=8,
)  # fmt: skip
"""12 billion samples in batches of 32,768 (section 2.1)."""
SMALL = Size(
    dataset="given", texts="{title: 1}", sides=(48, 64, 96, 128), patch=16, steps=200, sequences=4, images=16, prefix=2,
    rate=1e-3, high_rate=1e-2, heads=3,
)  # fmt: skip
_MASKING = f"{Masking.__module__}:{Masking.__qualname__}"


def rungs(size: Size) -> Iterator[tuple[str, list[str]]]:
    """Name and settings of each, in the order of the paper."""
    settings = [
        f"train.sequences={size.sequences}", f"train.learning_rate={size.rate}", "train.optimizer=adamw",
        "student.positions=absolute", f"student.position_grid={size.sides[2] // size.patch}", "student.pool=cls",
        "data.augment=null", "objectives=[]",
    ]  # fmt: skip
    yield "baseline", [*settings, *_stages(size, size.steps, (0, 0, 1, 0))]
    thirds = (1 / 3, 1 / 3, 1 / 3, 0)
    yield "resolutions", [*settings, *_stages(size, size.steps, thirds)]
    settings[0] = f"train.sequences={2 * size.sequences}"
    yield "batch", [*settings, *_stages(size, size.steps, thirds)]
    settings[1:3] = [f"train.learning_rate={size.high_rate}", "train.optimizer=lamb", "train.betas=[0.9, 0.95]"]
    yield "lamb", [*settings, *_stages(size, size.steps, thirds)]
    settings = [one for one in settings if "position_grid" not in one]
    settings += [f"student.position_grid={size.sides[3] // size.patch}"]
    settings += _stages(size, size.steps, (10 / 24, 8 / 24, 4 / 24, 2 / 24))
    yield "higher resolution", settings
    changes: list[tuple[str, list[str]]] = [
        ("rope", ["student.positions=absolute + axial"]),
        ("pool", ["student.pool=attention", f"student.pool_heads={size.heads}"]),
        (
            "augmentation",
            ["data.augment={crop: [0.08, 1], aspect: 1.3333, colour: [0.32, 0, 0.32, 0], flip: true}"],
        ),
        ("masking", [f"objectives=[{{objective: {_MASKING}, share: 0.0625, hidden: 0.4}}]"]),
    ]
    for name, change in changes:
        keys = {one.partition("=")[0] for one in change}
        settings = [one for one in settings if one.partition("=")[0] not in keys] + change
        yield name, settings


def _stages(size: Size, steps: int, shares: tuple[float, ...]) -> list[str]:
    """Settings of stages with these shares of all steps at the four resolutions, under one schedule."""
    used = [(share, (side // size.patch) ** 2) for share, side in zip(shares, size.sides, strict=True) if share]
    counts = [round(share * steps) for share, _ in used]
    stages, first = ["{}"], used[0][1]
    for count, (_, tokens) in zip(counts[1:], used[1:], strict=True):
        source = f"{{dataset: {size.dataset}, max_tokens: {tokens}, texts: {size.texts}}}"
        own = f"sources: [{source}], sequence_tokens: {size.images * (tokens + size.prefix)}"
        stages.append(f"{{data: {{{own}}}, train: {{steps: {count}, restart: false}}}}")
    return [
        f"data.sources.0.max_tokens={first}",
        f"data.sequence_tokens={size.images * (first + size.prefix)}",
        f"train.steps={counts[0]}",
        f"stages=[{', '.join(stages)}]" if len(stages) > 1 else "stages=[]",
    ]


def ablation() -> Ablation:
    arms = []
    for name, settings in rungs(SMALL):
        stages = next(one for one in settings if one.startswith("stages=")).count("dataset:")
        sources = ("data.sources.0", *(f"stages.{stage}.data.sources.0" for stage in range(1, stages + 1)))
        arms.append(Arm(name, (f"data.sources.0.texts={SMALL.texts}", *settings), dataset, sources))
    names = [arm.name for arm in arms]
    return Ablation(
        name="pe_ladder",
        question="each change to CLIP against the rung before it, and against the baseline",
        recipe="clip-art-pairs",
        arms=tuple(arms),
        pairs=tuple(zip(names[1:], names, strict=False)) + tuple((name, "baseline") for name in names[2:]),
        judge=scores,
        expected=dict.fromkeys(names[2:], "higher") | {"resolutions": "equal at half the FLOPs"},
        source="Perception Encoder, section 2.1, Table 16",
        settings=("train.warmup_steps=20", "data.sequence_images=16", "contrastive.smoothing=0"),
    )  # fmt: skip


def main() -> None:
    for name, settings in rungs(FULL):
        words = " ".join(f"--set '{setting}'" for setting in [*settings, f"name=pe-{name.replace(' ', '-')}"])
        print(f"# {name}\ndistill train pe {words}\n")


if __name__ == "__main__":
    main()
