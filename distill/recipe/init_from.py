"""Weights that a training starts from."""

from __future__ import annotations

from typing import Annotated

from curate.core.contracts import Runtime
from curate.core.recipe.section import Section


class InitFrom(Section):
    weights: Annotated[str, Runtime()]
    """A run's folder (its last checkpoint), a folder written by `distill export`, a file of weights by the student's
    own names (safetensors, or torch's without pickled code), or a model of curate's encoders: `timm:NAME`,
    `open_clip:NAME`, `hf:NAME`. Their digest is part of the fingerprint."""
    strict: bool = True
    """An error unless the weights are exactly those of the student's backbone, and of its text tower if they have one;
    otherwise what does not fit is left as drawn at random, and listed."""
    text: bool = True
    """Take the text tower too, if the weights and the student have one."""
