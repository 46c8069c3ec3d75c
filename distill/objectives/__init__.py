"""What a student is trained to do: one class per objective, `Objective` is their contract.

An objective is a frozen section of the recipe, as a stage of `curate` is: its fields are its values. Recipes are read
without torch, so the files of objectives import it where they compute; `kernels/` has their losses as functions.
"""

from __future__ import annotations

from distill.objectives.base import Kind, Needs, Objective, Term

__all__ = ["Kind", "Needs", "Objective", "Term"]
