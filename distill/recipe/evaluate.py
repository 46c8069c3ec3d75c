"""How a trained student is judged. Not part of a run's fingerprint: one student may be evaluated in several ways."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from distill.recipe.section import Section


class EvaluateRecipe(Section):
    label: str = "label"
    """Column of the dataset's index."""
    k: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(gt=0)] = 0.07
    min_train_images: Annotated[int, Field(ge=1)] = 2
    """Test pictures of a class with fewer training pictures are left out, and counted."""
    max_train_images: Annotated[int, Field(ge=1)] = 50_000
    max_test_images: Annotated[int, Field(ge=1)] = 10_000
