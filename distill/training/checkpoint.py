"""Checkpoints: complete or absent, the last few kept, and only of the run's own fingerprint.

A folder per step, written aside by all ranks and renamed when it is whole:

state.json            fingerprint, step, place in the data, digests of all files and of itself: damage is seen at once
*.distcp, .metadata   tensors by name (`student.…`, `optimizer.…`, `ema.…`), each rank's shards in its own file

Tensors go through torch.distributed.checkpoint: another number of ranks, or none, reads what they have written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from curate.core.errors import InputError, PinnedError, PreflightError, StorageError
from curate.core.hashing import digest
from distill.teachers import Standards
from distill.training.parallel import World
from distill.training.run_folder import RunFolder

_STATE = "state.json"
_REMEDY = "; remove it to go on before it"
STANDARDS = "standards.pt"
_PATIENCE_SECONDS = 5.0  # network disks show a new file a little later


def save_checkpoint(
    run: RunFolder, values: Mapping[str, Any], tensors: dict[str, Tensor], world: World, keep: int
) -> Path:
    """values: plain ones, the same on every rank, with `fingerprint` and `step`; tensors: sharded or whole.

    Raises StorageError, with nothing left of it, where it cannot be written.
    """
    path = run.checkpoint(values["step"])
    aside = path.with_name(f".{path.name}.tmp")
    try:
        if world.first:
            run.tidy()
            aside.mkdir()
        world.barrier()
        with _alone_without_warning():
            dcp.save(tensors, checkpoint_id=aside, no_dist=world.size == 1)
        parts = world.gather(_digests(sorted(aside.glob(f"__{world.rank}_*"))))
        if world.first:
            files = _digests([aside / ".metadata"]) | {name: found for part in parts for name, found in part.items()}
            _complete(run, aside, path, {**values, "files": files}, keep)
    except (CheckpointException, OSError) as error:
        if world.first:
            shutil.rmtree(aside, ignore_errors=True)
        cause = _cause(error)
        raise StorageError(f"{path} could not be written ({_line(cause)}); {run.again(cause)}") from error
    world.barrier()
    return path


def _complete(run: RunFolder, aside: Path, path: Path, state: dict[str, Any], keep: int) -> None:
    """Give it its name, and remove what is older than the last `keep`."""
    state = json.loads(json.dumps(state))
    (aside / _STATE).write_text(json.dumps({**state, "digest": digest(state)}))
    _sync(aside / _STATE, aside)
    if path.exists():  # the same step, from before it was gone back to; `tidy` brings it back if this is the end
        os.replace(path, path.with_name(f".{path.name}.old"))
    os.replace(aside, path)
    _sync(run.checkpoints)
    run.tidy()
    for old in run.steps()[:-keep]:
        shutil.rmtree(run.checkpoint(old))
    for step, aside in run.damaged():
        if step < run.steps()[0]:
            shutil.rmtree(aside, ignore_errors=True)


def _digests(files: Sequence[Path]) -> dict[str, str]:
    """By name."""

    def one(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()

    with ThreadPoolExecutor(4) as pool:  # hashing releases the interpreter's lock
        return dict(zip([path.name for path in files], pool.map(one, files), strict=True))


def _cause(error: BaseException) -> BaseException:
    """What a checkpoint's reader or writer has met: torch puts it behind the ranks that did, and a system's error
    behind one of its own."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind or error


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


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

    def check(self, wanted: Mapping[str, Tensor], prefix: str) -> None:
        """InputError where what is called `prefix`… is not what a model wants: other names, or other shapes."""
        held = {name: tuple(shape) for name, (shape, _) in self.shapes().items() if name.startswith(prefix)}
        asked = {f"{prefix}{name}": tuple(value.shape) for name, value in wanted.items()}
        for name in sorted(held.keys() | asked.keys()):
            if held.get(name) != asked.get(name):
                sides = [f"of shape {side[name]}" if name in side else "absent" for side in (held, asked)]
                raise InputError(
                    f"{self.path} is of another model: {name.removeprefix(prefix)} is {sides[0]}, and in the recipe's "
                    f"student {sides[1]}; use the recipe that it was trained with, or another run.folder"
                )

    def fill(self, model: nn.Module) -> None:
        """A whole student with the weights to be used. InputError where it is another one."""
        self.check(model.state_dict(), self._prefix)
        model.load_state_dict(self.weights())

    @property
    def _prefix(self) -> str:
        return "ema." if self.averaged else "student."

    def weights(self) -> dict[str, Tensor]:
        """The student's, whole and on the CPU: the moving averages where the run has them."""
        shapes, prefix = self.shapes(), self._prefix
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
            raise _unreadable(self.path, _line(_cause(error))) from error


def last_checkpoint(run: RunFolder, fingerprint: str) -> Checkpoint | None:
    """The newest; None when there is none. Raises PinnedError for another fingerprint, InputError for damage."""
    step = run.last_step()
    return None if step is None else _open(run.checkpoint(step), fingerprint)


def last_whole_checkpoint(run: RunFolder, fingerprint: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest that is not damaged, for the run's only writer; those after it are put aside as `damaged-step-…`,
    until checkpoints of later steps take their place.

    Also a line for each of those. InputError where there are checkpoints and all are damaged.
    """
    damaged: dict[int, InputError] = {}
    for step in reversed(run.steps()):
        try:
            found = _open(run.checkpoint(step), fingerprint)
        except InputError as error:
            damaged[step] = error
            continue
        for number in damaged:
            shutil.rmtree(run.aside(number), ignore_errors=True)
            os.replace(run.checkpoint(number), run.aside(number))
        return found, [
            f"{str(error).removesuffix(_REMEDY)}; it is now called {run.aside(number).name}, going on from step {step}"
            for number, error in damaged.items()
        ]
    if damaged:
        newest = str(next(iter(damaged.values()))).removesuffix(_REMEDY)
        raise InputError(
            f"{newest}; {'none' if len(damaged) > 1 else 'there is none'} before it that is whole: remove "
            f"{run.checkpoints} to begin anew"
        )
    return None, []


def _open(path: Path, fingerprint: str) -> Checkpoint:
    try:
        state = json.loads((path / _STATE).read_text("utf-8"))
        own = state.pop("digest")
        if own != digest(state):
            raise ValueError(f"{_STATE} has been changed")
        found = _digests([path / name for name in state["files"]])
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise _unreadable(path, _line(error)) from error
    if wrong := [name for name, value in state["files"].items() if found[name] != value]:
        raise _unreadable(path, f"{wrong[0]} is not as it was written")
    if state["fingerprint"] != fingerprint:
        raise PinnedError(
            f"{path} is of fingerprint {state['fingerprint']}, this recipe's is {fingerprint}; "
            f"set run.folder to another folder"
        )
    return Checkpoint(path, state)


def check_shared(run: RunFolder, world: World) -> None:
    """PreflightError, on all ranks, where some do not see what the first one writes into the run's folder."""
    if world.size == 1:
        return
    name = world.from_first(lambda: f".token-{uuid.uuid4().hex}")
    token = run.path / name
    if world.first:
        token.touch()
    world.barrier()
    seen = world.gather(_appears(token))
    if world.first:
        token.unlink()
    if not all(seen):
        raise PreflightError(
            f"run.folder: {run.path} is not the same folder for all processes: rank {seen.index(False)} does not see "
            f"what rank 0 writes there; name one on a disk that all of them share"
        )


def _appears(path: Path) -> bool:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.1)
        if path.parent.is_dir():
            os.listdir(path.parent)  # makes network disks look again
    return path.exists()


def save_standards(run: RunFolder, standards: Sequence[Standards]) -> None:
    """Fitted once a run, so they are its artifact and no part of its checkpoints."""
    stream = io.BytesIO()  # torch hides why a file cannot be written
    states = [{name: value.cpu() for name, value in item.state().items()} for item in standards]
    torch.save({"standards": states, "digest": _of_tensors(states)}, stream)
    run.storage.publish_bytes(STANDARDS, stream.getvalue())


def load_standards(run: RunFolder) -> list[Standards] | None:
    """On the CPU; None where none were fitted yet."""
    path = run.path / STANDARDS
    if not path.is_file():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        standards = [Standards.of(state) for state in found["standards"]]
        if found["digest"] != _of_tensors(found["standards"]):
            raise ValueError("not as it was written")
    except Exception as error:  # damage shows as whatever a reader of the format then raises
        raise InputError(f"{path} cannot be read ({type(error).__name__}); remove it: it is fitted anew") from error
    return standards


def _of_tensors(states: Sequence[Mapping[str, Tensor]]) -> str:
    """Of names and bits, since torch reads a file with flipped ones."""
    said = hashlib.blake2b(digest_size=16)
    for number, state in enumerate(states):
        for name, value in sorted(state.items()):
            said.update(f"{number}.{name}{value.dtype}{tuple(value.shape)}".encode())
            said.update(value.contiguous().numpy().tobytes())
    return said.hexdigest()


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"{path} cannot be read ({why}){_REMEDY}")


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
