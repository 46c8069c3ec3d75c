"""Base classes of the encoders that run on torch: device, precision, normalisation, memory errors.

Images are sent to the device as bytes (uint8, C x H x W) and normalised there: a quarter of the memory and bandwidth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from curate.core.errors import CurateError, InputError
from curate.encoders.base import Encoder, Features, resolve_device
from curate.encoders.spec import Spec

_CHARACTERS_PER_TOKEN = 16
"""Upper bound of characters per token; texts of words have 3 to 6 on average."""
_EXPECTED = (OSError, RuntimeError, ValueError, TypeError, KeyError, AssertionError)
"""Errors about models and checkpoints, in our code as in libraries."""
_BUGS = (AttributeError, NameError, LookupError, ArithmeticError)
"""Errors that are bugs when our own code raises them."""
_PACKAGE = __name__.partition(".")[0]
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class DeviceFeatures(NamedTuple):
    """`Features` on the device."""

    summary: torch.Tensor
    patches: torch.Tensor | None = None
    registers: torch.Tensor | None = None


class FrozenEncoder(Encoder):
    """A module in evaluation mode on its device, in its precision. Subclasses define `encode` and call `measure`."""

    def __init__(
        self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, preprocessing: dict[str, Any], device: str
    ) -> None:
        super().__init__(spec, identity, resolve_device(device))
        self.model = model.eval().requires_grad_(False).to(self.device)
        self._preprocessing = preprocessing

    @property
    def preprocessing(self) -> dict[str, Any]:
        return dict(self._preprocessing)

    def measure(self, prepared: NDArray[np.uint8]) -> None:
        """Set the dimensions by encoding one prepared image."""
        features = self.encode([prepared])
        self.dim = features.summary.shape[1]
        self.patch_dim = None if features.patches is None else features.patches[0].shape[-1]
        self.registers = 0 if features.registers is None else features.registers.shape[1]

    @contextmanager
    def guarded(self, rows: int) -> Iterator[None]:
        """Autocast to the precision; raise CurateError with the remedy if the GPU runs out of memory."""
        device, dtype = torch.device(self.device), _DTYPES.get(self.precision)
        try:
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                yield
        except torch.OutOfMemoryError as error:
            raise CurateError(
                f"encoder: {self.spec!r} ran out of GPU memory on {rows} samples in {self.precision};"
                " lower batch_size, or set precision: bfloat16"
            ) from error


class TorchEncoder(FrozenEncoder):
    """Images of one shape. Subclasses define `forward` (and `encode_text`) for tensors on the device."""

    def __init__(
        self, spec: Spec, identity: dict[str, Any], model: torch.nn.Module, preprocessing: dict[str, Any], device: str
    ) -> None:
        super().__init__(spec, identity, model, preprocessing, device)
        self._mean_C11 = self._channels(preprocessing["mean"])
        self._std_C11 = self._channels(preprocessing["std"])
        self.measure(np.zeros((3, *preprocessing["size"]), dtype=np.uint8))

    @abstractmethod
    def forward(self, pixels_BCHW: torch.Tensor, patches: bool) -> DeviceFeatures:
        """Normalised images -> their features, with patches and registers only if `patches`."""

    def encode(self, batch: list[NDArray[np.uint8]], *, patches: bool = True) -> Features:
        if not batch:
            return Features(np.zeros((0, self.dim), dtype=np.float32))
        with torch.inference_mode(), self.guarded(len(batch)):
            pixels = torch.from_numpy(np.stack(batch)).to(self.device, non_blocking=True)
            found = self.forward(self.normalise(pixels), patches)
            grid, registers = (
                array(kind) if patches and kind is not None else None for kind in (found.patches, found.registers)
            )
            return Features(array(found.summary), grid, registers)

    def normalise(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Bytes -> float32, normalised by the model's mean and standard deviation as torchvision's transforms do."""
        return pixels_BCHW.float().div_(255).sub_(self._mean_C11).div_(self._std_C11)

    def _channels(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)[:, None, None]


def grid_of(tokens_BND: torch.Tensor, height: int, width: int) -> torch.Tensor | None:
    """Patch tokens of height x width images -> (B, h, w, D) with the images' aspect; None if they form no grid."""
    batch, count, dim = tokens_BND.shape
    rows = round((count * height / width) ** 0.5)
    if rows == 0 or count % rows:
        return None
    return tokens_BND.reshape(batch, rows, count // rows, dim)


@contextmanager
def one_line(spec: Spec, what: str) -> Iterator[None]:
    """Turn a library's error about a model or checkpoint, which may be pages of key names, into one InputError."""
    try:
        yield
    except (CurateError, MemoryError):
        raise
    except Exception as error:  # a library may raise anything for options or weights that it cannot use
        if not isinstance(error, _EXPECTED) and _is_ours(error):
            raise
        text = " ".join(str(error).split())
        reason = text if len(text) < 300 else f"{text[:300]} …"
        where = f" at {spec.path!r}" if spec.path else ""
        raise InputError(f"encoder: cannot {what} {spec.public!r}{where}: {reason or type(error).__name__}") from error


def _is_ours(error: Exception) -> bool:
    """Whether the error is a bug in our code, which includes reading an attribute that a library's object lacks."""
    names = [(frame.f_globals.get("__name__", ""), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)]
    module = next(module for module, function in reversed(names) if function != "__getattr__")
    return isinstance(error, _BUGS) and module.partition(".")[0] == _PACKAGE


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Random initialisation that depends on the seed only and leaves the process's generator unchanged."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.float().cpu().numpy()


def text_features(
    encoder: FrozenEncoder, texts: list[str], compute: Callable[[list[str]], torch.Tensor]
) -> NDArray[np.float32]:
    """(B, D) of `compute(texts)`, with the encoder's precision and errors.

    Characters beyond the context are cut here, because CLIP's tokenizer takes quadratic time in the length of a word.
    """
    if not texts:
        return np.zeros((0, encoder.dim), dtype=np.float32)
    with torch.inference_mode(), encoder.guarded(len(texts)):
        return array(compute([text[: _CHARACTERS_PER_TOKEN * encoder.context] for text in texts]))
