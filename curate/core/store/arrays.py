"""Several arrays in one file, for steps of a fit.

The file is an uncompressed `.npz` (readable by numpy) whose members begin at multiples of 64 bytes, with an index of
them in the archive's comment. A local file can therefore be memory-mapped, and rows of an array take one ranged read on
an object store. Equal arrays give equal bytes.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.store.storage import Storage

ALIGNED_BYTES = 64
CHUNK_BYTES = 64 << 20
"""Bytes copied at a time while rows are reordered."""
_LOCAL_HEADER, _ZIP64_EXTRA, _END, _END_BYTES = 30, 20, b"PK\x05\x06", 22
_LONGEST_TAIL = _END_BYTES + 0xFFFF


@dataclass(frozen=True)
class ArrayFile:
    """One array of a file: where its values start, their type, and the shape of the array."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * np.dtype(self.dtype).itemsize


def write_arrays(
    storage: Storage,
    path: str,
    arrays: Mapping[str, NDArray[Any]],
    order: NDArray[np.integer] | None = None,
    head: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Publish arrays by name; with `order` (m,), each as `array[order]`, copied in chunks. Arrays of `head` are written
    first, and not reordered."""
    index: dict[str, list[Any]] = {}
    with storage.publish(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
        for name, given in {**(head or {}), **arrays}.items():
            array = np.asarray(given)
            if array.dtype.hasobject:
                raise ValueError(f"{name}: cannot write Python objects; convert the array to numbers or strings")
            info = zipfile.ZipInfo(f"{name}.npy")
            taken = archive.start_dir + _LOCAL_HEADER + len(info.filename.encode()) + _ZIP64_EXTRA + 4
            filling = -taken % ALIGNED_BYTES
            info.extra = struct.pack("<HH", 0xCAFE, filling) + bytes(filling)
            with archive.open(info, "w", force_zip64=True) as member:
                facts = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(header := io.BytesIO(), facts)
                member.write(header.getvalue())
                index[name] = [taken + filling + header.tell(), array.dtype.str, array.shape]
                for piece in _pieces(array, None if name in (head or {}) else order):
                    member.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        archive.comment = json.dumps(index).encode()


def _pieces(array: NDArray[Any], order: NDArray[np.integer] | None) -> Iterator[NDArray[Any]]:
    if not array.size:
        return
    if order is None:
        yield array
        return
    rows = max(1, CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(order), rows):
        yield array[order[start : start + rows]]


def members(storage: Storage, path: str) -> dict[str, ArrayFile]:
    """Index of the arrays in a file, read without the arrays."""
    tail = storage.read_range(path, -_LONGEST_TAIL, None)
    end = tail.rfind(_END)
    index = json.loads(tail[end + _END_BYTES :])
    return {name: ArrayFile(offset, dtype, tuple(shape)) for name, (offset, dtype, shape) in index.items()}


def read_arrays(storage: Storage, path: str) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name, read-only; memory-mapped on a local disk."""
    data: Any
    if storage.local:
        data = np.memmap(storage.path(path), dtype=np.uint8, mode="r")
    else:
        data = np.frombuffer(storage.read(path), dtype=np.uint8)
    return {name: _view(data, member) for name, member in members(storage, path).items()}


def read_rows(
    storage: Storage, path: str, name: str, start: int, stop: int, held: Mapping[str, ArrayFile] | None = None
) -> NDArray[Any]:
    """Rows start .. stop - 1 of one array. Takes one ranged read, and another for the index unless given as `held`."""
    member = (held or members(storage, path))[name]
    begin = member.offset + start * member.row_bytes
    part = ArrayFile(0, member.dtype, (stop - start, *member.shape[1:]))
    size = (stop - start) * member.row_bytes
    data = storage.read_range(path, begin, begin + size) if size else b""
    return _view(np.frombuffer(data, dtype=np.uint8), part)


def _view(data: NDArray[np.uint8], member: ArrayFile) -> NDArray[Any]:
    size = member.row_bytes * member.shape[0] if member.shape else np.dtype(member.dtype).itemsize
    return np.asarray(data[member.offset : member.offset + size]).view(member.dtype).reshape(member.shape)
