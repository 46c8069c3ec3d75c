"""Cuts, dissolves and fades of 400 films of photographs and of real videos, beside PySceneDetect.

python -m bench.video.cuts [FILMS [PHOTOS]]

FILMS: how many to make (default 400; a few minutes). PHOTOS: `first-stop` of the photographs that they show (default
500-1000: the detector was tuned on others). Without PySceneDetect or Debian's mirror, those columns are skipped.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from bench.kit import peers
from bench.kit.features import shared
from bench.kit.measure import machine
from bench.video.films import FPS, SIZE, Film, Frame, Photos, films
from bench.video.real import COPIES, videos
from curate.core.errors import Undecodable
from curate.duplicates.near.videos import FindVideoDuplicates
from curate.video.cuts import Cuts
from curate.video.facts import Facts
from curate.video.look import facts
from tests.video.make_shots import encoded, small

FILMS, PHOTOS, ENCODED = 400, (500, 1000), 24
PARTS = {"hard": 0.5, "gradual": 0.25, "alone": 0.25}
AIMS = {"hard": 0.95, "gradual": 0.8}
SLACK = 1
"""Frames that a cut may be off."""
PROGRESS_SECONDS = 10
REALLY: dict[str, dict[str, Any]] = {"libx264": {"preset": "veryfast"}, "mpeg4": {"qscale": "6", "flags": "+qscale"}}

Finder = Callable[[Sequence[Frame]], list[int]]
"""RGB frames -> numbers of those after a cut."""


@dataclass
class Score:
    hits: int = 0
    found: int = 0
    true: int = 0

    @property
    def f1(self) -> float:
        return 2 * self.hits / max(1, self.found + self.true)


@dataclass
class Scores:
    by_kind: dict[str, Score] = field(default_factory=lambda: defaultdict(Score))
    alarms: Counter[str] = field(default_factory=Counter)
    """In films that are one shot."""
    seconds: float = 0.0

    def add(self, name: str, film: Film, found: list[int]) -> None:
        hits = matched(found, film.changes)
        self.alarms.update({film.kind: len(found)} if name == "alone" else {})
        for kind in {name, film.kind}:
            score = self.by_kind[kind]
            score.hits, score.found = score.hits + hits, score.found + len(found)
            score.true += len(film.changes)


def matched(found: Sequence[int], changes: Sequence[tuple[int, int]]) -> int:
    """How many changes were found; each that was found counts for one."""
    left, hits = list(found), 0
    for first, last in changes:
        hit = next((number for number in left if first - SLACK <= number <= last + SLACK), None)
        if hit is not None:
            left.remove(hit)
            hits += 1
    return hits


def ours(frames: Sequence[Frame]) -> list[int]:
    cuts = Cuts()
    for number, frame in enumerate(frames):
        cuts.add(number * 1000 // FPS, small(frame))
    cuts.finish()
    return [ms * FPS // 1000 for ms in cuts.cuts_ms]


def theirs(peer: Any, kind: str) -> Finder:
    def find(frames: Sequence[Frame]) -> list[int]:
        detector, last = getattr(peer, kind)(), None
        cuts = []
        for number, frame in enumerate(frames):
            last = peer.FrameTimecode(number, float(FPS))
            cuts += detector.process_frame(last, np.ascontiguousarray(frame[..., ::-1]))
        cuts += detector.post_process(last)
        return [cut.frame_num for cut in cuts]

    return find


def detected(peer: Any, path: Path) -> tuple[list[int], float]:
    """Times of AdaptiveDetector's cuts in ms, decoded by its PyAV backend, and seconds."""
    began = time.perf_counter()
    scenes = peer.detect(str(path), peer.AdaptiveDetector(), backend="pyav")
    spent = time.perf_counter() - began
    av.logging.set_level(None)  # which it sets
    return [round(start.seconds * 1000) for start, _ in scenes[1:]], spent


def generated(count: int, photos: Photos, finders: dict[str, Finder]) -> dict[str, Scores]:
    """Scores of each finder over the same frames, which are not encoded."""
    scores = {name: Scores() for name in finders}
    counts = {name: round(part * count) for name, part in PARTS.items()}
    began = said = time.perf_counter()
    for number, (name, film) in enumerate(films(photos, counts, 0), 1):
        for who, find in finders.items():
            start = time.process_time()
            scores[who].add(name, film, find(film.frames))
            scores[who].seconds += time.process_time() - start
        if time.perf_counter() - said > PROGRESS_SECONDS:
            said = time.perf_counter()
            rate = number / (said - began)
            print(f"  {number} of {count} films, {rate:.1f} a second, {(count - number) / rate:.0f} s left", flush=True)
    return scores


def really(count: int, photos: Photos, peer: Any, folder: Path) -> dict[str, Scores]:
    """Scores over films that were encoded, and are decoded again, by `video.look` and by PySceneDetect."""
    scores = {"video.look": Scores()} | ({"AdaptiveDetector": Scores()} if peer else {})
    half = max(1, count // 2)
    for number, (name, film) in enumerate(films(photos, {"hard": half, "gradual": half}, 10_000)):
        codec = list(REALLY)[number % len(REALLY)]
        frames = [np.asarray(Image.fromarray(frame).resize((SIZE[0] * 2, SIZE[1] * 2))) for frame in film.frames]
        path = folder / f"{number}.mp4"
        path.write_bytes(encoded(frames, codec, fps=FPS, **REALLY[codec]))
        began = time.perf_counter()
        found = facts(path.read_bytes()).cuts_ms
        scores["video.look"].seconds += time.perf_counter() - began
        scores["video.look"].add(name, film, [ms * FPS // 1000 for ms in found])
        if peer:
            cuts, seconds = detected(peer, path)
            scores["AdaptiveDetector"].seconds += seconds
            scores["AdaptiveDetector"].add(name, film, [round(ms * FPS / 1000) for ms in cuts])
        path.unlink()
    return scores


def show(scores: dict[str, Scores]) -> None:
    print(f"  {'F1':30}" + "".join(f"{who:>20}" for who in scores))
    first = next(iter(scores.values()))
    for kind, score in sorted(first.by_kind.items()):
        if score.true:
            row = "".join(f"{one.by_kind[kind].f1:>20.3f}" for one in scores.values())
            aim = f"  at least {AIMS[kind]}" if kind in AIMS else ""
            print(f"  {kind:30}{row}  of {score.true} changes{aim}")
    for kind in sorted(kind for kind, score in first.by_kind.items() if not score.true and kind != "alone"):
        row = "".join(f"{one.alarms[kind]:>20}" for one in scores.values())
        print(f"  {'false alarms: ' + kind:30}{row}")
    print(f"  {'seconds':30}" + "".join(f"{one.seconds:>20.1f}" for one in scores.values()), flush=True)


def of_real(peer: Any) -> bool:
    """Whether the only copies are those that are. Prints our cuts beside PySceneDetect's, and motion."""
    found: dict[str, Facts] = {}
    for path in videos():
        began = time.perf_counter()
        try:
            found[path.name] = facts(path.read_bytes(), max_corrupt=1)
        except Undecodable as error:
            print(f"  {path.name:26} {error.reason}: {error.detail}")
            continue
        spent, fact = time.perf_counter() - began, found[path.name]
        cuts, seconds = detected(peer, path) if peer else ([], 0.0)
        near = sorted({ms for ms in cuts if any(abs(ms - one) <= 50 for one in fact.cuts_ms)})
        print(
            f"  {path.name:26} cuts {fact.cuts_ms}, AdaptiveDetector {cuts} ({len(near)} the same); "
            f"motion {fact.motion_mean or 0:.2f} %, peak {fact.motion_peak or 0:.1f}; "
            f"{spent:.1f} s, AdaptiveDetector {seconds:.1f} s",
            flush=True,
        )
    return not false_copies(found)


def false_copies(found: dict[str, Facts]) -> list[tuple[str, str]]:
    """Pairs that duplicates.videos would join by its defaults, other than those of COPIES."""
    rule = FindVideoDuplicates.model_validate({})
    hashes = {name: sorted({one for one in fact.frame_hashes if one}) for name, fact in found.items()}
    bits = {
        name: np.unpackbits(np.frombuffer(bytes.fromhex("".join(some)), np.uint8).reshape(-1, 32), axis=1)
        for name, some in hashes.items()
    }
    wrong, right = [], 0
    for a, b in combinations([name for name, some in hashes.items() if some], 2):
        near = (bits[a][:, None] != bits[b][None]).sum(-1) <= rule.max_distance
        share = min(near.any(1).sum(), near.any(0).sum()) / max(len(bits[a]), len(bits[b]))
        if share >= rule.min_share and {a, b} <= COPIES:
            right += 1
        elif share >= rule.min_share:
            wrong.append((a, b))
    print(f"  copies: {right} of the {len(COPIES) * (len(COPIES) - 1) // 2} pairs that are; false ones: {wrong}")
    return wrong


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else FILMS
    first, stop = map(int, sys.argv[2].split("-")) if len(sys.argv) > 2 else PHOTOS
    print(machine())
    if not (shared() / "data").exists():
        print(f"skipped, {shared() / 'data'} does not exist; set CURATE_SHARED to its folder")
        return 0
    photos, peer = Photos(first, stop), None
    finders: dict[str, Finder] = {"video.look": ours}
    try:
        peer = peers.scenedetect()
        finders |= {kind: theirs(peer, kind) for kind in ("AdaptiveDetector", "ContentDetector")}
    except (RuntimeError, ImportError) as error:
        print(f"PySceneDetect: skipped, {error}")
    print(f"\n{count} films of {SIZE[0]} x {SIZE[1]}, not encoded; processor time of the detectors alone", flush=True)
    made = generated(count, photos, finders)
    show(made)
    print(f"\n{min(ENCODED, count)} films as H.264 and MPEG-4, twice as large; wall time with decoding", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        show(really(min(ENCODED, count), photos, peer, Path(folder)))
    print("\nreal videos", flush=True)
    good = of_real(peer)
    scores = made["video.look"].by_kind
    return int(not good or any(scores[name].f1 < aim for name, aim in AIMS.items()))


if __name__ == "__main__":
    sys.exit(main())
