"""A distilled model as an encoder of curate: `distill:FOLDER` and `tiny`. Reached by name only (see curate.encoders).

The summary is what texts can be compared with where there is a text tower, else the student's CLS token; with `?head=`
it is that teacher's summary as the teacher itself would give it. `?max_tokens=` gives pictures fewer or more patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from curate.encoders.base import Features
from curate.encoders.spec import Spec
from curate.encoders.torch_encoder import FrozenEncoder, array, one_line, text_features
from distill.export.model import DistilledModel
from distill.export.model import load as load_model
from distill.export.model_folder import head_of

if TYPE_CHECKING:
    from PIL.Image import Image

_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Of one forward pass: on a CPU what stays in the cache, on a GPU what keeps it busy."""


def load(spec: Spec, identity: dict[str, Any], device: str) -> DistillEncoder:
    assert spec.path is not None
    with one_line(spec, "load"):
        return DistillEncoder(spec, identity, load_model(spec.path), device)


class DistillEncoder(FrozenEncoder):
    mixed = True
    model: DistilledModel

    def __init__(self, spec: Spec, identity: dict[str, Any], model: DistilledModel, device: str) -> None:
        self._head = head_of(spec)
        model.max_tokens = spec.options.get("max_tokens", model.max_tokens)
        if model.config.student.text is not None and self._head is None:
            self.context = model.config.student.text.context
        figures = model.config.preprocessing.model_dump(mode="json", exclude={"decoding"})  # pictures come decoded
        preprocessing = figures | {"max_tokens": model.max_tokens}
        super().__init__(spec, identity, model, preprocessing, device)
        patch = model.config.preprocessing.patch
        self.measure(np.zeros((patch, patch, 3), dtype=np.uint8))

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        """(rows * patch, columns * patch, 3): whole patches, native aspect."""
        return self.model.prepare(image)

    def encode(self, batch: list[NDArray[np.uint8]], *, patches: bool = True) -> Features:
        """Pictures of any grids; those of similar size go through the model together."""
        if not batch:
            return Features(np.zeros((0, self.dim), dtype=np.float32))
        summaries: dict[int, NDArray[np.float32]] = {}
        grids: dict[int, NDArray[np.float32]] = {}
        registers: dict[int, NDArray[np.float32]] = {}
        for places in self._packs([pixels.shape[0] * pixels.shape[1] for pixels in batch]):
            with torch.inference_mode(), self.guarded(len(places)):
                vectors, own, extra = self._look([batch[place] for place in places])
                summaries.update(zip(places, array(vectors), strict=True))
                if patches and own is not None:
                    grids.update(zip(places, map(array, own), strict=True))
                if patches and extra is not None:
                    registers.update(zip(places, array(extra), strict=True))
        order = range(len(batch))
        return Features(
            np.stack([summaries[place] for place in order]),
            [grids[place] for place in order] if grids else None,
            np.stack([registers[place] for place in order]) if registers else None,
        )

    def encode_text(self, texts: list[str]) -> NDArray[np.float32]:
        return text_features(self, texts, self.model.encode_text) if self.context else super().encode_text(texts)

    def _look(
        self, images: list[NDArray[np.uint8]]
    ) -> tuple[torch.Tensor, list[torch.Tensor] | None, torch.Tensor | None]:
        """Summary, patches, registers; these only beside the CLS token, which is as wide."""
        if self._head is not None:
            return *self.model(images, teachers=[self._head]).teachers[self._head], None
        seen = self.model(images, teachers=[])
        if seen.embedding is not None:
            return seen.embedding, seen.patches, None
        return seen.summary, seen.patches, seen.registers if seen.registers.shape[1] else None

    def _packs(self, pixels: list[int]) -> Iterator[list[int]]:
        """Places of pictures by size, as many together as a pass may have tokens, and at least one."""
        area, limit = self.model.config.preprocessing.patch**2, _TOKENS[torch.device(self.device).type]
        pack: list[int] = []
        tokens = 0
        for place in sorted(range(len(pixels)), key=pixels.__getitem__):
            own = pixels[place] // area
            if pack and tokens + own > limit:
                yield pack
                pack, tokens = [], 0
            pack.append(place)
            tokens += own
        if pack:
            yield pack
