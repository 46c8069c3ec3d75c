"""Evaluates a run's student, before and after training, next to its teachers; or an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from curate.core.errors import RecipeError
from curate.encoders import load
from curate.encoders.student.model import DistilledModel
from curate.encoders.student.network.student import Student
from distill.context import StageContext
from distill.evaluation.averages import averages
from distill.evaluation.datasets import HELD_OUT, EvaluationSet, open_set
from distill.evaluation.evaluate import Evaluation, evaluate_set
from distill.evaluation.extraction import FeatureExtractor, raise_on_all_ranks, reader_of
from distill.evaluation.models import OWN, EvaluatedModel, StudentModel, TeacherModel, TextEncoder, text_encoder
from distill.evaluation.page import Curves, render_page
from distill.evaluation.result import Result
from distill.evaluation.show import AFTER, BEFORE
from distill.parallel import World
from distill.recipe import EvaluateRecipe, Recipe
from distill.teachers import TargetStandardiser, Teachers


def evaluate_run(
    context: StageContext,
    student: Student,
    standardisers: Sequence[TargetStandardiser],
    curves: Curves | None = None,
) -> tuple[Result, bytes]:
    """The content of evaluation.json, and the page. Every rank calls it and gets the same result.

    context: of the run's last stage; standardisers: of its teachers; curves: of validations during training.
    """
    recipe, settings, teachers = context.recipe, context.recipe.evaluate, context.teachers
    encoders = teachers.encoders
    read: dict[str, TextEncoder] = {name: encoder.encode_text for name, encoder in encoders.items() if encoder.context}
    read |= _named_texts({name: encoder.dim for name, encoder in encoders.items()}, settings, context.world)
    own = dict(read)
    if student.text is not None and context.tokenizer is not None and recipe.student.text is not None:
        own[OWN] = text_encoder(student, context.tokenizer, recipe.student.text.context)
    trained = StudentModel(
        AFTER,
        _in_float32(student),
        teachers=teachers.names,
        standardisers=standardisers,
        poolers=context.poolers(),
        texts=own,
    )
    models: list[EvaluatedModel] = [StudentModel(BEFORE, _in_float32(context.new_student())), trained]
    models += [TeacherModel(name, read.get(name)) for name in teachers.names]
    held_out = EvaluationSet(HELD_OUT, context.dataset, context.test, settings, recipe.seed, recipe.run.workers)
    if settings.sizes:
        evaluations = _at_sizes(recipe, held_out, models, teachers, context.world)
    else:
        extractor = FeatureExtractor(models, teachers, context.reader, context.world, recipe.run.workers)
        evaluations = [evaluate_set(extractor, held_out)]
    evaluations += _other_sets(recipe, models, teachers, context.world)
    return _report(f"{recipe.name}: evaluation", settings, evaluations, curves or {})


def evaluate_model(model: DistilledModel, recipe: Recipe, world: World) -> tuple[Result, bytes]:
    """Evaluates an exported model on `evaluate.datasets` of a recipe that describes it. Its teachers are not available,
    so there is no fidelity; their texts are, if evaluate.text_encoders names encoders."""
    settings = recipe.evaluate
    texts = _named_texts({item.name: item.head.summary for item in model.config.teachers}, settings, world)
    if model.tokenizer is not None and recipe.student.text is not None:
        texts[OWN] = text_encoder(model.student, model.tokenizer, recipe.student.text.context)
    student = StudentModel(
        model.config.name, model.student, teachers=model.teachers, standardisers=model.standardisers,
        poolers=model.poolers, texts=texts,
    )  # fmt: skip
    whole = model.config.preprocessing.decoding == "whole"
    evaluations = _other_sets(recipe, [student], None, world, whole=whole)
    return _report(f"{model.config.name}: evaluation", settings, evaluations, {})


def _in_float32(student: Student) -> Student:
    """In evaluation mode. Features are computed in float32, which `varlen` attention does not support."""
    if student.backbone.attention == "varlen":
        student.backbone.attention = "auto"
    return student.eval()


def _other_sets(
    recipe: Recipe,
    models: Sequence[EvaluatedModel],
    teachers: Teachers | None,
    world: World,
    *,
    whole: bool = False,
) -> list[Evaluation]:
    """The sets of evaluate.datasets, at the largest image size of the recipe. whole: decode JPEGs completely even if no
    teacher needs it, as the run of an exported model did."""
    evaluations = []
    own = list(dict.fromkeys(name for source in recipe.data.sources for name in source.texts))
    settings = recipe.evaluate.model_copy(update={"texts": recipe.evaluate.texts or own})
    for item in recipe.evaluate.datasets:
        open_one = partial(
            open_set, item, settings,
            max_tokens=recipe.data.max_tokens, seed=recipe.seed, workers=recipe.run.workers,
        )  # fmt: skip
        data = raise_on_all_ranks(world, open_one)
        evaluations += _at_sizes(recipe, data, models, teachers, world, whole=whole)
    return evaluations


def _at_sizes(
    recipe: Recipe,
    data: EvaluationSet,
    models: Sequence[EvaluatedModel],
    teachers: Teachers | None,
    world: World,
    *,
    whole: bool = False,
) -> list[Evaluation]:
    """One set at each of evaluate.sizes, or at the limits of its sources."""
    evaluations = []
    sides: list[int | None] = [*recipe.evaluate.sizes] or [None]
    for side in sides:
        sized = data if side is None else replace(data, name=f"{data.name}, {side} px", side=side)
        fresh = None if teachers is None or not teachers.names else teachers.with_empty_cache()
        reader = reader_of(sized, recipe.student.patch, fresh, whole=whole)
        evaluations.append(evaluate_set(FeatureExtractor(models, fresh, reader, world, recipe.run.workers), sized))
    return evaluations


def _named_texts(dims: Mapping[str, int], settings: EvaluateRecipe, world: World) -> dict[str, TextEncoder]:
    """Text encoders that the settings name, by teacher. dims: dimensions of each teacher's summaries."""
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


def _report(
    title: str, settings: EvaluateRecipe, evaluations: Sequence[Evaluation], curves: Curves
) -> tuple[Result, bytes]:
    sets = [item.result for item in evaluations]
    result = {"settings": settings.model_dump(mode="json"), "sets": sets, "averages": averages(sets)}
    return result, render_page(title, result, [item.maps for item in evaluations], curves)
