"""The run's folder and its files. Does not import torch, so a finished run is found at once.

recipe.yaml       the effective recipe, overrides applied
run.json          the fingerprint; a run of another fingerprint never continues here
standards.pt      standardisation of the teachers' features
initial.json      with `init_from`: the names of the weights that were taken, and of those that were not
classes.json      names of the classes of objectives on labels, in order
nan-00000012/     the state before a step that was not finite, for `distill replay`
checkpoints/      step-00000500 …, the last few (`distill.training.checkpoint`)
metrics.jsonl     a line per `log_every` steps, with the position in the data after them
plan.json         what planning a step again needs (`distill.training.steps`)
tensorboard/      the same as event files
finished.json     written after the last step
evaluation.json   the result of `distill eval`, with the digest of its inputs; evaluation.html is the page
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from curate.core.errors import CurateError, InputError, PinnedError, RunExistsError, StorageError
from curate.core.hashing import digest
from curate.core.store.storage import Storage
from curate.encoders import identity
from curate.encoders.spec import WORDS
from curate.encoders.weights import file_digest
from distill.recipe import Recipe, load_recipe
from distill.recipe.paths import local_folder
from distill.samples.sources.mixture import Mixture

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CLASSES = "classes.json"
VERSION = 4
"""Raise it when the same recipe would train another student."""


def run_fingerprint(recipe: Recipe, mixtures: Sequence[Mixture]) -> str:
    """Digest of the recipe, of the dataset mixture of each stage, and of the teachers' weights and preprocessing."""
    teachers = [identity(teacher.encoder, precision=teacher.precision) for teacher in recipe.teachers]
    content = [mixture.fingerprint for mixture in mixtures]
    start = {} if recipe.init_from is None else {"init_from": weights_identity(recipe.init_from.weights)}
    values = {"version": VERSION, "recipe": recipe.semantic(), "datasets": content, "teachers": teachers}
    return digest({**values, **start})


def is_run(place: Path) -> bool:
    return (place / "run.json").is_file()


def weights_identity(weights: str) -> Any:
    """Digests of the weights that `init_from` names, without their place. Raises InputError if there are none."""
    place = Path(weights)
    if is_run(place):
        run = RunFolder(place)
        step = run.last_step()
        if step is None:
            raise InputError(f"init_from: {place} has no checkpoint yet; give a run that has one")
        state = run.read(f"checkpoints/{run.checkpoint(step).name}/state.json", "digest")
        return None if state is None else state["digest"]
    if place.is_file():
        return file_digest(weights)
    if not place.exists() and ":" not in weights and weights not in WORDS:
        raise InputError(
            f"init_from: {weights!r} is not a run, an export or a file; give one, or timm:NAME, open_clip:NAME, hf:NAME"
        )
    found = identity(f"distill:{weights}" if place.is_dir() else weights)
    return [found["encoder"], found["weights"]]


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = Storage(str(path))
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def of(cls, recipe: Recipe, fingerprint: str) -> RunFolder:
        place = recipe.run.folder.replace("{name}", recipe.name).replace("{fingerprint}", fingerprint[:12])
        return cls(local_folder(place, "run.folder", "that all processes share, and copy the run when it is done"))

    def read(self, name: str, *keys: str) -> Any:
        """Contents of a JSON file with these keys; None if the file is missing. Raises InputError if it is corrupt."""
        path = self.path / name
        try:
            values = json.loads(path.read_text("utf-8"))
            if not isinstance(values, dict):
                raise ValueError("not a mapping")
            if missing := [key for key in keys if key not in values]:
                raise ValueError(f"{missing[0]!r} is missing")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path} ({error}); remove it to rebuild it") from error
        return values

    def fingerprint(self) -> str:
        """Fingerprint of the run in this folder. Raises InputError if there is none."""
        held = self.read("run.json", "fingerprint")
        if held is None:
            raise InputError(f"{self.path} is not a run folder (no run.json); give a folder printed by `distill train`")
        return str(held["fingerprint"])

    def write(self, name: str, value: Any) -> None:
        self.storage.publish_bytes(name, json.dumps(value, indent=1).encode() + b"\n")

    @contextmanager
    def claimed(self, recipe: Recipe, fingerprint: str, mixtures: Sequence[Mixture]) -> Iterator[None]:
        """Create or resume the run as its only writer; the lock ends with the process.

        Raises PinnedError for a run with another fingerprint, RunExistsError while another process trains the run.
        """
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunExistsError(
                    f"{self.path} is being trained by another process; wait for it, or stop it"
                ) from None
            self.clean_up()
            held = self.read("run.json", "fingerprint")
            datasets = {source.url: source.fingerprint for mixture in mixtures for source in mixture.sources}
            if held is not None and held["fingerprint"] != fingerprint:
                raise PinnedError(
                    f"{self.path} holds a run with fingerprint {held['fingerprint']}, this recipe has {fingerprint}"
                    f"{_changed(held, datasets) or self._changed_setting(recipe)}; set run.folder to another folder, "
                    f"or put {{fingerprint}} into it"
                )
            values = with_dataset_urls(recipe, mixtures)
            self.storage.publish_bytes("recipe.yaml", yaml.safe_dump(values, sort_keys=False).encode())
            self.write("run.json", {"fingerprint": fingerprint, "datasets": datasets})
            yield

    def _changed_setting(self, recipe: Recipe) -> str:
        """Text on the first setting that differs from the run's recipe; empty if that recipe cannot be read."""
        try:
            difference = _difference(self.recipe().semantic(), recipe.semantic())
        except CurateError:
            return ""
        return f" ({difference})" if difference else ""

    def _lock_file(self) -> IO[str]:
        """The open lock file; creates the folder if it is missing."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            return (self.path / ".lock").open("w")
        except OSError as error:
            raise StorageError(
                f"run.folder: cannot write to {self.path} ({error.strerror}); name another folder"
                f"{', or free disk space' if is_disk_full(error) else ''}"
            ) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError during the run into a StorageError of one line."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.path}: {error}; {self.remedy(error)}") from error

    def remedy(self, error: BaseException | None) -> str:
        """What to do about an OSError that ended the run."""
        fix = "free disk space" if is_disk_full(error) else "fix the cause"
        return f"{fix}, and run again to resume from {self.resume_point()}"

    def clean_up(self) -> None:
        """Remove partial checkpoints left by killed processes, and restore one whose replacement is not complete."""
        for partial in [*self.checkpoints.glob(".step-*.tmp"), *self.path.glob(".nan-*.tmp")]:
            shutil.rmtree(partial, ignore_errors=True)
        for old in [*self.checkpoints.glob(".step-*.old"), *self.path.glob(".nan-*.old")]:
            final = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(old, final)

    def last_step(self) -> int | None:
        """Step of the newest checkpoint."""
        return next(reversed(self.steps()), None)

    def resume_point(self) -> str:
        """Where a restarted run resumes, as text."""
        step = self.last_step()
        return "the beginning" if step is None else f"the checkpoint of step {step}"

    def steps(self) -> list[int]:
        """Steps of all checkpoints, ascending."""
        matches = (re.fullmatch(r"step-(\d{8,})", path.name) for path in self.checkpoints.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def corrupt_path(self, step: int) -> Path:
        """New path of a checkpoint that is corrupt."""
        return self.checkpoints / f"damaged-step-{step:08d}"

    def corrupt_checkpoints(self) -> list[tuple[int, Path]]:
        """Steps and paths of the checkpoints that were renamed because they are corrupt."""
        paths = list(self.checkpoints.glob("damaged-step-*"))
        matches = (re.fullmatch(r"damaged-step-(\d{8,})", path.name) for path in paths)
        return [(int(match[1]), path) for match, path in zip(matches, paths, strict=True) if match]

    def captured_path(self, step: int) -> Path:
        """Where the state before a step that was not finite is."""
        return self.path / f"nan-{step:08d}"

    def captured(self) -> list[int]:
        """The steps that were not finite and can run again, ascending."""
        matches = (re.fullmatch(r"nan-(\d{8,})", path.name) for path in self.path.glob("nan-*"))
        return sorted(int(match[1]) for match in matches if match)

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def recipe(self) -> Recipe:
        """The recipe of an existing run."""
        path = self.path / "recipe.yaml"
        if not path.is_file():
            raise InputError(
                f"{self.path} is not a run folder (no recipe.yaml); give a folder printed by `distill train`"
            )
        return load_recipe(str(path))

    def finished(self, fingerprint: str) -> dict[str, Any] | None:
        """Contents of finished.json; None if the run is not finished, or if only its last checkpoint was removed."""
        finished = self.read("finished.json", "fingerprint", "step", "seconds")
        if finished is None or finished["fingerprint"] != fingerprint:
            return None
        return dict(finished) if self.last_step() in (None, finished["step"]) else None


def resumed_recipe(recipe: Recipe) -> Recipe | None:
    """Recipe of the run that training `recipe` resumes, before its datasets are known: the run in its folder; if the
    folder's name has {fingerprint}, the latest unfinished run with the same settings."""
    place = recipe.run.folder.replace("{name}", recipe.name)
    several = "{fingerprint}" in place
    pattern = glob.escape(str(local_folder(place, "run.folder"))).replace("{fingerprint}", "[0-9a-f]*")
    files = [Path(found) / "recipe.yaml" for found in glob.glob(pattern)]
    for file in sorted(filter(Path.is_file, files), key=lambda file: file.stat().st_mtime, reverse=True):
        run = RunFolder(file.parent)
        if several and (run.path / "finished.json").exists():
            continue
        held = run.recipe()
        if not several or held.semantic() == recipe.semantic():
            return held
    return None


def is_disk_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def _changed(held: dict[str, Any], datasets: dict[str, str]) -> str:
    """Text on the datasets that have changed since the run was started; empty if none has."""
    before = held.get("datasets")
    known = before if isinstance(before, dict) else {}
    changed = [url for url, own in datasets.items() if known.get(url, own) != own]
    if not changed:
        return ""
    return f" ({', '.join(changed)} has changed: tars or samples were added, removed or changed)"


def _difference(held: Any, own: Any, place: str = "") -> str:
    """Text on the first difference between two recipes' values; empty if they are equal."""
    if isinstance(held, dict) and isinstance(own, dict):
        pairs = [(name, held.get(name), own.get(name)) for name in {**own, **held}]
    elif isinstance(held, list) and isinstance(own, list) and len(held) == len(own):
        pairs = [(str(number), *item) for number, item in enumerate(zip(held, own, strict=True))]
    else:
        return "" if held == own else f"{place} is {held!r} there and {own!r} here"
    below = (_difference(was, now, f"{place}.{name}".lstrip(".")) for name, was, now in pairs)
    return next((text for text in below if text), "")


def with_dataset_urls(recipe: Recipe, mixtures: Sequence[Mixture]) -> dict[str, Any]:
    """The recipe's values with the resolved URLs of its datasets, independent of the working folder."""
    values = recipe.model_dump(mode="json")
    for number, mixture in enumerate(mixtures):
        own = recipe.stages and "sources" in recipe.stages[number].data
        data = values["stages"][number]["data"] if own else values["data"]
        for source, url in zip(data["sources"], mixture.urls, strict=True):
            source["dataset"] = url
    return values
