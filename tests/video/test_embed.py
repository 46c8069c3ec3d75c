from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from curate.codec.images import decode
from curate.codec.video import limited
from curate.core.contracts import Batch, Sample
from curate.core.vectors import from_binary
from curate.image.embed import Embed as ImageEmbed
from curate.video.embed import Embed, mean_directions
from tests.codec.video.make_videos import video
from tests.video.make_shots import encoded, shot


def embedded(*data: bytes, **parameters: Any) -> tuple[np.ndarray, np.ndarray, Batch]:
    stage = Embed(**parameters)
    stage.setup({})
    batch = Batch(
        pa.table({"key": [str(n) for n in range(len(data))]}), [stage.prepare(Sample(item, decode)) for item in data]
    )
    columns = stage.process(batch)
    assert set(columns) == set(stage.schema().names)
    vectors = from_binary(pa.chunked_array([pa.array(columns["embedding"], stage.schema().field("embedding").type)]))
    return vectors, columns["embedding_spread"], batch


def test_the_mean_is_of_unit_vectors_and_the_spread_of_distances_to_it() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 8, 16)).astype(np.float32)
    means = mean_directions(vectors)
    units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    assert np.allclose(means, units.mean(1), atol=1e-6)
    lengths = np.linalg.norm(means, axis=-1)
    distances = 1 - np.einsum("bnd,bd->bn", units, means / lengths[:, None])
    assert np.allclose(1 - lengths, distances.mean(1), atol=1e-6)


def test_frames_without_a_direction_do_not_count() -> None:
    vectors = np.zeros((3, 2, 4), np.float32)
    vectors[0, 1] = 3, 0, 4, 0
    vectors[1, 0] = np.nan
    means = mean_directions(vectors)
    assert np.allclose(means[0], [0.6, 0, 0.8, 0])
    assert np.isnan(means[1]).any() and not means[2].any()


def test_a_video_that_does_not_change_is_its_frame() -> None:
    still, moving = encoded(shot(1, "static", 2)), encoded([*shot(1, "static", 1), *shot(2, "static", 1)])
    vectors, spread, batch = embedded(still, moving)
    assert not batch.unfit
    assert spread[0] < 1e-3 < 0.02 < spread[1]
    [frame] = limited.frames(still, [1000])
    image = ImageEmbed()
    image.setup({})
    vector = image.encoded([image._encoder.prepare(Image.fromarray(frame.rgb))])[0]
    assert vectors[0] @ vector / np.linalg.norm(vector) > 0.999


@pytest.mark.parametrize("encoder", ["descriptor", "tiny"])
def test_neighbours_do_not_matter(encoder: str) -> None:
    one, others = video("mp4 h264"), [video("mp4 mpeg4"), video("avi mjpeg")]
    alone, spread, _ = embedded(one, encoder=encoder, frames=5)
    beside, spreads, _ = embedded(*others, one, encoder=encoder, frames=5)
    assert np.array_equal(alone[0], beside[2]) and spread[0] == spreads[2]


def test_a_virtual_clip_is_embedded_as_the_same_frames_of_its_video() -> None:
    whole = video("mp4 h264")
    clip = limited.extract(whole, {"start_ms": 280, "stop_ms": 1000})
    stage = Embed(frames=3)
    stage.setup({})
    prepared = stage.prepare(Sample(clip, decode))
    frames = limited.frames(whole, [400, 640, 880])
    expected = [stage._encoder.prepare(Image.fromarray(frame.rgb)) for frame in frames]
    assert all(np.array_equal(a, b) for a, b in zip(prepared, expected, strict=True))
