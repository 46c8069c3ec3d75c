"""Checkpoints: published atomically, bound to the run's fingerprint; only the last few are kept.

All ranks write a folder per step under a temporary name; it is renamed when it is complete:

state.json            fingerprint, step, position in the data, digests of all files and of itself, to detect corruption
*.distcp, .metadata   tensors by name (`student.…`, `optimizer.…`, `ema.…`), each rank's shards in a separate file

Tensors are written by torch.distributed.checkpoint, so any number of ranks, or a single process, can read them.
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
from distill.parallel import World
from distill.teachers import TargetStandardiser
from distill.training.run_folder import RunFolder

_STATE = "state.json"
_REMEDY = "; remove it to resume from the checkpoint before it"
STANDARDS = "standards.pt"
_PATIENCE_SECONDS = 5.0  # network disks show a new file with a delay


def save_checkpoint(
    run: RunFolder, values: Mapping[str, Any], tensors: dict[str, Tensor], world: World, keep: int = 0
) -> Path:
    """values: JSON values, the same on every rank, with `fingerprint` and `step`; tensors: sharded or replicated; keep:
    number of checkpoints to keep; 0 for the state before a step that is not finite, which is kept apart.

    Raises StorageError if it cannot be written, and then leaves nothing behind.
    """
    path = run.checkpoint(values["step"]) if keep else run.captured_path(values["step"] + 1)
    partial = path.with_name(f".{path.name}.tmp")
    try:
        if world.first:
            run.clean_up()
            partial.mkdir()
        world.barrier()
        with _no_dist_warning():
            dcp.save(tensors, checkpoint_id=partial, no_dist=world.size == 1, process_group=world.group)
        parts = world.gather(_digests(sorted(partial.glob(f"__{world.rank}_*"))))
        if world.first:
            files = _digests([partial / ".metadata"])
            for part in parts:
                files |= part
            _publish(run, partial, path, {**values, "files": files}, keep)
    except (CheckpointException, OSError) as error:
        if world.first:
            shutil.rmtree(partial, ignore_errors=True)
        cause = _cause(error)
        raise StorageError(f"cannot write {path} ({_line(cause)}); {run.remedy(cause)}") from error
    world.barrier()
    return path


def _publish(run: RunFolder, partial: Path, path: Path, state: dict[str, Any], keep: int) -> None:
    """Rename the complete checkpoint, and remove all but the last `keep` if it is one of them."""
    state = json.loads(json.dumps(state))
    (partial / _STATE).write_text(json.dumps({**state, "digest": digest(state)}))
    _sync(partial / _STATE, partial)
    if path.exists():  # the step was repeated; if the process is killed here, `clean_up` restores the old one
        os.replace(path, path.with_name(f".{path.name}.old"))
    os.replace(partial, path)
    _sync(path.parent)
    run.clean_up()
    for old in [] if not keep else run.steps()[:-keep]:
        shutil.rmtree(run.checkpoint(old))
    for step, corrupt in run.corrupt_checkpoints():
        if keep and step < run.steps()[0]:
            shutil.rmtree(corrupt, ignore_errors=True)


def _digests(files: Sequence[Path]) -> dict[str, str]:
    """Digests by file name."""

    def digest_of(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()

    with ThreadPoolExecutor(4) as pool:  # hashing releases the GIL
        return dict(zip([path.name for path in files], pool.map(digest_of, files), strict=True))


def _cause(error: BaseException) -> BaseException:
    """The error of a checkpoint's reader or writer. torch wraps it in an error per rank, and an OSError once more."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class Checkpoint:
    """A complete checkpoint with the run's fingerprint."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    @property
    def averaged(self) -> bool:
        """Whether it has moving averages of the weights."""
        return bool(self.values["averaged"])

    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of every tensor in it, by name."""
        with self._readable():
            entries = dcp.FileSystemReader(self.path).read_metadata().state_dict_metadata
        return {
            name: (entry.size, entry.properties.dtype)
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def load(self, tensors: dict[str, Tensor], world: World | None = None) -> None:
        """Fill the given tensors, sharded or replicated, by name. A collective of all ranks if `world` is given."""
        with self._readable(), _no_dist_warning():
            dcp.load(tensors, checkpoint_id=self.path, no_dist=world is None or world.size == 1)

    def check(self, expected: Mapping[str, Tensor], prefix: str) -> None:
        """InputError if its tensors named `prefix`… differ from a model's state in name or shape."""
        held = {name: tuple(shape) for name, (shape, _) in self.shapes().items() if name.startswith(prefix)}
        needed = {f"{prefix}{name}": tuple(value.shape) for name, value in expected.items()}
        for name in sorted(held.keys() | needed.keys()):
            if held.get(name) != needed.get(name):
                sides = [f"has shape {side[name]}" if name in side else "is missing" for side in (held, needed)]
                raise InputError(
                    f"{self.path} is a checkpoint of another model: {name.removeprefix(prefix)} {sides[0]} there and "
                    f"{sides[1]} in the recipe's student; use the recipe it was trained with, or another run.folder"
                )

    def fill(self, model: nn.Module) -> None:
        """Load `weights` into a student that is not sharded. InputError if they are another student's."""
        self.check(model.state_dict(), self._prefix)
        model.load_state_dict(self.weights())

    @property
    def _prefix(self) -> str:
        return "ema." if self.averaged else "student."

    def weights(self) -> dict[str, Tensor]:
        """The student's unsharded weights on the CPU; their moving averages if the run has them."""
        shapes, prefix = self.shapes(), self._prefix
        weights = {
            name: torch.empty(shape, dtype=dtype)
            for name, (shape, dtype) in shapes.items() if name.startswith(prefix)
        }  # fmt: skip
        self.load(weights)
        return {name.removeprefix(prefix): value for name, value in weights.items()}

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (Exception, CheckpointException) as error:  # a corrupt file can make torch's readers raise anything
            raise _unreadable(self.path, _line(_cause(error))) from error


def last_checkpoint(run: RunFolder, fingerprint: str) -> Checkpoint | None:
    """The newest checkpoint, or None. Raises PinnedError for another fingerprint, InputError if it is corrupt."""
    step = run.last_step()
    return None if step is None else open_checkpoint(run.checkpoint(step), fingerprint)


def last_valid_checkpoint(run: RunFolder, fingerprint: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is not corrupt, and a warning for each one that is. For the run's only writer.

    Corrupt ones are renamed `damaged-step-…`; they are removed once only checkpoints of later steps are left.
    InputError if all checkpoints are corrupt.
    """
    corrupt: dict[int, InputError] = {}
    for step in reversed(run.steps()):
        try:
            found = open_checkpoint(run.checkpoint(step), fingerprint)
        except InputError as error:
            corrupt[step] = error
            continue
        for number in corrupt:
            shutil.rmtree(run.corrupt_path(number), ignore_errors=True)
            os.replace(run.checkpoint(number), run.corrupt_path(number))
        return found, [
            f"{str(error).removesuffix(_REMEDY)}; renamed it {run.corrupt_path(number).name}, resuming from step {step}"
            for number, error in corrupt.items()
        ]
    if corrupt:
        newest = str(next(iter(corrupt.values()))).removesuffix(_REMEDY)
        raise InputError(f"{newest}; no valid checkpoint before it: remove {run.checkpoints} to train from the start")
    return None, []


def open_checkpoint(path: Path, fingerprint: str) -> Checkpoint:
    """Raises PinnedError for another fingerprint, InputError if it is corrupt."""
    try:
        state = json.loads((path / _STATE).read_text("utf-8"))
        own = state.pop("digest")
        if own != digest(state):
            raise ValueError(f"{_STATE} is corrupt (checksum mismatch)")
        found = _digests([path / name for name in state["files"]])
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise _unreadable(path, _line(error)) from error
    if wrong := [name for name, value in state["files"].items() if found[name] != value]:
        raise _unreadable(path, f"{wrong[0]} is corrupt (checksum mismatch)")
    if state["fingerprint"] != fingerprint:
        raise PinnedError(
            f"{path} has fingerprint {state['fingerprint']}, this recipe has {fingerprint}; set run.folder to another "
            f"folder"
        )
    return Checkpoint(path, state)


def check_shared(run: RunFolder, world: World) -> None:
    """PreflightError, on all ranks, if some rank does not see the files that rank 0 writes into the run's folder."""
    if world.size == 1:
        return
    name = world.from_first(lambda: f".token-{uuid.uuid4().hex}")
    token = run.path / name
    if world.first:
        token.touch()
    world.barrier()
    visible = world.gather(_appears(token))
    if world.first:
        token.unlink()
    if not all(visible):
        raise PreflightError(
            f"run.folder: {run.path} is not the same folder for all processes: rank {visible.index(False)} does not "
            f"see the files of rank 0; name a folder on a disk that all processes share"
        )


def _appears(path: Path) -> bool:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.1)
        if path.parent.is_dir():
            os.listdir(path.parent)  # makes network disks refresh the folder
    return path.exists()


def save_standardisers(run: RunFolder, standardisers: Sequence[TargetStandardiser]) -> None:
    """They are fitted once per run, so they are an artifact of the run and not part of its checkpoints."""
    stream = io.BytesIO()  # torch.save to a file would hide the cause of a write error
    states = [{name: value.cpu() for name, value in item.state().items()} for item in standardisers]
    torch.save({"standards": states, "digest": _tensors_digest(states)}, stream)
    run.storage.publish_bytes(STANDARDS, stream.getvalue())


def load_standardisers(run: RunFolder) -> list[TargetStandardiser] | None:
    """On the CPU; None if they are not fitted yet."""
    path = run.path / STANDARDS
    if not path.is_file():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        standardisers = [TargetStandardiser.of(state) for state in content["standards"]]
        if content["digest"] != _tensors_digest(content["standards"]):
            raise ValueError("checksum mismatch")
    except Exception as error:  # a corrupt file can make torch.load raise anything
        raise InputError(f"cannot read {path} ({type(error).__name__}); remove it to refit") from error
    return standardisers


def _tensors_digest(states: Sequence[Mapping[str, Tensor]]) -> str:
    """Digest of names and values; torch.load does not detect flipped bits."""
    hasher = hashlib.blake2b(digest_size=16)
    for number, state in enumerate(states):
        for name, value in sorted(state.items()):
            hasher.update(f"{number}.{name}{value.dtype}{tuple(value.shape)}".encode())
            hasher.update(value.contiguous().numpy().tobytes())
    return hasher.hexdigest()


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"cannot read {path} ({why}){_REMEDY}")


@contextmanager
def _no_dist_warning() -> Iterator[None]:
    """Silence torch's warning that a single process has no process group."""
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
