"""Which kinds of object a film shows, and in how many shots, from 8 frames of it and from one.

python -m bench.video.shots [SEEDS [STEPS [FILMS]]]

Films of four seconds, made of clip-arts (`pipelines.films`), have one to four shots, each of at least half a second and
with another object; they are packed whole, as 8 JPEGs. Two students of each seed learn from `tiny`: one from clips of 8
frames, one from their middle frames, with as many frames in a step. On held-out films, ridge regression reads the mean
of a film's 8 vectors, or the vector of its middle frame, each of unit length:

- kinds: the share of pairs of a kind that the film shows and one that it does not which are ranked right (chance 0.5);
- shots: whether the number of shots is right;
- direction: whether the camera moves to the left or to the right in all shots. One is the other backwards.

Intervals are bootstraps over films, of the difference of the two. The frames of each film are shuffled, too.
Every training is limited to 6 minutes of CPU time; results are kept in .cache/ablations/video-shots.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations.clip_arts import images
from bench.ablations.folders import HOME, ROOT, call
from bench.ablations.judge import Floats, model_of, outputs
from bench.ablations.runs import LIMIT_MINUTES
from bench.ablations.statistics import paired
from bench.kit.measure import line, load, machine
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from distill.evaluation.tasks import probe
from distill.evaluation.tasks.knn import unit
from distill.export import export
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.split import held_out
from pipelines.films import Film, Move, Shot, clip_arts, drawn, encoded

SEEDS, STEPS, FILMS = 3, 80, 500
FPS, FRAMES, LEAST, SHOTS = 8, 33, 5, 4
"""Frames a second, of a film, of a shot at least; most shots. The 8 that are read are the same backwards."""
RECIPE = str(ROOT / "distill" / "recipes" / "video.yaml")
TEST_FRACTION = 0.3
WAYS = {
    "8 frames": (),
    "1 frame": ("data.sources.0.frames=1", "data.sources.0.modality=image", "data.lookahead=512"),
}
TASKS = ("kinds", "shots", "direction")
PLACE = HOME / "video-shots"


def films(count: int) -> Iterator[Film]:
    arts, choose = clip_arts(images()), random.Random("shots")
    rest = {kind: [] for kind in arts}
    for number in range(count):
        move: Move = choose.choice(["left", "right"])
        shots = choose.randint(1, SHOTS)
        spare = sorted(choose.randint(0, FRAMES - LEAST * shots) for _ in range(shots - 1))
        lengths = np.diff([0, *(LEAST * (place + 1) + cut for place, cut in enumerate(spare)), FRAMES]).tolist()
        made = []
        for length in lengths:
            kind = choose.choice(list(arts))
            rest[kind] = rest[kind] or choose.sample(arts[kind], len(arts[kind]))
            made.append(Shot(rest[kind].pop(), move, length))
        yield Film(f"{number:04}", tuple(made))


@dataclass(frozen=True)
class Packed:
    dataset: str
    keys: list[str]
    names: list[str]
    jpegs: list[list[bytes]]
    """8 frames of each film."""
    truth: dict[str, NDArray[np.int64]]
    """kinds (n, K), whether the film shows it; shots (n,), direction (n,)."""


def packed(count: int) -> Packed:
    """The dataset, made if it does not exist."""
    every, folder = {film.name: film for film in films(count)}, PLACE / f"films-{count}"
    if not folder.exists():
        aside = Path(tempfile.mkdtemp(dir=PLACE))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda film: _write(film, aside), every.values()))
        aside.rename(folder)
    pool = registry.resolve("acquire.folder")(path=str(folder), namespace="films", media=["video"], in_place=True)
    pipeline = Pipeline().add("pool", pool).add("all", registry.resolve("select.all")(), "pool")
    pack = registry.resolve("pack.webdataset")(name="films", frames=8, shard_rows=100, carry={"film": "source_id"})
    url = run(pipeline.add("dataset", pack, "all").check(), str(PLACE / "workspace")).outputs["dataset"]
    dataset = open_dataset(url)
    members, names = MemberReader(dataset), [str(name).removesuffix(".mp4") for name in dataset.strings("film")]
    arts = sorted({shot.art.kind for film in every.values() for shot in film.shots})
    shown = [every[name].shots for name in names]
    kinds = np.array([[any(shot.art.kind == kind for shot in shots) for kind in arts] for shots in shown])
    truth = {
        "kinds": kinds.astype(np.int64),
        "shots": np.array([len(shots) - 1 for shots in shown]),
        "direction": np.array([shots[0].move == "right" for shots in shown]).astype(np.int64),
    }
    keys = [str(key) for key in dataset.strings("key")]
    return Packed(url, keys, names, [members.frames(row) for row in range(len(keys))], truth)


def _write(film: Film, folder: Path) -> None:
    (folder / f"{film.name}.mp4").write_bytes(encoded(list(drawn(film)), fps=FPS))


def vectors(data: Packed, way: str, seed: int, steps: int) -> tuple[Floats, float]:
    """Vectors (n, 8, D) of the frames by a student, of which a training is kept; its minutes of CPU time."""
    name = f"{way.replace(' ', '-')}-{steps}-{len(data.keys)}-{seed}"
    place = PLACE / f"{name}.npy"
    if not place.exists():
        folder = PLACE / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        settings = [
            f"seed={seed}", f"name={name}", f"run.folder={folder}", f"data.sources.0.dataset={data.dataset}",
            f"data.test_fraction={TEST_FRACTION}", f"train.steps={steps}", f"train.warmup_steps={min(20, steps // 2)}",
            "evaluate.tasks=[]", "run.device=cpu", *WAYS[way],
        ]  # fmt: skip
        words = [word for setting in settings for word in ("--set", setting)]
        seconds = call("distill.cli", ["train", RECIPE, *words], PLACE / "logs" / f"{name}.log")
        began = time.process_time()
        model = model_of(export(folder, folder / "model"))
        frames = outputs(model, [jpeg for film in data.jpegs for jpeg in film]).summary
        seconds += time.process_time() - began
        (PLACE / f"{name}.json").write_text(json.dumps(seconds))
        np.save(place, frames.reshape(len(data.keys), 8, -1))
    return np.load(place), json.loads((PLACE / f"{name}.json").read_text()) / 60


def read(frames_NFD: Floats, way: str) -> Floats:
    """(N, D): of unit length, the mean of unit vectors, or the middle one."""
    return unit(unit_frames(frames_NFD).mean(1) if way == "8 frames" else frames_NFD[:, frames_NFD.shape[1] // 2])


def unit_frames(frames_NFD: Floats) -> Floats:
    return unit(frames_NFD.reshape(-1, frames_NFD.shape[2])).reshape(frames_NFD.shape)


def right(x_ND: Floats, truth: NDArray[np.int64], test: NDArray[np.bool_]) -> Floats:
    """Scores of held-out films (N,), 0 for the others."""
    targets = truth if truth.ndim == 2 else probe.one_hot(truth, int(truth.max()) + 1)
    sums = probe.Sums.empty(x_ND.shape[1], targets.shape[1])
    sums.add(x_ND[~test], targets[~test])
    said = probe.fit(sums)(x_ND[test])
    scores = np.zeros(len(truth), np.float32)
    if truth.ndim == 1:
        scores[test] = said.argmax(1) == truth[test]
    else:
        scores[test] = [
            float((one[own > 0][:, None] > one[own == 0][None]).mean())
            for one, own in zip(said, truth[test], strict=True)
        ]
    return scores


def main(seeds: int = SEEDS, steps: int = STEPS, count: int = FILMS) -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    print(machine(), load())
    data = packed(count)
    n = len(data.keys)
    line("films", f"{n:,}", f"shots: {np.bincount(data.truth['shots']).tolist()}")
    scores = {(way, task): np.zeros((seeds, n), np.float32) for way in WAYS for task in TASKS}
    tested, apart, same, minutes = np.zeros((seeds, n), bool), 0.0, 1.0, 0.0
    for seed in range(seeds):
        tested[seed] = test = held_out(data.keys, data.keys, seed=seed, fraction=TEST_FRACTION)
        for way in WAYS:
            frames, spent = vectors(data, way, seed, steps)
            minutes = max(minutes, spent)
            for task in TASKS:
                scores[way, task][seed] = right(read(frames, way), data.truth[task], test)
            if way == "8 frames":
                order = np.random.default_rng(seed).permuted(np.tile(np.arange(8), (n, 1)), axis=1)
                other = read(np.take_along_axis(frames, order[:, :, None], 1), way)
                apart = max(apart, float(np.abs(other - read(frames, way)).max()))
                for task in TASKS:
                    again = right(other, data.truth[task], test)
                    same = min(same, float((again == scores[way, task][seed]).mean()))
    line("CPU minutes of the longest training, and reading", f"{minutes:.1f}", f"limit {LIMIT_MINUTES}")
    verdict = 0
    for task in TASKS:
        found = paired(scores["8 frames", task], scores["1 frame", task], tested)
        low, high = found.over_images
        means = {way: 100 * float(scores[way, task][tested].mean()) for way in WAYS}
        shown = ", ".join(f"{way} {mean:.1f} %" for way, mean in means.items())
        by_seed = ", ".join(f"{100 * one:+.1f}" for one in found.by_seed)
        line(
            f"{task}: {shown}", f"{100 * found.mean:+.1f}", f"[{100 * low:+.1f}, {100 * high:+.1f}]; by seed {by_seed}"
        )
        verdict |= task == "shots" and not low > 0
    line("shuffled frames: largest difference of a mean", f"{apart:.1e}", f"{100 * same:.1f} % of scores are the same")
    return int(verdict or minutes > LIMIT_MINUTES)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
