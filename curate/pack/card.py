"""README.md of a dataset, whose header tells Hugging Face `datasets` which files have the samples, and their fields.

Without it, `datasets` takes `.tar.idx` for tars, and rejects datasets in which some samples have no text, or images
have several formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from curate.codec.formats import RASTER_EXTENSIONS
from curate.pack.energon import may_have_videos


def readme(name: str, tars: Sequence[tuple[str, int]], index: Iterable[pa.Table], numbered: bool) -> bytes:
    """From (file name, samples) of every tar and the dataset's index. `numbered`: the frames of a video are `.00.jpg`
    …, and not `.jpg`."""
    types = {name: _type(name.rpartition(".")[2]) for name in _media(index, numbered)}
    types |= {"txt": "string", "json": "json", "__key__": "string", "__url__": "string"}
    header = {
        "configs": [{"config_name": "default", "data_files": "*.tar"}],
        "dataset_info": {"features": [{"name": field, "dtype": kind} for field, kind in types.items()]},
    }
    samples = sum(count for _, count in tars)
    text = f"A WebDataset of {samples:,} samples in {len(tars):,} tars. `index.parquet` says where each sample is."
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n# {name}\n\n{text}\n".encode()


def _type(extension: str) -> str:
    if extension == "mp4":
        return "video"
    return "image" if extension in RASTER_EXTENSIONS else "binary"


def _media(index: Iterable[pa.Table], numbered: bool) -> list[str]:
    """Extensions of the members that are not texts."""
    found, most = set[str](), 0
    for table in index:
        kinds = table.column("ext")
        if may_have_videos(table):
            frames = pc.fill_null(pc.list_value_length(table.column("frame_sizes")), 0)
            most = max(most, pc.max(frames).as_py() or 0)
            found |= {"mp4"} if table.column("clip_size").null_count < len(table) else set()
            kinds = kinds.filter(pc.equal(frames, 0))
        found |= set(pc.unique(kinds).to_pylist())
    return sorted(found | {f"{number:02d}.jpg" if numbered else "jpg" for number in range(most)})
