"""`distill explain` and `distill where`: from a step of a run to its samples, and from a sample to its steps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from curate.core.errors import InputError, Reject
from distill.recipe import AugmentRecipe, Recipe
from distill.samples.batches.draws import AUGMENT, Draws
from distill.samples.images.augment import crop_box
from distill.samples.images.counts import PatchCounts, enlarged
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture
from distill.samples.texts import Texts
from distill.training.progress import losses_of
from distill.training.run_folder import RunFolder
from distill.training.steps import PastSteps

_KEY = re.compile(r"[0-9a-f]{32}")


def explain(run: str, step: int, rank: int | None, console: Console, *, as_json: bool = False) -> dict[str, Any]:
    """Print and return the samples of a step, in order, those of one rank only if it is given.

    Losses are the means over images that metrics.jsonl has of the steps of its line; None if it has none.
    """
    past = PastSteps(RunFolder(Path(run).expanduser().absolute()))
    number, plan, ranks = past.stage_of(step), past.plan(step), past.ranks(step)
    if rank is not None and not 0 <= rank < ranks:
        raise InputError(f"--rank {rank}: step {step} was shared by {ranks} ranks; give 0 to {ranks - 1}")
    stage = past.stage(number)
    drawn = [
        (place, row, epoch)
        for place, (rows, epochs) in enumerate(zip(plan.sequences, plan.epochs, strict=True))
        if rank is None or place % ranks == rank
        for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)
    ]
    covering = past.line(step)
    found = {
        "run": str(past.run.path), "step": step, "of": past.ends[-1], "trained": step <= past.done, "stage": number,
        "epoch": plan.epoch, "modality": plan.modality, "ranks": ranks, "sequences": len(plan.sequences),
        "losses": covering and losses_of(covering[1]),
        "losses_of_steps": covering and [covering[0], covering[1]["step"]],
        "samples": _samples(stage.recipe, stage.mixture, drawn, ranks),
    }  # fmt: skip
    if as_json:
        print(json.dumps(found))
    else:
        _show(found, console)
    return found


def _samples(
    recipe: Recipe, mixture: Mixture, drawn: Sequence[tuple[int, int, int]], ranks: int
) -> list[dict[str, Any]]:
    """drawn: (sequence, row, epoch)."""
    draws, limits = Draws(mixture, recipe.seed), [source.sizes for source in mixture.recipes]
    texts = Texts(mixture, MemberReader(mixture, share=0.0), draws)
    rows, epochs = (np.array([item[place] for item in drawn], dtype=np.int64) for place in (1, 2))
    counts = PatchCounts(mixture, draws, patch=recipe.student.patch, limits=limits)
    grids, frames = counts.grids(rows, epochs), mixture.frames(rows)
    natural = np.stack([mixture.take(name, rows) for name in ("width", "height")], axis=1)
    if recipe.data.augment is not None:
        each = zip(natural.tolist(), draws.ranks(AUGMENT, rows, epochs).tolist(), grids.prod(axis=1), strict=True)
        crops = [(_crop(recipe.data.augment, size, rank), int(tokens)) for size, rank, tokens in each]
        grids = np.array([enlarged(*crop, patch=recipe.student.patch, tokens=tokens) for crop, tokens in crops])
    samples = []
    for place, ((sequence, row, epoch), (width, height)) in enumerate(zip(drawn, natural.tolist(), strict=True)):
        sample = {
            "rank": sequence % ranks, "sequence": sequence, "key": mixture.key(row), "epoch": epoch,
            "width": width, "height": height, "seen": (grids[place] * recipe.student.patch).tolist(),
            "frames": int(frames[place]), "tokens": int(grids[place].prod() * frames[place]),
        }  # fmt: skip
        try:
            reads = recipe.needs.text and texts.has_choices(row)
            sample["texts"] = list(texts.draw(row, epoch, texts.read(row))) if reads else []
            if reads and not sample["texts"]:
                sample["unreadable"] = "it has none of the texts, so training left it out"
        except (Reject, OSError) as error:
            sample |= {"texts": [], "unreadable": str(error)}
        samples.append(sample)
    return samples


def _crop(recipe: AugmentRecipe, size: tuple[int, int], rank: int) -> tuple[int, int]:
    """(width, height) in pixels of what `augment` keeps of an image."""
    left, top, right, bottom = crop_box(size, recipe, *np.random.default_rng(rank).random(4))
    return right - left, bottom - top


def _show(found: dict[str, Any], console: Console) -> None:
    samples, losses = found["samples"], found["losses"]
    for item in samples:
        frames = f" x {item['frames']}" if item["frames"] > 1 else ""
        seen = f"{item['width']}x{item['height']} as {'{}x{}'.format(*item['seen'])}{frames} ({item['tokens']} tokens)"
        text = item.get("unreadable") or " | ".join(" ".join(one.split()) for one in item["texts"])
        place = f"rank {item['rank']} sequence {item['sequence']} epoch {item['epoch']}"
        _print(console, f"{item['key']} {place}: {seen} {text}".rstrip())
    state = "" if found["trained"] else "; not trained yet"
    _print(
        console,
        f"step {found['step']} of {found['of']} (stage {found['stage']}, epoch {found['epoch']}, {found['modality']}): "
        f"{len(samples)} samples, {found['sequences']} sequences on {found['ranks']} ranks{state}",
    )
    if losses:
        first, last = found["losses_of_steps"]
        values = ", ".join(f"{name} {value:.4g}" for name, value in losses.items() if value is not None)
        _print(console, f"means of steps {first} to {last}: {values}")
    _print(console, "where a key comes from: `curate explain KEY`")


def where(run: str, keys: Sequence[str], console: Console, *, as_json: bool = False) -> dict[str, Any]:
    """Print and return the steps that saw each key, with the time of the line of metrics.jsonl that covers the step.

    A key that is not in the run's data has None, and one that is held out no step.
    """
    for key in keys:
        if not _KEY.fullmatch(key):
            raise InputError(f"KEY: {key!r} is not a key; expected 32 hex characters")
    past = PastSteps(RunFolder(Path(run).expanduser().absolute()))
    times: dict[str, list[dict[str, Any]] | None] = {
        key: None if steps is None else [{**asdict(one), "time": _time(past, one.step)} for one in steps]
        for key, steps in past.seen(list(dict.fromkeys(keys))).items()
    }
    found = {
        "run": str(past.run.path), "fingerprint": past.run.fingerprint(), "steps": past.done, "keys": times,
    }  # fmt: skip
    if as_json:
        print(json.dumps(found))
        return found
    for key, steps in times.items():
        if steps is None:
            what = "is not in the data of this run"
        elif not steps:
            what = f"was not seen in {past.done} steps"
        else:
            places = ", ".join(f"{one['step']} (epoch {one['epoch']}, rank {one['rank']})" for one in steps)
            what = f"was seen in {len(steps)} of {past.done} steps: {places}"
        _print(console, f"{key} {what}")
    return found


def _time(past: PastSteps, step: int) -> float | None:
    covering = past.line(step)
    return covering and covering[1].get("time")


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
