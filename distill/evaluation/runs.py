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
from distill.evaluation.models import EvaluatedModel, StudentModel, TeacherModel, TextSide, text_encoder
from distill.evaluation.page import Curves, render_page
from distill.evaluation.result import Result
from distill.evaluation.show import AFTER, BEFORE
from distill.parallel import World
from distill.recipe import EvaluateRecipe, Recipe
from distill.teachers import TargetStandardiser, Teachers


def evaluate_run(
    context: StageContext, student: Student, standardisers: Sequence[TargetStandardiser], curves: Curves | None = None
) -> tuple[Result, bytes]:
    """The content of evaluation.json, and the page. Every rank calls it and gets the same result.

    context: of the checkpoint's stage; standardisers: of its teachers; curves: of validations during training.
    """
    recipe, settings, teachers = context.recipe, context.recipe.evaluate, context.teachers
    encoders = teachers.encoders
    sides = {name: TextSide(encoder.encode_text) for name, encoder in encoders.items() if encoder.context}
    dims = {
        name: (encoder.dim, None if item.patches is None else encoder.patch_dim)
        for (name, encoder), item in zip(encoders.items(), standardisers, strict=True)
    }
    sides |= _named_sides(dims, settings, context.world)
    tower = None
    if student.text is not None and context.tokenizer is not None and recipe.student.text is not None:
        tower = text_encoder(student, context.tokenizer, recipe.student.text.context)
    trained = StudentModel(
        AFTER,
        _as_evaluated(student, settings),
        teachers=teachers.names,
        standardisers=standardisers,
        poolers=context.poolers(),
        sides=sides,
        tower=tower,
    )
    models: list[EvaluatedModel] = [StudentModel(BEFORE, _as_evaluated(context.new_student(), settings)), trained]
    models += [TeacherModel(name, sides.get(name)) for name in teachers.names]
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
    dims = {item.name: (item.head.summary, item.head.patches) for item in model.config.teachers}
    tower = None
    if model.tokenizer is not None and recipe.student.text is not None:
        tower = text_encoder(model.student, model.tokenizer, recipe.student.text.context)
    student = StudentModel(
        model.config.name, _as_evaluated(model.student, settings), teachers=model.teachers,
        standardisers=model.standardisers, poolers=model.poolers, sides=_named_sides(dims, settings, world),
        tower=tower,
    )  # fmt: skip
    whole = model.config.preprocessing.decoding == "whole"
    evaluations = _other_sets(recipe, [student], None, world, whole=whole)
    return _report(f"{model.config.name}: evaluation", settings, evaluations, {})


def _as_evaluated(student: Student, settings: EvaluateRecipe) -> Student:
    """In evaluation mode, with the settings' reduction of tokens. Features are computed in float32, which `varlen`
    attention does not support."""
    own = student.backbone.reduction
    keep, merge = settings.keep or own.keep, own.merge if settings.merge is None else settings.merge
    student.backbone.reduction = replace(own, keep=keep, merge=merge)
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
    """One set at each of evaluate.sizes, brought to it in each of evaluate.fits, or at the limits of its sources."""
    evaluations = []
    for sized in data.at_sizes():
        fresh = None if teachers is None or not teachers.names else teachers.with_empty_cache()
        reader = reader_of(sized, recipe.student.patch, fresh, whole=whole)
        evaluations.append(evaluate_set(FeatureExtractor(models, fresh, reader, world, recipe.run.workers), sized))
    return evaluations


def _named_sides(
    dims: Mapping[str, tuple[int, int | None]], settings: EvaluateRecipe, world: World
) -> dict[str, TextSide]:
    """Text sides that the settings name, by teacher. dims: dimensions of each teacher's summaries and patches."""
    found: dict[str, TextSide] = {}
    for name, spec in settings.text_encoders.items():
        encoder, (summary, patches) = load(spec, device=str(world.device)), dims[name]
        side = TextSide(encoder.encode_text, getattr(encoder, "image_vectors", None))
        if side.image_vectors is not None:
            width = getattr(encoder, "width", 0)
            if (summary, patches) != (width, width):
                raise RecipeError(
                    f"evaluate.text_encoders: {spec!r} reads summaries and patches of {width} dimensions, {name!r} has "
                    f"{summary} and {patches or 'none'}; name the text side that belongs to it"
                )
        elif encoder.dim != summary:
            raise RecipeError(
                f"evaluate.text_encoders: {spec!r} has vectors of {encoder.dim} dimensions, the summaries of {name!r} "
                f"have {summary}; name the text tower that belongs to it"
            )
        found[name] = side
    return found


def _report(
    title: str, settings: EvaluateRecipe, evaluations: Sequence[Evaluation], curves: Curves
) -> tuple[Result, bytes]:
    sets = [item.result for item in evaluations]
    result = {"settings": settings.model_dump(mode="json"), "sets": sets, "averages": averages(sets)}
    return result, render_page(title, result, [item.maps for item in evaluations], curves)
