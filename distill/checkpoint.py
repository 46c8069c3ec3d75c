"""Checkpoints: complete or absent, the last few kept, and only of the run's own fingerprint.

A folder per step, written aside by all ranks and renamed when it is whole:

state.json            fingerprint, step, place in the data, and the sizes of files: damage is seen before reading
*.distcp, .metadata   tensors by name (`student.…`, `optimizer.…`, `ema.…`), each rank's shards in its own file

Tensors go through torch.distributed.checkpoint: another number of ranks, or none, reads what they have written.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from curate.core.errors import InputError, PinnedError
from distill.folder import RunFolder
from distill.parallel import World
from distill.teachers import Standards

_STATE = "state.json"
_STANDARDS = "standards.pt"


def save_checkpoint(
    run: RunFolder, values: Mapping[str, Any], tensors: dict[str, Tensor], world: World, keep: int
) -> Path:
    """values: plain ones, the same on every rank, with `fingerprint` and `step`; tensors: sharded or whole."""
    path = run.checkpoints / f"step-{values['step']:08d}"
    aside = path.with_name(f".{path.name}.tmp")
    if world.first:
        for left in run.checkpoints.glob(".step-*.tmp"):  # of runs that were killed while writing
            shutil.rmtree(left)
        aside.mkdir()
    world.barrier()
    with _alone_without_warning():
        dcp.save(tensors, checkpoint_id=aside, no_dist=world.size == 1)
    if world.first:
        sizes = {item.name: item.stat().st_size for item in aside.iterdir()}
        (aside / _STATE).write_text(json.dumps({**values, "sizes": sizes}))
        _sync(aside / _STATE, aside)
        if path.exists():  # the same step, from before it was gone back to
            shutil.rmtree(path)
        os.replace(aside, path)
        _sync(run.checkpoints)
        for old in run.steps()[:-keep]:
            shutil.rmtree(run.checkpoints / f"step-{old:08d}")
    world.barrier()
    return path


class Checkpoint:
    """One that is whole and of the run's own fingerprint."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    @property
    def averaged(self) -> bool:
        """It has moving averages of the weights."""
        return bool(self.values["averaged"])

    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Of every tensor in it, by name."""
        with self._readable():
            entries = dcp.FileSystemReader(self.path).read_metadata().state_dict_metadata
        return {
            name: (entry.size, entry.properties.dtype)
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def load(self, tensors: dict[str, Tensor], world: World | None = None) -> None:
        """Fill tensors, sharded or whole, by name. A collective of all ranks when a world is given."""
        with self._readable(), _alone_without_warning():
            dcp.load(tensors, checkpoint_id=self.path, no_dist=world is None or world.size == 1)

    def weights(self) -> dict[str, Tensor]:
        """The student's, whole and on the CPU: the moving averages where the run has them."""
        shapes = self.shapes()
        prefix = "ema." if self.averaged else "student."
        found = {
            name: torch.empty(shape, dtype=dtype)
            for name, (shape, dtype) in shapes.items() if name.startswith(prefix)
        }  # fmt: skip
        self.load(found)
        return {name.removeprefix(prefix): value for name, value in found.items()}

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (Exception, CheckpointException) as error:  # damage shows as whatever a reader of the format then raises
            raise _unreadable(self.path, f"{type(error).__name__}: {error}") from error


def last_checkpoint(run: RunFolder, fingerprint: str) -> Checkpoint | None:
    """The newest; None when there is none. Raises PinnedError for another fingerprint, InputError for damage."""
    steps = run.steps()
    if not steps:
        return None
    path = run.checkpoints / f"step-{steps[-1]:08d}"
    try:
        values = json.loads((path / _STATE).read_text())
        wrong = [name for name, size in values["sizes"].items() if (path / name).stat().st_size != size]
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if wrong:
        raise _unreadable(path, f"{wrong[0]} is not as long as it was written")
    if values["fingerprint"] != fingerprint:
        raise PinnedError(
            f"{path} is of fingerprint {values['fingerprint']}, this recipe's is {fingerprint}; "
            f"set run.folder to another folder"
        )
    return Checkpoint(path, values)


def save_standards(run: RunFolder, standards: Sequence[Standards]) -> None:
    """Fitted once a run, so they are its artifact and no part of its checkpoints."""
    with run.storage.publish(_STANDARDS) as aside:
        torch.save([item.state() for item in standards], aside)


def load_standards(run: RunFolder) -> list[Standards] | None:
    """On the CPU; None where none were fitted yet."""
    path = run.path / _STANDARDS
    if not path.is_file():
        return None
    try:
        return [Standards.of(state) for state in torch.load(path, map_location="cpu", weights_only=True)]
    except (RuntimeError, EOFError, pickle.UnpicklingError, AssertionError) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}); remove it: it is fitted anew") from error


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"{path} cannot be read ({why.splitlines()[0]}); remove it to go on before it")


@contextmanager
def _alone_without_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
