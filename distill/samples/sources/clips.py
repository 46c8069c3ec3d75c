"""Clips: samples of several frames, which lie next to each other in a tar.

The index has the number of a clip's frames, and the span from the first frame's first byte to the last frame's last
byte. One read gets all of them; the tar's headers between the frames say where each begins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from tarfile import BLOCKSIZE
from typing import TYPE_CHECKING

import numpy as np

from curate.core.errors import InputError

if TYPE_CHECKING:
    from distill.samples.sources.mixture import Mixture

_NUMBER = re.compile(r"(\d+)\.(\w+)$")
_PLACE = "data.sources"
_BLOCK = 1 << 20


def frame_number(suffix: str, extensions: Sequence[str]) -> int | None:
    """Number of a frame by what follows the first dot of its member's name, as in `00.jpg`; None for other members."""
    found = _NUMBER.fullmatch(suffix)
    return int(found[1]) if found and found[2] in extensions else None


def spread(stored: int, frames: int) -> list[int]:
    """The middles of `frames` equal parts of `stored` frames; all of them if there are no more."""
    count = min(stored, frames)
    return [(2 * number + 1) * stored // (2 * count) for number in range(count)]


def split_span(span: bytes) -> list[bytes]:
    """The plain files in a part of a tar that begins with a header, by their numbers if each name has one.

    Raises ValueError if there is no header where one is expected. Extended headers are skipped: names that do not fit
    a plain header may have no number, and such files keep their order.
    """
    files, at = list[tuple[int | None, bytes]](), 0
    while at < len(span):
        header, at = span[at : at + BLOCKSIZE], at + BLOCKSIZE
        size = int(header[124:136].rstrip(b" \0"), 8)
        if header[156:157] in (b"0", b"\0"):
            name = _NUMBER.search(header[:100].rstrip(b"\0").decode("latin-1"))
            files.append((int(name[1]) if name else None, span[at : at + size]))
        at += size + -size % BLOCKSIZE
    if all(number is not None for number, _ in files):
        files.sort(key=lambda file: file[0] or 0)
    return [data for _, data in files]


def check_clips(mixture: Mixture) -> None:
    """InputError for a source of images that has clips, and for settings of clips that do not fit its samples."""
    for number, (own, recipe) in enumerate(zip(mixture.sources, mixture.recipes, strict=True)):
        place, start, stop = f"{_PLACE}.{number}", int(mixture.starts[number]), int(mixture.starts[number + 1])
        most, samples, clips, files = 1, 0, 0, 0
        for first in range(start, stop, _BLOCK):
            frames = mixture.frames_of_videos(np.arange(first, min(first + _BLOCK, stop)))
            if recipe.only is not None:
                frames = frames[(frames >= 0) == (recipe.only == "clips")]
            most, samples = max(most, int(frames.max(initial=1))), samples + len(frames)
            clips, files = clips + int(np.count_nonzero(frames > 1)), files + int(np.count_nonzero(frames == 0))
        if not samples:
            raise InputError(f"{place}.only: {recipe.only}, but {own.url} has none of them; remove the source")
        if files:
            raise InputError(
                f"{place}: {files} of {samples} samples of {own.url} are mp4 files without frames; pack it with "
                f"`video: frames` or `video: both`{', or set only: images' if files < samples else ''}"
            )
        if recipe.frames is not None and recipe.frames > most:
            what = f"its clips have {most} frames at most; set it to {most} or lower" if clips else "it has no clips"
            remedy = ", or pack more frames" if clips else "; remove the setting"
            raise InputError(f"{place}.frames: {recipe.frames} frames of the clips of {own.url}, but {what}{remedy}")
        if clips and recipe.modality == "image" and recipe.frames != 1:
            raise InputError(
                f"{place}: {clips} of {samples} samples of {own.url} are clips of up to {most} frames, but its "
                f"modality is image; set modality: video, or frames: 1 to read each clip's middle frame as an image"
                f"{', or only: images' if recipe.only is None and clips < samples else ''}"
            )
