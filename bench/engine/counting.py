"""Count storage operations, in the driver and in every worker, and do the same reads and writes with bare files.

A listing counts an operation per 1,000 names, which is what an object store charges. Everything else is one: a read (of
a range or whole), an opened file, a published, created, marked or removed file, a look whether there is one.

Workers learn of it with the first `Storage` that they are sent: it unpickles by `counted`, which wraps the class there.
What they do they append to a file per process, which the driver reads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curate.core.store import storage as module
from curate.core.store.storage import Storage, open_storage

PAGE = 1000
SAMPLE = 1000
"""Files of a step that the bare reference reads, and writes, at most; its time is scaled to all."""


@dataclass
class Done:
    """What a step has asked for."""

    operations: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    """Of `read` and `written`: how many accesses there were."""
    sample: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: {"read": [], "written": []})
    """A fair sample of these: (path relative to the workspace, bytes)."""
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def add(self, what: str, count: int, way: str, path: str, size: int) -> None:
        self.operations[what] += count
        if way:
            self.bytes[way] += size
            self.files[way] += 1
            held = self.sample[way]
            if len(held) < SAMPLE:
                held.append((path, size))
            elif (place := self.chance.randrange(self.files[way])) < SAMPLE:
                held[place] = path, size


Note = Callable[[str, int, str, str, int], None]
_inside = threading.local()
_note: list[Note] = []
_folder: list[str] = []


def _counted(method: Callable[..., Any], what: str, way: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: Storage, relative: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(_inside, "on", False):
            return method(self, relative, *arguments, **options)
        _inside.on = True
        try:
            found = method(self, relative, *arguments, **options)
        finally:
            _inside.on = False
        count, size, path = 1, 0, str(relative)
        if what == "list":
            count = max(1, -(-len(found) // PAGE))
        elif way == "read":
            size = len(found) if isinstance(found, bytes) else _size(self, path)
        elif way == "written":
            path = str(arguments[0]) if what == "adopt" else path
            size = _size(self, path)
        for note in _note:
            note(what, count, way, path, size)
        return found

    return wrapped


def _size(storage: Storage, path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(storage.path(path)).st_size if storage.local else 0
    return 0


WAYS = {
    "read": "read",
    "read_range": "read",
    "open": "read",
    "read_table": "read",
    "list": "",
    "exists": "",
    "create": "written",
    "create_table": "written",
    "adopt": "written",
    "mark": "",
    "remove": "",
    "remove_file": "",
}


def install(note: Note, folder: str = "") -> None:
    """Wrap `Storage` in this process, and, where there is a `folder`, in all processes that get a storage from here."""
    _note[:] = [note]
    if folder:
        _folder[:] = [folder]
    if getattr(Storage, "counts", False):
        return
    Storage.counts = True  # type: ignore[attr-defined]
    for what, way in WAYS.items():
        setattr(Storage, what, _counted(getattr(Storage, what), what, way))
    plain = Storage.publish

    @contextlib.contextmanager
    def publish(self: Storage, relative: str) -> Iterator[Path]:
        with plain(self, relative) as path:
            yield path
            size = path.stat().st_size
        for note in _note:
            note("publish", 1, "written", relative, size)

    Storage.publish = publish  # type: ignore[method-assign]
    Storage.__reduce__ = lambda self: (counted, (self.url, *_folder))  # type: ignore[method-assign,assignment]


def counted(url: str, folder: str = "") -> Storage:
    """A storage whose operations this process counts from now on."""
    if folder and not _note:
        log = os.open(f"{folder}/{os.getpid()}.tsv", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(*values: Any) -> None:
            os.write(log, ("\t".join(map(str, values)) + "\n").encode())

        install(note, folder)
    return open_storage(url)


def collect(folder: str, done: Done) -> None:
    """Add what worker processes have noted, and forget it there."""
    for file in Path(folder).glob("*.tsv"):
        with open(file) as lines:
            for line in lines:
                what, count, way, path, size = line.rstrip("\n").split("\t")
                done.add(what, int(count), way, path, int(size))
        os.truncate(file, 0)


# --- the same without an engine ---------------------------------------------------------------------------------------


def bare_seconds(workspace: str, aside: str, done: Done) -> float:
    """Seconds to read and write, one at a time, the files that a step has read and written. A write makes a file
    durable under its name: write, fsync, rename, fsync of the folder."""
    seconds = 0.0
    for way, act in (("read", _bare_read), ("written", _bare_write)):
        sample = done.sample[way]
        if sample:
            root = workspace if way == "read" else aside
            began = time.perf_counter()
            for path, size in sample:
                act(os.path.join(root, path), size)
            seconds += (time.perf_counter() - began) * done.files[way] / len(sample)
    return seconds


def _bare_read(path: str, size: int) -> None:
    with contextlib.suppress(OSError), open(path, "rb") as file:  # some are gone by now
        file.read(size)


def _bare_write(path: str, size: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}{module.TEMPORARY}", "wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}{module.TEMPORARY}", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
