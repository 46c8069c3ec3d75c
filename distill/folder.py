"""The run's folder: what lies in it, how it is written. Knows nothing of torch, so a finished run answers at once.

recipe.yaml       the effective recipe, overrides applied
run.json          the fingerprint: nothing of another one is ever continued here
standards.pt      how the teachers' features are brought to one scale
checkpoints/      step-00000500 …, the last few (`distill.checkpoint`)
metrics.jsonl     a line per `log_every` steps
tensorboard/      the same as event files
finished.json     present when the last step is done
evaluation.json   what `distill eval` found, with the digest of what it was computed from; evaluation.html is the page
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from curate.core.errors import InputError, PinnedError, RunExistsError
from curate.core.hashing import digest
from curate.core.storage import Storage
from distill.data.blend import Blend
from distill.recipe import Recipe, parse_recipe

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
        return cls(Path(place).expanduser().absolute())

    def read(self, name: str) -> Any:
        """A JSON file of the folder, None when absent."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None

    def write(self, name: str, value: Any) -> None:
        self.storage.publish_bytes(name, json.dumps(value, indent=1).encode() + b"\n")

    @contextmanager
    def claimed(self, recipe: Recipe, fingerprint: str, blends: Sequence[Blend]) -> Iterator[None]:
        """Create the folder, or go on in it, as its only writer; the lock ends with the process.

        Raises PinnedError when it holds a run of another fingerprint, RunExistsError when another process writes it.
        """
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunExistsError(
                    f"{self.path} is being trained by another process; wait for it, or stop it"
                ) from None
            held = self.read("run.json")
            if held is not None and held["fingerprint"] != fingerprint:
                raise PinnedError(
                    f"{self.path} holds a run of fingerprint {held['fingerprint']}, this recipe's is {fingerprint}; "
                    f"set run.folder to another folder, or put {{fingerprint}} into it"
                )
            values = placed(recipe, blends)
            self.storage.publish_bytes("recipe.yaml", yaml.safe_dump(values, sort_keys=False).encode())
            self.write("run.json", {"fingerprint": fingerprint})
            yield

    def last_step(self) -> int | None:
        """Step of the newest checkpoint."""
        return next(reversed(self.steps()), None)

    def steps(self) -> list[int]:
        """Of all checkpoints, rising."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.checkpoints.glob("step-[0-9]*"))

    def recipe(self) -> Recipe:
        """The recipe of an existing run."""
        path = self.path / "recipe.yaml"
        if not path.is_file():
            raise InputError(f"{self.path} is no run folder (no recipe.yaml); `distill train` prints the folder's name")
        return parse_recipe(yaml.safe_load(path.read_text()), str(path))

    def finished(self, fingerprint: str) -> dict[str, Any] | None:
        done = self.read("finished.json")
        return done if done is not None and done["fingerprint"] == fingerprint else None


def placed(recipe: Recipe, blends: Sequence[Blend]) -> dict[str, Any]:
    """The recipe with the places where its datasets were found, whatever folder it is read in later."""
    values = recipe.model_dump(mode="json")
    for number, blend in enumerate(blends):
        own = recipe.stages and "sources" in recipe.stages[number].data
        data = values["stages"][number]["data"] if own else values["data"]
        for source, url in zip(data["sources"], blend.urls, strict=True):
            source["dataset"] = url
    return values
