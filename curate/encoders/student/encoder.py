"""A distilled model as an encoder: `distill:FOLDER` and `tiny`.

With a text tower, the summary is the embedding that texts are compared with; otherwise it is the student's CLS token.
With `?head=` it is the prediction of that teacher's summary, in the teacher's own space. `?max_tokens=` limits the
number of patches per image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from curate.encoders.base import Features
from curate.encoders.spec import Spec
from curate.encoders.student.model import DistilledModel
from curate.encoders.student.model import load as load_model
from curate.encoders.student.model_folder import head_of
from curate.encoders.torch_encoder import FrozenEncoder, array, one_line, text_features

if TYPE_CHECKING:
    from PIL.Image import Image

_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Tokens of one forward pass: few enough for a CPU's cache, enough to keep a GPU busy."""


def load(spec: Spec, identity: dict[str, Any], device: str) -> DistillEncoder:
    assert spec.path is not None
    with one_line(spec, "load"):
        return DistillEncoder(spec, identity, load_model(spec.path), device)


class _Vectors(NamedTuple):
    """Vectors of a group of images, on the device."""

    summary: torch.Tensor
    patches: list[torch.Tensor] | None
    registers: torch.Tensor | None = None


class DistillEncoder(FrozenEncoder):
    mixed = True
    model: DistilledModel

    def __init__(self, spec: Spec, identity: dict[str, Any], model: DistilledModel, device: str) -> None:
        self._head = head_of(spec)
        model.max_tokens = spec.options.get("max_tokens", model.max_tokens)
        if model.tokenizer is not None and model.config.student.text is not None and self._head is None:
            self.context = model.config.student.text.context
        settings = model.config.preprocessing.model_dump(mode="json", exclude={"decoding"})  # images arrive decoded
        preprocessing = settings | {"max_tokens": model.max_tokens}
        super().__init__(spec, identity, model, preprocessing, device)
        patch = model.config.preprocessing.patch
        self.measure(np.zeros((patch, patch, 3), dtype=np.uint8))

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        """(rows * patch, columns * patch, 3): whole patches, native aspect ratio."""
        return self.model.prepare(image)

    def encode(self, batch: list[NDArray[np.uint8]], *, patches: bool = True) -> Features:
        """Images of any grid; the model takes images of similar size together."""
        if not batch:
            return Features(np.zeros((0, self.dim), dtype=np.float32))
        summaries: dict[int, NDArray[np.float32]] = {}
        grids: dict[int, NDArray[np.float32]] = {}
        registers: dict[int, NDArray[np.float32]] = {}
        for places in self._packs([pixels.shape[0] * pixels.shape[1] for pixels in batch]):
            with torch.inference_mode(), self.guarded(len(places)):
                found = self._forward([batch[place] for place in places])
                summaries.update(zip(places, array(found.summary), strict=True))
                if patches and found.patches is not None:
                    grids.update(zip(places, map(array, found.patches), strict=True))
                if patches and found.registers is not None:
                    registers.update(zip(places, array(found.registers), strict=True))
        order = range(len(batch))
        return Features(
            np.stack([summaries[place] for place in order]),
            [grids[place] for place in order] if grids else None,
            np.stack([registers[place] for place in order]) if registers else None,
        )

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        return text_features(self, texts, self.model.encode_text) if self.context else super().encode_text(texts)

    @property
    def image_vectors(self) -> Callable[..., torch.Tensor] | None:
        """Vectors to compare with texts, from features of a teacher that has this model's weights; None if its summary
        alone is compared."""
        return self._joined if self.context and self.model.config.student.embeds_patches else None

    @property
    def width(self) -> int:
        """Dimensions of those features."""
        return self.model.config.student.width

    def _joined(
        self, summary_BD: torch.Tensor, patches_ND: torch.Tensor, lengths: Sequence[int], *_: Any
    ) -> torch.Tensor:
        """patches: those of all images end to end, `lengths` of each."""
        with torch.inference_mode(), self.guarded(len(lengths)):
            return self.model.student.joined(summary_BD.to(self.device), patches_ND.to(self.device), lengths).float()

    def _forward(self, images: list[NDArray[np.uint8]]) -> _Vectors:
        """Registers only with the CLS token, which has the same width."""
        if self._head is not None:
            return _Vectors(*self.model(images, teachers=[self._head]).teachers[self._head])
        output = self.model(images, teachers=[])
        if output.embedding is not None:
            return _Vectors(output.embedding, output.patches or None)
        return _Vectors(output.summary, output.patches or None, output.registers if output.registers.shape[1] else None)

    def _packs(self, pixels: list[int]) -> Iterator[list[int]]:
        """Positions of images, sorted by size, in groups that fill a forward pass with tokens; at least one each."""
        area, limit = self.model.config.preprocessing.patch**2, _TOKENS[torch.device(self.device).type]
        pack: list[int] = []
        tokens = 0
        for place in sorted(range(len(pixels)), key=pixels.__getitem__):
            count = pixels[place] // area
            if pack and tokens + count > limit:
                yield pack
                pack, tokens = [], 0
            pack.append(place)
            tokens += count
        if pack:
            yield pack
