"""Evaluation of a trained student. Not part of a run's fingerprint: a student may be evaluated in several ways."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from curate.core.contracts import Added, Runtime
from curate.core.recipe.section import Section

Task = Literal["knn", "probe", "zero_shot", "retrieval", "segmentation", "fidelity", "cka", "maps"]
TASKS: tuple[Task, ...] = ("knn", "probe", "zero_shot", "retrieval", "segmentation", "fidelity", "cka", "maps")


Fit = Literal["native", "crop", "squash"]


class EvaluationDataset(Section):
    """A further dataset to evaluate on. Its images must not be training images, which is not checked."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    dataset: str
    """A dataset folder of `curate`, or any WebDataset; local or s3://."""
    train: str | None = None
    """A separate dataset of training images for kNN and probes; all of `dataset` is then test images."""
    test_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Without `train`: share of the duplicate sets that are test images; the others are training images."""
    label: str | None = None
    """This and the following override the same settings of `evaluate`."""
    class_names: str | None = None
    texts: list[str] = []
    masks: str | None = None


class EvaluateRecipe(Section):
    tasks: list[Task] = list(TASKS)
    """Tasks to run, if the data have what they need."""
    every: Annotated[int, Runtime(), Field(ge=0)] = 0
    """Steps of training between two validations of the student: those of `tasks` that are kNN or zero-shot, as curves
    in the metrics; 0: only after training. They change neither training nor its fingerprint."""
    every_images: Annotated[int, Runtime(), Field(ge=1)] = 1000
    """Most test images, and most training images of kNN, of a validation."""
    datasets: list[EvaluationDataset] = []
    """Datasets to evaluate on, in addition to the images that the run held out."""
    sizes: list[Annotated[int, Field(ge=1)]] = []
    """Resolutions to evaluate each dataset at, in pixels ([256, 512, 2048]): images are scaled, up or down, to about as
    many pixels as a square of this side, with their aspect kept. Empty: at most the run's largest, never up."""
    keep: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Added()] = None
    """`student.keep` of the evaluated student; None: as trained."""
    merge: Annotated[Annotated[int, Field(ge=0)] | None, Added()] = None
    """`student.merge` of the evaluated student; None: as trained."""
    fits: Annotated[list[Fit], Field(min_length=1)] = ["native"]
    """How images are brought to these resolutions; each set is evaluated in each way. crop: the centre square; squash:
    a square without the aspect ratio. Perception Encoder reports the better of these two (appendix B.1.2)."""
    label: str = "label"
    """Column of the dataset's index, member of the tar (`cls`), or field of its JSON (`json.name`)."""
    class_names: str | None = None
    """A file of lines `label<TAB>name, another name`, for zero-shot; None: the labels themselves."""
    prompts: str | None = None
    """A file of sentences with `{}` where the name goes, or a list of open_clip by name
    (`open_clip:OPENAI_IMAGENET_TEMPLATES`); None: the 22 of the package."""
    texts: list[str] = []
    """Texts of an image for retrieval, by name as in data.sources: members, JSON fields or kinds of `caption.mix`;
    empty: those of data.sources, for every dataset."""
    text_encoders: dict[str, str] = {}
    """By teacher: an encoder with texts in the space of the teacher's summaries, for teachers without a text tower
    ({siglip2: 'hf:google/siglip2-so400m-patch16-naflex'}), or dino.txt, which has other vectors for the images
    ({dinov3: 'curate.encoders.dino_text:DinoText@weights/dinotxt.pth'})."""
    masks: str | None = None
    """Segmentation: a member of the tar with a class per pixel as a grey or palette PNG (`seg.png`; 255 is nothing), or
    `alpha`: foreground and background by the image's transparency. None: no segmentation."""
    k: Annotated[int, Field(ge=1)] = 20
    temperature: Annotated[float, Field(gt=0)] = 0.07
    """Temperature of the neighbours' votes, and of the certainty of their shares in the ensemble of heads."""
    gamma: Annotated[float, Field(ge=0)] = 5.0
    """Weight of confidence in the ensemble of heads (0: all heads count the same)."""
    ensemble_temperature: Annotated[float, Field(gt=0)] = 0.01
    """Temperature of the softmax of cosines whose entropy is a head's certainty, in zero-shot and retrieval."""
    retrieval_temperature: Annotated[float, Field(gt=0)] | None = None
    """If set, retrieval is also computed with the softmax re-weighting (DSL) of Perception Encoder, for images and
    videos (appendix B.1.2: scores * softmax(scores), so 1.0 for cosines, 0.01 for logits of a scale of 100)."""
    min_train_images: Annotated[int, Field(ge=1)] = 2
    """Test images of classes with fewer training images are left out of kNN and probe, and counted."""
    probes: Annotated[list[Literal["ridge", "linear", "attention"]], Field(min_length=1)] = ["ridge"]
    """Classifiers of the task `probe`. ridge: a linear layer on the summary, in closed form; linear: the same, trained
    for some epochs; attention: a learned query over the patches, and a linear layer, trained too (Perception
    Encoder, section 2.5)."""
    probe_epochs: Annotated[int, Field(ge=1)] = 10
    """This and the following are for trained probes; the learning rate falls to 0 along a cosine."""
    probe_batch: Annotated[int, Field(ge=1)] = 1024
    probe_optimizer: Literal["adamw", "sgd"] = "adamw"
    probe_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    probe_weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_attention_images: Annotated[int, Field(ge=1)] = 10_000
    """Most training images of the attention probe. Their patches are held in memory, shared out among the ranks: 0.4 MB
    an image and model at 256 px and 768 dimensions."""
    max_train_images: Annotated[int, Field(ge=1)] = 100_000
    """Most training images of kNN and probe; AMoE takes 100,000 of ImageNet (section 4)."""
    max_test_images: Annotated[int, Field(ge=1)] = 50_000
    """Most test images; ImageNet has 50,000."""
    max_mask_images: Annotated[int, Field(ge=1)] = 500
    """Most training images, and most test images, of a segmentation probe."""
    segmentation_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs of a second segmentation layer, trained by gradient descent (AMoE: 10); 0: only the closed form. Features
    of its training images are held in memory, shared out among the ranks: 1.5 MB an image and model at 512 px and 768
    dimensions."""
    segmentation_batch: Annotated[int, Field(ge=1)] = 32
    """Images of a step of that training."""
    segmentation_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    cka_images: Annotated[int, Field(ge=1)] = 24
    cka_layers: Annotated[int, Field(ge=1)] | None = 8
    """Layers of a teacher, evenly spaced, including the last; null: all."""
    cka_student_layers: list[Annotated[int, Field(ge=1)]] = []
    """Layers of the student, counted from 1; empty: all."""
    cka_clip: Annotated[float, Field(gt=0)] | None = None
    """If set (such as 10), teachers' features are compared a second time, clipped to [-cka_clip, cka_clip]."""
    cka_estimate: Literal["unbiased", "covariance"] = "unbiased"
    """`covariance`: Eq. 8 of AMoE over all tokens, for many images (1,000): any two wide layers look similar on few
    tokens. `unbiased`: an average over minibatches, for few images."""
    map_images: Annotated[int, Field(ge=1, le=64)] = 6
    """Images whose patch features are shown as maps."""
    map_foreground: bool = False
    """Show only the smaller side of the first component: objects rather than background."""
    map_low_pass: bool = False
    """Show half of the features and half of their Gaussian blur, which hides noise (Perception Encoder)."""
    map_colours: Literal["rgb", "lch"] = "rgb"
    """Colours of the three components: red, green and blue; or lightness, chroma and hue (Perception Encoder)."""

    @model_validator(mode="after")
    def _names(self) -> EvaluateRecipe:
        names = [item.name for item in self.datasets]
        if len(set(names)) < len(names) or "held-out" in names:
            raise ValueError("datasets: two have the same name, or one is 'held-out'; give each its own `name`")
        return self

    @model_validator(mode="after")
    def _fits(self) -> EvaluateRecipe:
        if self.fits != ["native"] and not self.sizes:
            raise ValueError(f"fits: {', '.join(self.fits)} need a side in pixels; set `sizes`, as in [224]")
        if len(set(self.fits)) < len(self.fits):
            raise ValueError(f"fits: {', '.join(self.fits)}; name each once")
        return self
