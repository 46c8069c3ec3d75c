"""How a trained student is judged. Not part of a run's fingerprint: one student may be evaluated in several ways."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from distill.recipe.section import Section

Task = Literal["knn", "probe", "zero_shot", "retrieval", "segmentation", "fidelity", "cka", "maps"]
TASKS: tuple[Task, ...] = ("knn", "probe", "zero_shot", "retrieval", "segmentation", "fidelity", "cka", "maps")


class JudgedRecipe(Section):
    """Other pictures to be judged on. None of them may have been trained on; nothing here can check that."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    dataset: str
    """A dataset folder of `curate`, or any WebDataset; local or s3://."""
    train: str | None = None
    """Another one that neighbours and probes learn from; all of `dataset` is then asked about."""
    test_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Without `train`: the share of the duplicate sets that is asked about; the rest is learnt from."""
    label: str | None = None
    """This and the following: as in the section below, whose own holds where nothing is said here."""
    class_names: str | None = None
    texts: list[str] = []
    masks: str | None = None


class EvaluateRecipe(Section):
    tasks: list[Task] = list(TASKS)
    """What to compute, where the data have what it takes."""
    datasets: list[JudgedRecipe] = []
    """Judged on as well as the pictures that the run held out."""
    label: str = "label"
    """Column of the dataset's index; or a member of the tar (`cls`), or a field of its JSON (`json.name`)."""
    class_names: str | None = None
    """A file of lines `label<TAB>name, another name`, for zero-shot; None: the labels' own words."""
    prompts: str | None = None
    """A file of sentences with `{}` where the name goes; None: 22 that come with the package."""
    texts: list[str] = []
    """Members or JSON fields whose texts belong to a picture in retrieval; empty: those of data.sources, also of other
    sets."""
    text_encoders: dict[str, str] = {}
    """By teacher: an encoder whose texts lie in the space of the teacher's summaries, where the teacher itself has no
    text tower ({siglip2: 'open_clip:ViT-SO400M-16-SigLIP2-384/webli'})."""
    masks: str | None = None
    """Segmentation: a member of the tar with a class per pixel as a grey or palette PNG (`seg.png`; 255 is nothing), or
    `alpha`: ground and figure as the picture's own transparency has them. None: no segmentation."""
    k: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(gt=0)] = 0.07
    """Of the neighbours' votes."""
    gamma: Annotated[float, Field(ge=0)] = 5.0
    """How much surer heads count more, where heads answer together."""
    zero_shot_temperature: Annotated[float, Field(gt=0)] = 0.01
    """Of cosines as probabilities, where heads answer together."""
    retrieval_temperature: Annotated[float, Field(gt=0)] | None = None
    """With one (0.01 …), retrieval is also computed with the softmax re-weighting of Perception Encoder."""
    min_train_images: Annotated[int, Field(ge=1)] = 2
    """Test pictures of a class with fewer training pictures are left out of kNN and probe, and counted."""
    max_train_images: Annotated[int, Field(ge=1)] = 50_000
    max_test_images: Annotated[int, Field(ge=1)] = 10_000
    max_mask_images: Annotated[int, Field(ge=1)] = 500
    """Of the pictures that a segmentation probe learns from, and of those that it is asked about."""
    cka_images: Annotated[int, Field(ge=1)] = 24
    cka_layers: Annotated[int, Field(ge=1)] = 8
    """Of a teacher, evenly spread, the last among them."""
    map_images: Annotated[int, Field(ge=1, le=64)] = 6
    """Pictures whose patch features are drawn."""
    map_foreground: bool = False
    """Draw only the side of the first component that covers less: things, not grounds."""

    @model_validator(mode="after")
    def _names(self) -> EvaluateRecipe:
        names = [item.name for item in self.datasets]
        if len(set(names)) < len(names) or "held-out" in names:
            raise ValueError("datasets: a name is given twice, or is 'held-out'; give each its own `name`")
        return self
