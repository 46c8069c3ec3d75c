"""The path of one image through `curate run`: the files and functions of curate/ that it passes.

    python -m bench.trace [--tree CHECKOUT] [--select all|hierarchical] [--images 1] [--json FILE] [--functions]

A pool of one generated image is imported, inspected, filtered, fingerprinted, embedded, selected and packed. The local
engine runs its units of work in threads of this process, so that a profile function sees every call. With a single
image in the pool, whatever a unit calls is called for that image: "one image" is what units of work pass, "in all" adds
the command and the driver. Calls made while a module is imported do not count. The figures of one image are the same
in every run; those in all differ by a few calls, since the driver also looks at the clock.

`--tree` traces the code of another checkout, to compare two commits.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import itertools
import json
import multiprocessing.process
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
FOLDER_OPS = ("acquire.folder", "import.folder")
"""Names of one op: the first that the traced tree has."""
LAYERS = ("cli", "api", "engine driver", "engine worker", "domain", "kernels", "encoders", "codec", "core")
OWN_LAYER = {"cli", "api", "kernels", "encoders", "codec", "core"}
"""First-level packages that are layers; the others are domains, except the engine."""
WORKERS = "engine/backends/"
"""A thread that begins in one of these files runs units of work; so do the threads that it starts."""
IMPORTING = "<frozen importlib._bootstrap>"

RECIPE = """
stages:
  pool: {{op: {folder}, path: {images}, namespace: trace}}
  inspect: {{op: image.inspect, from: pool}}
  size: {{op: image.filter, from: inspect, min_side: 32}}
  prints: {{op: image.fingerprint, from: size}}
  embed: {{op: image.embed, from: size, encoder: descriptor}}
{select}
  dataset: {{op: pack.webdataset, from: sample, name: trace}}
"""
SELECT = {
    "all": "  sample: {op: select.all, from: [prints, embed]}",
    "hierarchical": """\
  tree: {op: cluster.fit, from: [prints, embed], levels: [1]}
  clusters: {op: cluster.assign, from: [prints, embed], tree: tree, levels: 1}
  sample: {op: select.hierarchical, from: clusters, tree: tree, share: 1.0}""",
}


@dataclass(frozen=True)
class Function:
    """A function of curate/ that was called, on one side of the engine."""

    file: str
    name: str
    worker: bool
    """Called by a unit of work."""
    first: int
    """Place of its first call among those of all functions."""
    calls: int
    depth: int
    """Functions of curate/ on the deepest stack at a call of it, itself included."""

    @property
    def layer(self) -> str:
        return layer_of(self.file, self.worker)


@dataclass(frozen=True)
class Crossing:
    """Calls from one file into another, generators not counted."""

    caller: str
    callee: str
    worker: bool
    calls: int


@dataclass(frozen=True)
class Trace:
    functions: Sequence[Function]
    """By first call."""
    crossings: Sequence[Crossing]

    def of_image(self) -> Trace:
        """The part of it that units of work passed."""
        return Trace([f for f in self.functions if f.worker], [c for c in self.crossings if c.worker])

    def files(self) -> list[tuple[str, Function]]:
        """Each file with the function that entered it first, in that order."""
        first: dict[str, Function] = {}
        for function in self.functions:
            first.setdefault(function.file, function)
        return list(first.items())

    def both_ways(self) -> list[tuple[str, str, int, int]]:
        """Pairs of files that call each other, with the calls in either direction; the most frequent first."""
        calls = Counter[tuple[str, str]]()
        for crossing in self.crossings:
            calls[crossing.caller, crossing.callee] += crossing.calls
        pairs = [(a, b, calls[a, b], calls[b, a]) for a, b in sorted(calls) if a < b and (b, a) in calls]
        return sorted(pairs, key=lambda pair: -min(pair[2:]))


def layer_of(file: str, worker: bool) -> str:
    package = file.removesuffix(".py").partition("/")[0]
    if package == "engine":
        return "engine worker" if worker else "engine driver"
    return package if package in OWN_LAYER else "domain"


# --- recording --------------------------------------------------------------------------------------------------------


class _Thread(threading.local):
    """What one thread has called. `worker` is settled by the first file of the package that the thread enters."""

    worker: bool | None = None
    seen: dict[tuple[str, str], list[int]] | None = None


class Recorder:
    """A profile function for all threads that start while it is active."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._order = itertools.count()
        self._here = _Thread()
        self._found: list[tuple[bool, dict[tuple[str, str], list[int]], Counter[tuple[str, str]]]] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        start, start_process = threading.Thread.start, multiprocessing.process.BaseProcess.start

        def inheriting(thread: threading.Thread) -> None:
            run, worker = thread.run, self._here.worker

            def of_worker() -> None:
                self._here.worker = True
                run()

            if worker:
                thread.run = of_worker  # type: ignore[method-assign]
            start(thread)

        def unseen(process: multiprocessing.process.BaseProcess) -> None:
            raise RuntimeError(f"{process.name}: a unit of work left this process, where its calls cannot be traced")

        threading.Thread.start = inheriting  # type: ignore[method-assign, assignment]
        multiprocessing.process.BaseProcess.start = unseen  # type: ignore[method-assign, assignment]
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            threading.Thread.start = start  # type: ignore[method-assign]
            multiprocessing.process.BaseProcess.start = start_process  # type: ignore[method-assign]

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (function := self._function(frame.f_code)) is None or _resumed(frame):
            return
        caller, depth, above = None, 1, frame.f_back
        while above is not None:
            if above.f_code.co_filename == IMPORTING:
                return
            other = self._function(above.f_code)
            if other is not None:
                depth += 1
                caller = caller or other
            above = above.f_back
        here = self._here
        if here.seen is None:
            here.worker = here.worker or function[0].startswith(WORKERS)
            here.seen, here.crossings = {}, Counter()
            self._found.append((here.worker, here.seen, here.crossings))
        entry = here.seen.get(function)
        if entry is None:
            entry = here.seen[function] = [next(self._order), 0, 0]
        entry[1] += 1
        entry[2] = max(entry[2], depth)
        if caller is not None and caller[0] != function[0] and _is_called(frame):
            here.crossings[caller[0], function[0]] += 1

    def _function(self, code: CodeType) -> tuple[str, str] | None:
        """(file, name) of a function of the package; None for module bodies, lambdas and comprehensions too."""
        try:
            return self._known[code]
        except KeyError:
            found = None
            if code.co_filename.startswith(self._package) and not code.co_name.startswith("<"):
                found = (Path(code.co_filename[len(self._package) :]).as_posix(), code.co_qualname)
            self._known[code] = found
            return found

    def trace(self) -> Trace:
        merged: dict[tuple[str, str, bool], list[int]] = {}
        crossings = Counter[tuple[str, str, bool]]()
        for worker, seen, crossed in self._found:
            for (file, name), (first, calls, depth) in list(seen.items()):
                entry = merged.setdefault((file, name, worker), [first, 0, 0])
                entry[:] = min(entry[0], first), entry[1] + calls, max(entry[2], depth)
            for (caller, callee), calls in list(crossed.items()):
                crossings[caller, callee, worker] += calls
        functions = [Function(*key, *entry) for key, entry in merged.items()]
        return Trace(
            sorted(functions, key=lambda function: function.first),
            [Crossing(*key, calls) for key, calls in sorted(crossings.items())],
        )


def _is_generator(code: CodeType) -> bool:
    return bool(code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def _resumed(frame: FrameType) -> bool:
    """Whether a generator resumes after a `yield`, which the profile function sees as a call."""
    return _is_generator(frame.f_code) and frame.f_code.co_code[frame.f_lasti + 1] != 0


def _is_called(frame: FrameType) -> bool:
    """Whether the frame below is the caller: a generator begins below the function that first takes an item, unless it
    is a context manager."""
    below = frame.f_back
    return not _is_generator(frame.f_code) or (below is not None and below.f_code.co_filename == contextlib.__file__)


# --- the run ----------------------------------------------------------------------------------------------------------


def traced(tree: Path, select: str, images: int) -> Trace:
    """The trace of a run of `tree`, which must be the first place where Python looks for packages."""
    folder_op = _folder_op(tree)
    from curate import api, cli

    assert Path(api.__file__).is_relative_to(tree), f"curate is imported from {api.__file__}, not from {tree}"
    recorder, said = Recorder(tree / "curate"), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder, "images"), images)
        recipe = Path(folder, "recipe.yaml")
        recipe.write_text(RECIPE.format(folder=folder_op, images=Path(folder, "images"), select=SELECT[select]))
        sys.argv = ["curate", "run", str(recipe), "--workspace", str(Path(folder, "workspace")), "--engine", "local"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), recorder.active():
            code = _exit_code(cli.main)
        packed = sorted(Path(folder, "workspace").rglob("*.tar"))
    if code or not packed:
        sys.exit(f"bench.trace: the run in {tree} failed with exit status {code}: {said.getvalue()[-2000:]}")
    trace = recorder.trace()
    if not trace.of_image().functions:
        sys.exit(f"bench.trace: no thread began in {WORKERS}; name the files where threads of workers begin in WORKERS")
    return trace


def _exit_code(main: Callable[[], object]) -> object:
    try:
        main()
    except SystemExit as exit:
        return exit.code
    return 0


def _folder_op(tree: Path) -> str:
    """Asked of another process: nothing that a run caches may be cached when it begins."""
    ask = "from curate import api; print(*[op.name for op in api.ops()])"
    done = subprocess.run([sys.executable, "-c", ask], cwd=tree, capture_output=True, text=True, check=True)
    ops = set(done.stdout.split())
    found = next((op for op in FOLDER_OPS if op in ops), None)
    if found is None:
        sys.exit(f"bench.trace: {tree} has none of the ops {', '.join(FOLDER_OPS)}; add its name to FOLDER_OPS")
    return found


def generate(folder: Path, images: int) -> None:
    """Gradients of 64 x 64 pixels, each in other colors."""
    folder.mkdir()
    for index in range(images):
        image = Image.linear_gradient("L").resize((64, 64)).rotate(90 * (index % 4))
        colored = Image.merge(
            "RGB", [image, image.transpose(Image.Transpose.ROTATE_90), Image.new("L", (64, 64), index)]
        )
        colored.save(folder / f"{index:04}.png")


# --- what is printed --------------------------------------------------------------------------------------------------


def rows_of(trace: Trace) -> list[tuple[str, int, int, int, int, int]]:
    """(layer, files, functions, calls, calls from another file, deepest stack); the last row is of all layers."""
    rows = []
    crossed = Counter[str]()
    for crossing in trace.crossings:
        crossed[layer_of(crossing.callee, crossing.worker)] += crossing.calls
    for layer in (*LAYERS, "all"):
        mine = [function for function in trace.functions if layer in (function.layer, "all")]
        names = {(function.file, function.name) for function in mine}
        entered = crossed.total() if layer == "all" else crossed[layer]
        depth = max((function.depth for function in mine), default=0)
        calls = sum(function.calls for function in mine)
        rows.append((layer, len({file for file, _ in names}), len(names), calls, entered, depth))
    return rows


def report(title: str, trace: Trace) -> None:
    print(f"\n{title}")
    print(f"  {'layer':<16}{'files':>7}{'functions':>11}{'calls':>9}{'from other files':>18}{'deepest stack':>15}")
    for layer, files, functions, calls, entered, depth in rows_of(trace):
        if functions:
            print(f"  {layer:<16}{files:>7,}{functions:>11,}{calls:>9,}{entered:>18,}{depth:>15,}")


def print_path(trace: Trace, functions: bool) -> None:
    print("\nOne image: files in the order of first entry (functions passed in each), the function that was entered")
    passed = Counter(function.file for function in trace.functions)
    for number, (file, first) in enumerate(trace.files(), 1):
        print(f"  {number:>3}  {file} ({passed[file]})  {first.name}  [{first.layer}]")
        if functions:
            for function in (f for f in trace.functions if f.file == file):
                print(f"         {function.name}  x{function.calls:,}")
    pairs = trace.both_ways()
    print(f"\nOne image: {len(pairs)} pairs of files call each other (calls there, calls back)")
    for first_file, second_file, there, back in pairs:
        print(f"  {first_file} <-> {second_file}  ({there:,}, {back:,})")


def as_json(trace: Trace) -> dict[str, Any]:
    names = ("layer", "files", "functions", "calls", "from_other_files", "deepest_stack")
    parts = {"all": trace, "one_image": trace.of_image()}
    return {
        part: {
            "layers": [dict(zip(names, row, strict=True)) for row in rows_of(found)],
            "files": [file for file, _ in found.files()],
            "functions": [asdict(function) | {"layer": function.layer} for function in found.functions],
            "crossings": [asdict(crossing) for crossing in found.crossings],
            "both_ways": found.both_ways(),
        }
        for part, found in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose code is traced; this one if left out")
    parser.add_argument("--select", choices=SELECT, default="all", help="how samples are selected")
    parser.add_argument("--images", type=int, default=1, help="images in the pool")
    parser.add_argument("--json", type=Path, help="write the figures and all functions to this file")
    parser.add_argument("--functions", action="store_true", help="list the functions of each file")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    sys.path.insert(0, str(tree))
    trace = traced(tree, arguments.select, arguments.images)
    report("In all", trace)
    report("One image", trace.of_image())
    print_path(trace.of_image(), arguments.functions)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(trace), indent=1))


if __name__ == "__main__":
    main()
