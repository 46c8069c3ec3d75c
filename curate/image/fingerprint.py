"""`image.fingerprint`: digests and hashes that identify exact and near copies of an image."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar

import pyarrow as pa
from PIL import Image
from pydantic import Field

from curate.codec.images import MAX_PIXELS
from curate.core.contracts import Batch, Map, Runtime, Sample
from curate.kernels.perceptual import HASH_BYTES, MIN_ONES, perceptual_hash

SCHEMA = pa.schema(
    [
        pa.field("pixel_sha256", pa.string(), metadata={"of": "width, height and decoded RGB; hexadecimal"}),
        pa.field("perceptual_hash", pa.binary(HASH_BYTES), metadata={"kernel": "curate.image.perceptual"}),
        pa.field("flat", pa.bool_(), metadata={"of": f"fewer than {MIN_ONES} frequencies: compare exactly only"}),
    ]
)


class Fingerprint(Map):
    """Compute a digest of each image's pixels and a perceptual hash of its low frequencies.

    The digest is equal for a PNG and a BMP of the same image; the hashes of resized and recompressed copies differ in
    few bits. `flat` marks images with too little detail to compare by hash. Unusable: images that cannot be decoded.
    """

    op: ClassVar[str] = "image.fingerprint"
    pixels: ClassVar[bool] = True

    max_pixels: int = Field(MAX_PIXELS, ge=1, description="Width x height above which an image is not decoded.")
    threads: Annotated[int, Runtime(), Field(ge=1, description="Decoding threads.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> tuple[str, bytes, bool]:
        image = sample.image(self.max_pixels)
        return pixel_sha256(image), *perceptual_hash(image)

    def process(self, batch: Batch) -> dict[str, Any]:
        rows = batch.prepared
        return {name: [row[index] for row in rows] for index, name in enumerate(SCHEMA.names)}


def pixel_sha256(image: Image.Image) -> str:
    """Digest of size and RGB pixels: equal for any two encodings of the same pixels."""
    digest = hashlib.sha256(f"{image.width}x{image.height}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
