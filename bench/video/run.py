"""Ten-second videos a second from a folder to packed frames, on one core, without an encoder: the whole engine.

python -m bench.video.run [videos]

acquire.folder in place, video.look, video.divide, video.clips, video.frames (8 of a clip), pack.webdataset: wall time
of the whole run, which is bound to one core, beside a bare linear decode of a file by PyAV in this process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.kit.measure import line, machine
from bench.video.look import bare, made
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run

VIDEOS, AIM = 24, 1.2
MANY, NODE = 22_000_000, 96
"""Videos of Perception Encoder's pool, and cores of a node, for the arithmetic of docs/scale.md."""


def recipe(folder: Path) -> Pipeline:
    stages = {
        "pool": ("acquire.folder", None, {"path": str(folder), "namespace": "v", "media": ["video"], "in_place": True}),
        "look": ("video.look", "pool", {"threads": 1}),
        "divide": ("video.divide", "look", {}),
        "clips": ("video.clips", "divide", {"namespace": "clips"}),
        "frames": ("video.frames", "clips", {"namespace": "frames", "frames": 8, "short_side": 256}),
        "all": ("select.all", "frames", {}),
        "dataset": ("pack.webdataset", "all", {"name": "frames"}),
    }
    pipeline = Pipeline()
    for name, (op, above, parameters) in stages.items():
        pipeline.add(name, registry.resolve(op)(**parameters), *([above] if above else []))
    return pipeline.check()


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else VIDEOS
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(machine())
    film = made((640, 360), "libx264", preset="medium")
    began = time.process_time()
    frames = bare(film)
    decode = time.process_time() - began
    with tempfile.TemporaryDirectory() as place:
        videos = Path(place, "videos")
        videos.mkdir()
        for number in range(count):
            other = (number + 1).to_bytes(4, "big") * 4  # not 0: the size of a last box of any size
            (videos / f"{number:03}.mp4").write_bytes(film + other)
        start = time.monotonic()
        result = run(recipe(videos), f"{place}/w")
        took = time.monotonic() - start
        dataset = Path(result.outputs["dataset"].removeprefix("file://"))
        samples = sum(json.loads((dataset / "sizes.json").read_text()).values())
        packed = sum(path.stat().st_size for path in dataset.glob("*.tar"))
    line("videos of 10 s, 360p; frames of one; frames packed", f"{count}, {frames}, {samples}")
    line("bare decode, CPU s a video", f"{decode:.2f}")
    line(f"videos a second, wall (aim {AIM})", f"{count / took:.2f}")
    line("times a bare decode", f"{took / count / decode:.1f}")
    line("kB packed a video", f"{packed / count / 1000:.0f}")
    hours, terabytes = MANY * took / count / 3600, MANY * packed / count / 1e12
    line(
        f"{MANY / 1e6:.0f} million such videos",
        f"{hours / NODE:,.0f} node-hours",
        f"of {NODE} cores; {terabytes:.1f} TB packed",
    )
    return int(count / took < AIM)


if __name__ == "__main__":
    sys.exit(main())
