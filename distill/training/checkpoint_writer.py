"""Writes checkpoints beside the training: a thread writes a copy of the tensors while the next steps are taken."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from distill.parallel import World
from distill.training.checkpoint import save_checkpoint
from distill.training.run_folder import RunFolder


class CheckpointWriter:
    """At most one checkpoint is being written: the next waits for it. It holds one copy, in the memory of the CPU.

    The block that it is used in ends when nothing is being written any more. Every rank must call its methods in the
    same order; its thread has a separate process group.
    """

    def __init__(self, run: RunFolder, world: World, keep: int) -> None:
        """A collective of all ranks. keep: checkpoints to keep."""
        self._run, self._world, self._keep = run, world.beside(), keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="distill-checkpoint")
        self._writing: Future[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def save(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Start to write a checkpoint. The one before must be complete."""
        assert self._writing is None
        copies = {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
        self._writing = self._pool.submit(self._write, values, copies)

    def _write(self, values: Mapping[str, Any], tensors: dict[str, Tensor]) -> int:
        save_checkpoint(self._run, values, tensors, self._world, self._keep)
        return int(values["step"])

    def complete(self, *, wait: bool = False) -> int | None:
        """The step of a checkpoint that is complete since the last call. Raises StorageError if it could not be
        written."""
        if self._writing is None or not (wait or self._writing.done()):
            return None
        done, self._writing = self._writing, None
        return done.result()
