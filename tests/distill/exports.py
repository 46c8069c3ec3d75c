"""Exported models with small random students."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from curate.encoders.student.config import HeadConfig
from curate.encoders.student.model_folder import Trained
from curate.encoders.student.network.student import Student, build_student
from curate.encoders.student.standardise import Standardiser, TargetStandardiser
from curate.encoders.student.tokenizer import Tokenizer
from distill.export import describe, write_model
from distill.recipe import Recipe

TEXTS = ["a red star", "two blue houses", "a star above the house", "a blue star and a red house", "the sea"]
TRAINED = Trained(fingerprint="f" * 32, step=7, ema=False)
HEADS = (HeadConfig(summary=10, patches=None, hidden=16), HeadConfig(summary=12, patches=6, hidden=16))


def recipe(*, text: bool = True, teachers: Sequence[str] = ("plain", "dense"), **student: object) -> Recipe:
    size = {"patch": 8, "width": 32, "depth": 2, "heads": 2, "registers": 2, "head_hidden": 16, "embed": 24}
    tower = {"vocabulary": 300, "context": 12, "width": 16, "depth": 1, "heads": 2}
    source = {"dataset": "nowhere", "max_tokens": 24, "texts": {"txt": 1}}
    return Recipe.model_validate(
        {
            "name": "toy",
            "data": {"sources": [source], "sequence_tokens": 64},
            "student": {**size, **({"text": tower} if text else {}), **student},
            "contrastive": {} if text else None,
            "teachers": [{"encoder": "descriptor", "name": name} for name in teachers],
            "train": {"steps": 1, "warmup_steps": 0},
        }
    )


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, 300)


def standardiser(width: int, seed: int) -> Standardiser:
    """A standardiser with a rotation, like PHI-S."""
    draw = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))[0]
    mean = torch.randn(width, generator=draw, dtype=torch.float64)
    return Standardiser(mean, torch.tensor(2.5, dtype=torch.float64), rotation)


def standardisers(teachers: int) -> list[TargetStandardiser]:
    found = []
    for number, head in enumerate(HEADS[:teachers]):
        patches = standardiser(head.patches, 10 + number) if head.patches else None
        found.append(TargetStandardiser(standardiser(head.summary, number), patches))
    return found


def save_distill(
    folder: Path, *, seed: int = 0, text: bool = True, teachers: Sequence[str] = ("plain", "dense"),
    precision: str = "float32", **size: object,
) -> Student:  # fmt: skip
    """Write a model folder; returns its student."""
    given = recipe(text=text, teachers=teachers, **size)
    heads = HEADS[: len(teachers)]
    student = build_student(given.student, heads, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameter in student.parameters():
            torch.nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 1.0)
    fitted = standardisers(len(teachers))
    config = describe(given, heads, TRAINED, precision)
    write_model(folder, config, student, fitted, tokenizer().json().encode() if text else None)
    return student.eval()
