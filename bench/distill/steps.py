"""Seconds until the samples of any step of a long run are known again, and the steps that saw a sample.

    python -m bench.distill.steps [SAMPLES [STEPS]]

The index of 200,000,000 random samples in tars of 10,000 is written as the arrays that all processes map (about 7 GB in
$TMPDIR), next to what a run of 140,000 steps keeps: plan.json, and a line of metrics.jsonl every 10 steps. Each step is
asked for as `distill explain` does, with mapping the index but without reading texts: there are no tars. The lines
hold positions at the beginning of windows, as if windows held equal numbers of steps; planning them all takes hours.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import yaml
from numpy.typing import NDArray

from bench.kit.measure import line, machine
from curate.core.store.storage import Storage
from distill.recipe import parse_recipe
from distill.recipe.data import DataRecipe
from distill.samples.batches.stream import training_stream
from distill.samples.sources import index
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.mixture import Mixture
from distill.samples.sources.split import held_out_rows
from distill.training import steps
from distill.training.run_folder import RunFolder

SAMPLES, STEPS, PER_TAR, EVERY, ASKED = 200_000_000, 140_000, 10_000, 10, 20
_PART = 1 << 22
VALUES = {
    "name": "long",
    "data": {
        "sources": [{"dataset": "simulated", "max_tokens": 256}],
        "test_fraction": 0.001, "sequence_tokens": 2309, "lookahead": 4096,
    },
    "student": {"patch": 16, "width": 64, "depth": 1, "heads": 1, "registers": 4},
    "teachers": [{"encoder": "descriptor"}],
    "train": {"steps": STEPS, "sequences": 160, "warmup_steps": 1},
}  # fmt: skip


def arrays(samples: int) -> Iterator[dict[str, NDArray[np.generic]]]:
    rng = np.random.default_rng(0)
    for start in range(0, samples, _PART):
        place = np.arange(start, min(start + _PART, samples))
        words = rng.integers(0, 1 << 63, (len(place), 2), dtype=np.uint64)
        sides = {name: rng.integers(150, 2000, len(place), dtype=np.int32) for name in ("width", "height")}
        small = {"shard": place // PER_TAR, "row": place % PER_TAR, "copy": 0 * place}
        yield (
            {"key": words, "duplicate_set": words}
            | sides
            | {name: value.astype(np.int32) for name, value in small.items()}
        )


def write_index(folder: Path, samples: int) -> None:
    folder.mkdir()
    index._write_arrays(folder, arrays(samples))
    files = {path.name: index._check(path) for path in folder.iterdir()}
    (folder / "meta.json").write_text(json.dumps({"files": files, "fingerprint": "simulated"}))


def opened(folder: Path, samples: int, data: DataRecipe) -> Mixture:
    mapped = index._map(folder, samples)
    assert mapped is not None
    tars = [f"{number:06d}.tar" for number in range(-(-samples // PER_TAR))]
    return Mixture([Dataset(Storage(str(folder)), mapped, [], lambda name: iter(()), tars)], data.sources)


def write_run(folder: Path, mixture: Mixture) -> None:
    """The files of a run as training leaves them."""
    run, recipe = RunFolder(folder), parse_recipe(VALUES, "bench")
    run.checkpoints.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    read = ~held_out_rows(mixture, seed=recipe.seed, fraction=recipe.data.test_fraction)
    counted = training_stream(recipe, mixture, read).counted()
    steps.record_stage(run, 0, 0, 32, counted)
    images, look = int(VALUES["train"]["sequences"] * counted.sequence_images[0]), recipe.data.lookahead
    epoch = sum(map(sum, counted.shards))
    with run.metrics.open("w") as file:
        for step in range(EVERY, recipe.train.steps + 1, EVERY):
            epochs, inside = divmod(step * images, epoch)
            place = {"taken": [epochs * epoch + inside // look * look], "sequence": 0}
            file.write(json.dumps({"step": step, "loss": 1.0, "stage": 0, "epoch": epochs, "places": [place]}) + "\n")


def main() -> None:
    given = [int(value) for value in sys.argv[1:]] if __name__ == "__main__" else []
    samples, VALUES["train"]["steps"] = (*given, *(SAMPLES, STEPS)[len(given) :])[:2]
    print(machine())
    with tempfile.TemporaryDirectory(prefix="bench-steps-") as name:
        place, run = Path(name) / "index", RunFolder(Path(name) / "run")
        write_index(place, samples)
        data = parse_recipe(VALUES, "bench").data
        write_run(run.path, opened(place, samples, data))
        rng, asking, finding = np.random.default_rng(1), [], []
        for step in sorted(rng.integers(1, VALUES["train"]["steps"] + 1, ASKED).tolist()):
            began = time.perf_counter()
            with mock.patch.object(steps, "open_again", lambda recipe: opened(place, samples, recipe)):
                past = steps.PastSteps(run)
                plan = past.plan(step)
            asking.append(time.perf_counter() - began)
            key = past.stage(0).mixture.key(int(plan.sequences[0][0]))
            began = time.perf_counter()
            past.seen([key])
            finding.append(time.perf_counter() - began)
        what = f"a step of {VALUES['train']['steps']:,} over {samples:,} samples"
        line(what, f"{statistics.median(asking):.2f} s", f"at most {max(asking):.2f} s, {ASKED} steps")
        line("the steps of a key", f"{statistics.median(finding):.2f} s", f"at most {max(finding):.2f} s")


if __name__ == "__main__":
    main()
