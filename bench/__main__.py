"""`make bench`: every benchmark that takes seconds or minutes, in turn. The others are listed in docs/benchmarks.md.

Ratios count; the first line names the machine.
"""

from __future__ import annotations

import importlib

from bench.kit.measure import machine

MODULES = (
    "engine.execution",
    "engine.pipeline",
    "engine.where",
    "engine.facts",
    "engine.rules",
    "acquire.list",
    "acquire.download",
    "acquire.resume",
    "acquire.memory",
    "image.embed",
    "pack.webdataset",
    "release.release",
    "duplicates.near",
    "cluster.kmeans",
    "cluster.divide",
    "select.sampling",
    "select.hierarchical",
    "text.clean",
    "text.language",
    "text.concepts",
    "text.vocabulary",
    "select.frequency",
    "video.look",
    "video.run",
    "video.motion",
    "video.cuts",
    "distill.reader",
    "video.reading",
    "distill.index",
    "distill.packing",
    "distill.moe",
    "distill.optimizer",
    "distill.gpu_student",
    "distill.tiny",
    "service.__main__",
)


def main() -> None:
    print(machine())
    for name in MODULES:
        module = importlib.import_module(f"bench.{name}")
        print(f"\n{module.__doc__}")
        module.main()


if __name__ == "__main__":
    main()
