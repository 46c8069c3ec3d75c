"""A teacher: its encoder, the standardisation of its features, and the losses against them."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from curate.core.contracts import Runtime
from curate.core.recipe.section import Section, Weight
from distill.objectives import Kind, Objective
from distill.objectives.arkd import Arkd
from distill.objectives.distillation import Distillation, TermRecipe
from distill.objectives.rkd import Rkd

LOSSES = ("summary", "patches", "registers", "relations")
"""Settings of a teacher that a stage may change."""


class RelationsRecipe(Section):
    """A loss on distances between images, student against teacher, over the global batch."""

    weight: Weight = 1.0
    kind: Literal["arkd", "rkd", "none"] = "none"
    """arkd: asymmetric (AMoE Eq. 7); rkd: symmetric (Park et al. 2019, distance-wise)."""


class TeacherRecipe(Section):
    encoder: Annotated[str, Runtime()]
    """A curate encoder: descriptor, tiny, timm:NAME, open_clip:NAME, hf:NAME, distill:PATH or a class
    (package.module:Class), any with @PATH to a local checkpoint. Its identity (name, digest of its weights,
    preprocessing) enters the fingerprint, its path does not."""
    name: Annotated[str | None, Field(pattern=r"^[\w.-]+$")] = None
    """Name of its losses and heads; None: the encoder's."""
    called: Annotated[str | None, Runtime()] = None
    """The encoder as originally given, if a run has made its path absolute; its name unless `name` is set."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    keep: Literal["float32", "float16"] = "float32"
    """Precision of kept patch features, in memory and on disk (`distill teach`): float16 rounds them to 11 bits and
    needs half the space."""
    pictures: Literal["own", "student"] = "own"
    """Images that the teacher sees. own: prepared as in its training (often square). student: the student's pixels, at
    native aspect, with the teacher's normalisation; for timm's models of dynamic size with the student's patch."""
    standardise: Literal["phi_s", "scale", "none"] = "phi_s"
    """Standardisation of targets: PHI-S (Ranzinger et al. 2024); centred and divided by one scale; or none."""
    standardised: list[Kind] = ["summary", "patches"]
    """Kinds of features that are standardised; the others are learned in the teacher's own space. Registers that are
    included are centred one by one and divided by one scale: by default they are not, because those of DINOv3 have
    several modes (AMoE, sections 3.2 and 6; see `distill targets`)."""
    summary: TermRecipe = TermRecipe(loss="cosine")
    patches: TermRecipe = TermRecipe()
    registers: TermRecipe = TermRecipe()
    """Only for teachers with as many registers as the student."""
    relations: RelationsRecipe = RelationsRecipe()
    pooler: bool = False
    """The student's summary is the teacher's own frozen attention pooler over its projected patches, out of PHI-S space
    (SigLIP2's)."""

    @field_validator("standardised")
    @classmethod
    def _in_order(cls, value: list[Kind]) -> list[Kind]:
        return [kind for kind in get_args(Kind) if kind in value]

    @property
    def kinds(self) -> list[Kind]:
        """Kinds of features that are standardised."""
        return [] if self.standardise == "none" else self.standardised

    @property
    def label(self) -> str:
        return self.name or self.called or self.encoder

    @property
    def objectives(self) -> list[Objective]:
        """Its losses. Relations that the student is not trained on have weight 0: they are only logged (AMoE, Fig. 5),
        as ARKD without a `kind`."""
        features = Distillation(
            teacher=self.label, summary=self.summary, patches=self.patches, registers=self.registers, pooler=self.pooler
        )
        weight = 0.0 if self.relations.kind == "none" else self.relations.weight
        relations = Rkd if self.relations.kind == "rkd" else Arkd
        return [features, relations(teacher=self.label, weight=weight)]
