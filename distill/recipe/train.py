"""Steps, batch, optimiser and schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from curate.core.contracts import Added
from curate.core.recipe.section import Count, Section, Share
from distill.objectives import Kind

Samples = Annotated[int, Field(ge=2, le=10**9)]
ADAM_BETAS = (0.9, 0.999)
_BETAS = {"lion": (0.9, 0.99)}
"""Optimisers whose authors chose other values than Adam's (Lion: Chen et al. 2023)."""


class TrainRecipe(Section):
    steps: Count
    sequences: Count | dict[str, Count] = 4
    """Sequences of a step over all ranks: the global batch. A mapping by modality if they differ."""
    learning_rate: Annotated[float, Field(gt=0, le=1e9)] = 1e-3
    final_learning_rate: Annotated[float, Field(ge=0, le=1e9)] = 1e-4
    """Reached at the last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    """Less than `steps`."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    restart: Annotated[bool, Added()] = True
    """Whether a stage begins its schedule from scratch, warm-up included. With false it continues that of the stage
    before, which then spans the steps of both."""
    optimizer: Literal["adamw", "lion", "lamb"] = "adamw"
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.02
    betas: tuple[Share, Share] = Field(default_factory=lambda values: _BETAS.get(values.get("optimizer"), ADAM_BETAS))
    """If left out, those of the optimiser's authors: 0.9 and 0.999, for Lion 0.9 and 0.99."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-15
    rates: Annotated[dict[str, Annotated[float, Field(ge=0, le=1e6)]], Added()] = {}
    """Factors of the learning rate of parts of the student, which the beginning of their weights' names tells:
    `backbone`, `backbone.blocks.0`, `heads`, `text`, `objectives`. The longest that fits counts; 0 freezes the part."""
    layer_decay: Annotated[float, Added(), Field(gt=0, le=1)] = 1.0
    """Factor of the learning rate from each block to the one below it, in the backbone and the text tower; it is 1
    above the last block (Clark et al. 2020)."""
    clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """Global gradient norm above which gradients are scaled down; 0 for never."""
    ema: Share = 0.0
    """Decay of the moving average of the weights, which is evaluated and exported instead; 0 for none."""
    standardise_samples: Samples | dict[Kind, Samples] = 1024
    """Training images on which the teachers' standardisation is fitted. A mapping by kind of features has numbers of
    vectors: with {summary: 1000, patches: 1000}, patches come from the few images that have 1000 of them together."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 is autocast over float32 weights."""

    @model_validator(mode="after")
    def _warms_up(self) -> TrainRecipe:
        if self.restart and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}; lower it (0 for none)"
            )
        return self
