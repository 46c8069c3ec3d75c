"""A distilled student in stages: images of any shape and their texts, with the same results on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate import encoders
from curate.align.similarity import Similarity
from curate.codec.images import decode
from curate.core.nouns import facts
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.core.store.storage import Storage, open_storage
from curate.core.vectors import from_binary
from curate.encoders import spec as specs
from curate.engine.run import Result, run
from curate.image.embed import Embed
from curate.text.embed import Embed as TextEmbed
from tests.codec.make_images import encoded
from tests.distill.exports import TEXTS, save_distill
from tests.encoders.models import blob_image
from tests.engine.workspaces import assert_same

SIZES = [(90, 60), (16, 40), (200, 200), (8, 8), (300, 20), (64, 64), (90, 60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("distill") / "model"
    save_distill(path)
    return path


def _pipeline(images: Path, encoder: str) -> Pipeline:
    made = Pipeline()
    made.add("pool", resolve("acquire.folder")(namespace="t", path=str(images), shard_rows=4))
    made.add("text", resolve("text.clean")(), "pool")
    made.add("embed", Embed(encoder=encoder, device="cpu", batch_size=3), "text")
    made.add("scores", Similarity(encoder=encoder, device="cpu"), ["text", "embed"])
    made.add("texts", TextEmbed(encoder=encoder, device="cpu"), "text")
    return made


def facts_of(storage: Storage, op: str, shard: str) -> pa.Table:
    """Facts of an op with one fingerprint about a shard, as one table."""
    (folder,) = {"/".join(file.split("/")[:2]) for file in storage.list(f"facts/{op}") if file.count("/") == 3}
    return facts.read(storage, f"facts/{op}/{folder}", shard, 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    for place, size in enumerate(SIZES):
        (path / f"{place}.png").write_bytes(encoded(blob_image(*size, seed=place), "PNG"))
        (path / f"{place}.txt").write_text(TEXTS[place % len(TEXTS)])
    return path


@pytest.fixture(scope="module")
def local(folder: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The workspace of a run, and its result."""
    workspace = tmp_path_factory.mktemp("student") / "local"
    return workspace, run(_pipeline(images, f"distill:{folder}"), str(workspace))


@pytest.mark.long
def test_the_same_on_ray(folder: Path, images: Path, local: tuple[Path, Result], tmp_path: Path, on_ray: Any) -> None:
    run(_pipeline(images, f"distill:{folder}"), str(tmp_path / "ray"), engine=on_ray)
    assert_same(local[0], tmp_path / "ray", within=1e-5)


def test_stages_store_the_models_vectors_and_similarities(
    folder: Path, images: Path, local: tuple[Path, Result]
) -> None:
    encoder = encoders.load(f"distill:{folder}", device="cpu")
    storage = open_storage(str(local[0]))
    bases = {name: url.removeprefix(f"{storage.url}/") for name, url in local[1].outputs.items()}
    rows = 0
    for shard in read_shards(storage, bases["pool"]):
        names = storage.read_table(shard.table, columns=["source_id"])["source_id"].to_pylist()
        ops = ("image.embed", "align.similarity", "text.embed")
        embedded, scored, told = (facts_of(storage, op, shard.id) for op in ops)
        vectors = from_binary(embedded["embedding"])
        prepared = [encoder.prepare(decode((images / name).read_bytes())) for name in names]
        direct = encoder.encode(prepared, patches=False).summary
        direct /= np.linalg.norm(direct, axis=1, keepdims=True)
        assert np.allclose(vectors, direct, atol=2e-3)
        texts = encoder.encode_text([(images / name).with_suffix(".txt").read_text() for name in names])
        found = from_binary(told["text_embedding"].combine_chunks().flatten())
        assert np.allclose(found, texts / np.linalg.norm(texts, axis=1, keepdims=True), atol=2e-3)
        cosines = (direct * texts).sum(1) / np.linalg.norm(texts, axis=1)
        assert np.allclose([value for [value] in scored["similarity"].to_pylist()], cosines, atol=5e-3)
        rows += len(names)
    assert rows == len(SIZES)


def test_stages_report_resources_and_problems(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "SHIPPED", folder)
    for stage in (Embed(encoder="tiny"), Similarity(encoder="tiny")):
        assert stage.preflight() == []
        assert stage.resources().gpus == 0 and stage.parameters()["encoder"] == "tiny"
    assert Embed(encoder="tiny", device="cuda").resources().gpus == 1
    assert Embed(encoder="descriptor", device="cuda").resources().gpus == 0
    assert str(folder) not in repr((Embed(encoder=f"distill:{folder}").parameters(), Embed(encoder="tiny").identity()))
    headed = Similarity(encoder=f"distill:{folder}?head=plain")
    assert "has no text tower" in headed.preflight()[0]
