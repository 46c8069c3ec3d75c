"""The image tokens that a recipe's stages will train on, estimated before training from a sample of packed images.

An image token is a patch; CLS and registers do not count, as in the 230 billion of AMoE (section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError, RecipeError
from distill.objectives.contrastive import Contrastive
from distill.recipe import Recipe
from distill.recipe.data import SourceRecipe
from distill.samples.batches.draws import Draws
from distill.samples.batches.packing import first_fit_decreasing
from distill.samples.batches.stream import sequences_of
from distill.samples.images.counts import PatchCounts
from distill.samples.sources.mixture import Mixture

_LEAST, _MOST = 4096, 1 << 16
"""Images of the sample; between them, four windows of `lookahead`."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class StagePlan:
    steps: int
    sequences: float
    """Per step."""
    images: float
    """Per sequence."""
    tokens: float
    """Image tokens per sequence."""

    @property
    def total(self) -> float:
        """Image tokens of the stage."""
        return self.steps * self.sequences * self.tokens


def plan_stages(stages: Sequence[Recipe], mixtures: Sequence[Mixture | None]) -> list[StagePlan]:
    """mixtures: of each stage; None: unknown, as if each image, or each of a source's `frames`, filled the `max_tokens`
    drawn for it.

    RecipeError for an unknown mixture of several sources without weights.
    """
    return [_plan(stage, mixture) for stage, mixture in zip(stages, mixtures, strict=True)]


def check_clips(recipe: Recipe, mixture: Mixture) -> None:
    """InputError for a clip that is longer than a sequence, and for losses between frames without clips."""
    prefix, capacity, most = recipe.student.prefix, recipe.data.sequence_tokens, 1
    limits = [source.sizes for source in recipe.data.sources]
    counts = PatchCounts(mixture, Draws(mixture, recipe.seed), patch=recipe.student.patch, limits=limits)
    for start in range(0, len(mixture), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(mixture)))
        rows = rows if mixture.eligible is None else rows[mixture.eligible[rows]]
        frames = mixture.frames(rows)
        rows, frames = rows[frames > 1], frames[frames > 1]
        if not len(rows):
            continue
        most, tokens = max(most, int(frames.max())), counts.tokens(rows) + prefix * frames
        longest = int(tokens.argmax())
        if tokens[longest] > capacity:
            number, fits = int(mixture.source_of(rows[longest])), capacity * frames[longest] // tokens[longest]
            remedy = f"data.sources.{number}.frames={fits}, or a lower max_tokens" if fits else "a lower max_tokens"
            raise InputError(
                f"data.sequence_tokens {capacity} is less than the {tokens[longest]} tokens of a clip of "
                f"{frames[longest]} frames in {mixture.urls[number]}; raise it, or set {remedy}"
            )
    if most == 1 and any(isinstance(item, Contrastive) and item.frame_pairs for item in recipe.every_objective):
        raise InputError(
            "contrastive.frame_pairs requires clips of at least 2 frames, and data.sources has none; leave it out"
        )


def _plan(recipe: Recipe, mixture: Mixture | None) -> StagePlan:
    """Means over the steps of all modalities; a modality's share of the steps is as in `Stream`."""
    weights = _weights(recipe, mixture)
    found = []
    for modality in dict.fromkeys(source.modality for source in recipe.data.sources):
        mine = np.array([source.modality == modality for source in recipe.data.sources])
        images, tokens = _sequence(recipe, mixture, np.where(mine, weights, 0.0))
        sequences = sequences_of(recipe.train.sequences, modality)
        found.append((weights[mine].sum() / (sequences * images), sequences, images, tokens))
    share, sequences, images, tokens = np.array(found).T
    number = float(np.average(sequences, weights=share))
    images, tokens = (float(np.average(value, weights=share * sequences)) for value in (images, tokens))
    return StagePlan(recipe.train.steps, number, images, tokens)


def _weights(recipe: Recipe, mixture: Mixture | None) -> NDArray[np.float64]:
    """Shares (sources,) of the images: weights, or numbers of images."""
    sources = recipe.data.sources
    given = [source.weight for source in sources if source.weight is not None]
    if len(given) == len(sources):
        return np.array(given)
    if mixture is None and len(sources) > 1:
        raise RecipeError(
            "data.sources: without weights their proportions are their numbers of images, which a recipe does not "
            "have; give each source a weight, or see the first line of `distill train`"
        )
    return np.ones(1) if mixture is None else np.array([float(_count(mixture, n)) for n in range(len(sources))])


def _count(mixture: Mixture, number: int) -> int:
    """Images of a source that it is trained on, held-out ones included."""
    first, stop = (int(place) for place in mixture.starts[number : number + 2])
    return stop - first if mixture.eligible is None else int(np.count_nonzero(mixture.eligible[first:stop]))


def _rows(mixture: Mixture, number: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Random rows (count,) of a source, with repetitions; reads large masks block by block."""
    first, stop = (int(place) for place in mixture.starts[number : number + 2])
    chosen = np.sort(random.integers(_count(mixture, number), size=count))
    if mixture.eligible is None:
        return first + chosen
    found, before = list[NDArray[np.int64]](), 0
    for start in range(first, stop, _BLOCK):
        rows = start + np.flatnonzero(mixture.eligible[start : min(start + _BLOCK, stop)])
        mine = chosen[(chosen >= before) & (chosen < before + len(rows))]
        found.append(rows[mine - before])
        before += len(rows)
    return np.concatenate(found)


def _sequence(recipe: Recipe, mixture: Mixture | None, weights: NDArray[np.float64]) -> tuple[float, float]:
    """Images and image tokens of a sequence, from a sample of the sources that is packed window by window."""
    data, prefix = recipe.data, recipe.student.prefix
    random, size = np.random.default_rng(0), min(max(_LEAST, 4 * data.lookahead), _MOST)
    numbers = random.choice(len(weights), size=size, p=weights / weights.sum())
    tokens, frames = np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64)
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        count = int(mine.sum())
        if mixture is None:
            frames[mine] = data.sources[number].frames or 1
            tokens[mine] = frames[mine] * _limits(data.sources[number], count, random)
        else:
            rows = random.permutation(_rows(mixture, number, count, random))
            limits = [source.sizes for source in data.sources]
            counts = PatchCounts(mixture, Draws(mixture, recipe.seed), patch=recipe.student.patch, limits=limits)
            tokens[mine], frames[mine] = counts.tokens(rows, np.arange(count)), mixture.frames(rows)
    sequences, places = 0, tokens + prefix * frames
    for start in range(0, size, data.lookahead):
        window = places[start : start + data.lookahead]
        sequences += len(first_fit_decreasing(window.tolist(), data.sequence_tokens, data.sequence_images))
    return size / sequences, int(tokens.sum()) / sequences


def _limits(source: SourceRecipe, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    weights = np.array(list(source.sizes.values()))
    return random.choice(list(source.sizes), size=count, p=weights / weights.sum())
