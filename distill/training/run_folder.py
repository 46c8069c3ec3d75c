"""The run's folder: what lies in it, how it is written. Knows nothing of torch, so a finished run answers at once.

recipe.yaml       the effective recipe, overrides applied
run.json          the fingerprint: nothing of another one is ever continued here
standards.pt      how the teachers' features are brought to one scale
checkpoints/      step-00000500 …, the last few (`distill.training.checkpoint`)
metrics.jsonl     a line per `log_every` steps
tensorboard/      the same as event files
finished.json     present when the last step is done
evaluation.json   what `distill eval` found, with the digest of what it was computed from; evaluation.html is the page
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from curate.core.errors import CurateError, InputError, PinnedError, RunExistsError, StorageError
from curate.core.hashing import digest
from curate.core.store.storage import Storage
from distill.recipe import Recipe, parse_recipe, read_recipe
from distill.recipe.places import local_folder
from distill.samples.sources.mixture import Blend

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
VERSION = 3
"""Rises when the same recipe would train another student."""


def run_fingerprint(recipe: Recipe, blends: Sequence[Blend], teachers: list[Any]) -> str:
    """blends: of each stage; teachers: identities (weight digests, preprocessing), in the recipe's order."""
    content = [blend.fingerprint for blend in blends]
    return digest({"version": VERSION, "recipe": recipe.semantic(), "datasets": content, "teachers": teachers})


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
        """A JSON file of the folder with these keys, None when absent. Raises InputError where it is damaged."""
        path = self.path / name
        try:
            values = json.loads(path.read_text("utf-8"))
            if not isinstance(values, dict):
                raise ValueError("no mapping")
            if missing := [key for key in keys if key not in values]:
                raise ValueError(f"no {missing[0]!r} in it")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); remove it: it is written anew") from error
        return values

    def fingerprint(self) -> str:
        """Of the run that is here. Raises InputError where none is."""
        held = self.read("run.json", "fingerprint")
        if held is None:
            raise InputError(f"{self.path} is no run folder (no run.json); `distill train` prints the folder's name")
        return str(held["fingerprint"])

    def write(self, name: str, value: Any) -> None:
        self.storage.publish_bytes(name, json.dumps(value, indent=1).encode() + b"\n")

    @contextmanager
    def claimed(self, recipe: Recipe, fingerprint: str, blends: Sequence[Blend]) -> Iterator[None]:
        """Create the folder, or go on in it, as its only writer; the lock ends with the process.

        Raises PinnedError when it holds a run of another fingerprint, RunExistsError when another process writes it.
        """
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunExistsError(
                    f"{self.path} is being trained by another process; wait for it, or stop it"
                ) from None
            self.tidy()
            held = self.read("run.json", "fingerprint")
            datasets = {source.url: source.fingerprint for blend in blends for source in blend.sources}
            if held is not None and held["fingerprint"] != fingerprint:
                raise PinnedError(
                    f"{self.path} holds a run of fingerprint {held['fingerprint']}, this recipe's is {fingerprint}"
                    f"{_changed(held, datasets) or self._other(recipe)}; set run.folder to another folder, or put "
                    f"{{fingerprint}} into it"
                )
            values = placed(recipe, blends)
            self.storage.publish_bytes("recipe.yaml", yaml.safe_dump(values, sort_keys=False).encode())
            self.write("run.json", {"fingerprint": fingerprint, "datasets": datasets})
            yield

    def _other(self, recipe: Recipe) -> str:
        """The first setting that is not as the run's recipe has it, in words; nothing where that cannot be read."""
        try:
            found = _difference(self.recipe().semantic(), recipe.semantic())
        except CurateError:
            return ""
        return f" ({found})" if found else ""

    def _lock_file(self) -> Any:
        """Of a folder that is made where there is none."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            return (self.path / ".lock").open("w")
        except OSError as error:
            raise StorageError(
                f"run.folder: {self.path} cannot be written to ({error.strerror}); name another folder"
                f"{', or make room' if full(error) else ''}"
            ) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A system's error while a run is at work, as a line."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.path}: {error}; {self.again(error)}") from error

    def again(self, error: BaseException | None) -> str:
        """What to do about a system's error that has ended a run."""
        mend = "make room" if full(error) else "see to it"
        return f"{mend}, and run again: it goes on from {self.kept()}"

    def tidy(self) -> None:
        """Away with what processes that were killed while they wrote a checkpoint have left."""
        for left in self.checkpoints.glob(".step-*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        for old in self.checkpoints.glob(".step-*.old"):
            final = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(old, final)

    def last_step(self) -> int | None:
        """Step of the newest checkpoint."""
        return next(reversed(self.steps()), None)

    def kept(self) -> str:
        """What a run that is started again goes on from."""
        step = self.last_step()
        return "the beginning" if step is None else f"the checkpoint of step {step}"

    def steps(self) -> list[int]:
        """Of all checkpoints, rising."""
        found = (re.fullmatch(r"step-(\d{8,})", path.name) for path in self.checkpoints.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def aside(self, step: int) -> Path:
        """Where a checkpoint lies that was found damaged."""
        return self.checkpoints / f"damaged-step-{step:08d}"

    def damaged(self) -> list[tuple[int, Path]]:
        """Those, with their steps."""
        places = list(self.checkpoints.glob("damaged-step-*"))
        found = (re.fullmatch(r"damaged-step-(\d{8,})", path.name) for path in places)
        return [(int(match[1]), path) for match, path in zip(found, places, strict=True) if match]

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def recipe(self) -> Recipe:
        """The recipe of an existing run."""
        path = self.path / "recipe.yaml"
        if not path.is_file():
            raise InputError(f"{self.path} is no run folder (no recipe.yaml); `distill train` prints the folder's name")
        return parse_recipe(read_recipe(path, str(path)), str(path))

    def finished(self, fingerprint: str) -> dict[str, Any] | None:
        """What is said of a finished run; None where the last checkpoint was taken away from among others."""
        done = self.read("finished.json", "fingerprint", "step", "seconds")
        if done is None or done["fingerprint"] != fingerprint or self.last_step() not in (None, done["step"]):
            return None
        return dict(done)


def full(error: BaseException | None) -> bool:
    """Whether there was no room for a file."""
    return isinstance(error, OSError) and error.errno in _FULL


def _changed(held: dict[str, Any], datasets: dict[str, str]) -> str:
    """Which of the datasets are not as the run knew them, in words."""
    before = held.get("datasets")
    known = before if isinstance(before, dict) else {}
    changed = [url for url, own in datasets.items() if known.get(url, own) != own]
    return (
        f" ({', '.join(changed)} has changed since: tars or samples were added, removed or changed)" if changed else ""
    )


def _difference(held: Any, own: Any, place: str = "") -> str:
    """The first between two recipes' values, in words."""
    if isinstance(held, dict) and isinstance(own, dict):
        pairs = [(name, held.get(name), own.get(name)) for name in {**own, **held}]
    elif isinstance(held, list) and isinstance(own, list) and len(held) == len(own):
        pairs = [(str(number), *item) for number, item in enumerate(zip(held, own, strict=True))]
    else:
        return "" if held == own else f"there {place} is {held!r}, here {own!r}"
    below = (_difference(was, now, f"{place}.{name}".lstrip(".")) for name, was, now in pairs)
    return next((said for said in below if said), "")


def placed(recipe: Recipe, blends: Sequence[Blend]) -> dict[str, Any]:
    """The recipe with the places where its datasets were found, whatever folder it is read in later."""
    values = recipe.model_dump(mode="json")
    for number, blend in enumerate(blends):
        own = recipe.stages and "sources" in recipe.stages[number].data
        data = values["stages"][number]["data"] if own else values["data"]
        for source, url in zip(data["sources"], blend.urls, strict=True):
            source["dataset"] = url
    return values
