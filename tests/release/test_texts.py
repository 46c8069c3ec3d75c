"""Captions by name, texts that were selected one by one, and samples that were derived from others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.acquire.folder import AcquireFolder
from curate.api import Workspace
from curate.caption.mix import Mix
from curate.core.recipe.pipeline import Pipeline
from curate.image.frames import Frames
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from curate.select.metaclip import SelectMetaClip
from curate.text.clean.clean import Clean
from curate.text.counts import TextCounts
from curate.text.sentences import Sentences
from curate.text.vocabulary.build import BuildVocabulary
from curate.text.vocabulary.match import Match
from tests.codec.make_images import encoded, noise
from tests.codec.test_frames import movie, noises


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        (folder / f"{number:02d}.png").write_bytes(encoded(noise(20, 16, seed=number), "png"))
        if number % 3:
            (folder / f"{number:02d}.txt").write_text(f"Photo &amp; caption {number}")
    return folder


def released(pipeline: Pipeline, folder: Path, **options: Any) -> list[dict[str, Any]]:
    workspace = Workspace(str(folder / "workspace"))
    workspace.submit(pipeline.check(), run_id="first").wait()
    workspace.release("photos", str(folder / "release"), **options)
    return pq.read_table(folder / "release" / "data").to_pylist()


def test_captions_by_name(photos: Path, tmp_path: Path) -> None:
    made = Pipeline().add("pool", AcquireFolder(path=str(photos), namespace="photos", shard_rows=5))
    made.add("clean", Clean(), "pool").add("mix", Mix(texts={"raw": "caption", "clean": "text"}), "clean")
    made.add("all", SelectAll(), "mix")
    made.add("dataset", PackWebDataset(name="photos", texts="texts", text="texts.clean"), "all")
    found = released(made, tmp_path)
    assert len(found) == 12
    for row in found:
        number = row["caption"] and row["caption"].rpartition(" ")[2]
        assert row["caption"] == row["caption_raw"] == (number and f"Photo &amp; caption {number}")
        assert row["text"] == row["caption_clean"] == (number and f"Photo & caption {number}")
        assert row["url"] is None and row["sha256"] is None and len(row["stored_sha256"]) == 64
    assert sum(row["caption"] is None for row in found) == 4
    text = (tmp_path / "release" / "README.md").read_text()
    assert "| `caption_clean` | texts.clean, by caption.mix. |" in text and str(photos) not in text
    assert str(photos) not in (tmp_path / "release" / "recipe.yaml").read_text()


@pytest.mark.long
def test_texts_that_were_selected_one_by_one(tmp_path: Path) -> None:
    """Each is a separate row."""
    images = tmp_path / "in"
    images.mkdir()
    for number in range(2):
        (images / f"{number}.png").write_bytes(encoded(noise(20, 16, seed=number), "png"))
        text = f"A red house is on the left of /home/me. A blue house {number} is on the right."
        (images / f"{number}.txt").write_text(text)
    made = Pipeline().add("pool", AcquireFolder(path=str(images), namespace="photos"))
    made.add("clean", Clean(), "pool").add("split", Sentences(), "clean").add(
        "words", BuildVocabulary(column="sentences", wordnet=True), "split"
    )
    made.add("match", Match(column="sentences"), "split", vocabulary="words")
    made.add("counts", TextCounts(columns=["entries"]), "match")
    made.add("all", SelectMetaClip(columns=["entries"], threshold=1000), "match", counts="counts")
    made.add("dataset", PackWebDataset(name="photos", text="sentences"), "all")
    found = released(made, tmp_path, columns=["all=sentences"])
    assert all(row["all"][0] is None and row["all"][1].startswith("A blue house") for row in found)
    assert sorted((row["item"], row["text"]) for row in found) == [
        ("0", "A red house is on the left of /home/me."), ("0", "A red house is on the left of /home/me."),
        ("1", "A blue house 0 is on the right."), ("1", "A blue house 1 is on the right."),
    ]  # fmt: skip
    assert len({row["key"] for row in found}) == 2


def test_frames_name_their_animation(tmp_path: Path) -> None:
    images = tmp_path / "in"
    images.mkdir()
    for name, count in (("a.gif", 3), ("b.gif", 2)):
        (images / name).write_bytes(movie("GIF", noises(count), duration=100))
    made = Pipeline().add("pool", AcquireFolder(path=str(images), namespace="photos"))
    made.add("frames", Frames(namespace="frames", bytes="virtual"), "pool").add("all", SelectAll(), "frames")
    made.add("dataset", PackWebDataset(name="photos"), "all")
    found = released(made, tmp_path)
    frames: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        frames.setdefault(row["parent"], []).append(row)
    assert sorted([json.loads(row["span"])["frame"] for row in rows] for rows in frames.values()) == [[0, 1], [0, 1, 2]]
    assert {row["stored_sha256"] for row in found} == {None}
    parent, keys = next((parent, {row["key"] for row in rows}) for parent, rows in frames.items())
    workspace = Workspace(str(tmp_path / "workspace"))
    workspace.add_tombstones([parent], "asked for")
    workspace.release("photos", str(tmp_path / "next"), predecessor=str(tmp_path / "release"))
    assert set(pq.read_table(tmp_path / "next/removed.parquet")["key"].to_pylist()) == keys
    assert not keys & set(pq.read_table(tmp_path / "next/data")["key"].to_pylist())
