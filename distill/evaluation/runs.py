"""Who is judged on what: a run's student before and after training beside its teachers, or an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from curate.core.errors import RecipeError
from curate.encoders import load
from distill.evaluation.evaluate import Findings, judge
from distill.evaluation.judged import HELD_OUT, Judged, open_judged
from distill.evaluation.page import render
from distill.evaluation.show import AFTER, BEFORE
from distill.evaluation.subjects import OWN, StudentSubject, Subject, TeacherSubject, text_encoder
from distill.evaluation.tasks.zero_shot import TextEncoder
from distill.evaluation.watchers import Models, agreed
from distill.export.model import DistilledModel
from distill.models.student import Student
from distill.recipe import EvaluateRecipe, Recipe
from distill.samples.images.images import Pictures
from distill.teachers import Standards, Teachers
from distill.training.parallel import World
from distill.workbench import Workbench

Result = dict[str, Any]


def evaluate_run(bench: Workbench, student: Student, standards: Sequence[Standards]) -> tuple[Result, bytes]:
    """What evaluation.json holds, and the page. The same on every rank, all of which have to call it.

    bench: of the run's last stage; standards: of its teachers.
    """
    recipe, settings, teachers = bench.recipe, bench.recipe.evaluate, bench.teachers
    encoders = teachers.encoders
    read = {name: encoder.encode_text for name, encoder in encoders.items() if encoder.context}
    read |= _named_texts({name: encoder.dim for name, encoder in encoders.items()}, settings, bench.world)
    own = dict(read)
    if student.text is not None and bench.tokenizer is not None and recipe.student.text is not None:
        own[OWN] = text_encoder(student, bench.tokenizer, recipe.student.text.context)
    subjects: list[Subject] = [
        StudentSubject(BEFORE, _judged(bench.new_student())),
        StudentSubject(
            AFTER, _judged(student), teachers=teachers.names, standards=standards, poolers=bench.poolers(), texts=own
        ),
        *(TeacherSubject(name, read.get(name)) for name in teachers.names),
    ]
    held_out = Judged(HELD_OUT, bench.dataset, bench.test, settings, recipe.seed, recipe.run.workers)
    models = Models(subjects, teachers, bench.pictures, bench.world, recipe.run.workers)
    findings = [judge(models, held_out), *_others(recipe, subjects, teachers, bench.world)]
    return _report(f"{recipe.name}: evaluation", settings, findings)


def evaluate_model(model: DistilledModel, recipe: Recipe, world: World) -> tuple[Result, bytes]:
    """Of an exported model, on `evaluate.datasets` of a recipe that describes it. Its teachers are not at hand, so
    there is no fidelity to tell; their texts are, where evaluate.text_encoders names encoders."""
    settings = recipe.evaluate
    texts = _named_texts({item.name: item.head.summary for item in model.config.teachers}, settings, world)
    if model.tokenizer is not None and recipe.student.text is not None:
        texts[OWN] = text_encoder(model.student, model.tokenizer, recipe.student.text.context)
    subject = StudentSubject(
        model.config.name, model.student, teachers=model.teachers, standards=model.standards, poolers=model.poolers,
        texts=texts,
    )  # fmt: skip
    whole = model.config.preprocessing.decoding == "whole"
    found = _others(recipe, [subject], None, world, whole=whole)
    return _report(f"{model.config.name}: evaluation", settings, found)


def _judged(student: Student) -> Student:
    """As features are looked at: in float32, which `varlen` does not take."""
    if student.backbone.attention == "varlen":
        student.backbone.attention = "auto"
    return student.eval()


def _others(
    recipe: Recipe, subjects: Sequence[Subject], teachers: Teachers | None, world: World, *, whole: bool = False
) -> list[Findings]:
    """Every other set of pictures, at the largest size of the recipe's own. whole: decode JPEGs whole even where no
    teacher looks at them, as the run of an exported model did."""
    found = []
    own = list(dict.fromkeys(name for source in recipe.data.sources for name in source.texts))
    settings = recipe.evaluate.model_copy(update={"texts": recipe.evaluate.texts or own})
    how: Any = {"max_tokens": recipe.data.max_tokens, "seed": recipe.seed, "workers": recipe.run.workers}
    for other in recipe.evaluate.datasets:
        judged = agreed(world, partial(open_judged, other, settings, **how))
        fresh = None if teachers is None or not teachers.names else teachers.again()
        pictures = Pictures(judged.blend, patch=recipe.student.patch, teachers=fresh, whole=whole)
        found.append(judge(Models(subjects, fresh, pictures, world, recipe.run.workers), judged))
    return found


def _named_texts(dims: Mapping[str, int], settings: EvaluateRecipe, world: World) -> dict[str, TextEncoder]:
    """By teacher, whose summaries have so many dimensions: the text tower that the settings name for it."""
    found: dict[str, TextEncoder] = {}
    for name, spec in settings.text_encoders.items():
        encoder = load(spec, device=str(world.device))
        if encoder.dim != dims[name]:
            raise RecipeError(
                f"evaluate.text_encoders: {spec!r} has vectors of {encoder.dim} dimensions, the summaries of {name!r} "
                f"have {dims[name]}; name the text tower that belongs to it"
            )
        found[name] = encoder.encode_text
    return found


def _report(title: str, settings: EvaluateRecipe, findings: Sequence[Findings]) -> tuple[Result, bytes]:
    result = {"settings": settings.model_dump(mode="json"), "sets": [item.result for item in findings]}
    return result, render(title, result, [item.maps for item in findings])
