"""`make video`, small: from a folder of films to a trained student."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from curate.api import Workspace
from curate.codec.video.limited import probe
from curate.core.recipe.load import load
from pipelines import video
from pipelines.commands import run_pipeline
from pipelines.films import COPY_EVERY, FPS, STILL_EVERY, clip_arts, drawn, make_films
from pipelines.video_corpus import CAPTIONS
from tests.video.make_shots import texture

FILMS = 12
CURATION = ["encoder=descriptor", "levels=[3]", "share=0.8"]
TRAINING = ["seed=3", "data.test_fraction=0.4", "train.steps=2", "train.warmup_steps=1", "train.standardise_samples=8"]
"""Few steps of small batches."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with metadata, as of OpenClipart."""
    folder, lines = tmp_path_factory.mktemp("images"), []
    for number in range(40):
        category = ("animals/mammals/cats", "food/fruit", "logos")[number % 3]
        texture(number, 160, 120).save(folder / f"{number}.png")
        about = {"file_name": f"{number}.png", "title": f"number {number}", "keywords": ["two words"]}
        lines.append(json.dumps(about | {"category": category}))
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.long
def test_what_is_known_of_films_is_true(images: Path, tmp_path: Path) -> None:
    """Their seconds, which frames are copies of those before, and which metadata a folder of images gives them."""
    films = make_films(images, STILL_EVERY, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metadata.jsonl").read_text().splitlines()]
    assert {line["file_name"] for line in lines} == {path.name for path in tmp_path.glob("*.mp4")}
    assert len(lines) == STILL_EVERY + -(-STILL_EVERY // COPY_EVERY)
    first, copy = lines[:2]
    assert copy["copy_of"] == first["file_name"] and copy["cuts_ms"] == first["cuts_ms"]
    assert {line["label"] for line in lines} == {"mammals", "fruit"}  # not logos
    assert all(f"#{line['label']} " in line["caption"] and "#twowords" in line["caption"] for line in lines)
    assert any("#animals #mammals #cats #twowords" in line["caption"] for line in lines)
    for film in films:
        seconds = sum(shot.frames for shot in film.shots) / FPS
        assert abs(probe((tmp_path / f"{film.name}.mp4").read_bytes()).duration_ms - 1000 * seconds) < 2
    frames = list(drawn(films[-1]))
    changes = {n for n, (a, b) in enumerate(pairwise(frames), 1) if a.tobytes() != b.tobytes()}
    assert changes == {round(cut * FPS / 1000) for cut in films[-1].cuts_ms}  # the last of ten is still
    assert clip_arts(images).keys() == {"mammals", "fruit"}


def test_a_missing_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.setattr("sys.argv", ["video", "--videos", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^video: VIDEOS=[^\n]*: not a folder with videos in it[^\n]*$"):
        video.main()


def test_your_own_videos_are_labelled_by_their_folders(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "one.MP4").write_bytes(b"-")
    pool = load(video.PIPELINE, video.own_videos(tmp_path)).nodes["pool"].stage
    assert [sample.meta["label"] for portion in pool.plan() for sample in pool.read(portion)] == ["dog"]


def test_real_videos_have_captions_with_hashtags() -> None:
    assert len(CAPTIONS) == 9 and all("#" in caption for caption in CAPTIONS.values())


@pytest.mark.long
def test_films_become_a_student(images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The recipes of `make video` on 12 films, of which 2 are copied and 1 is still; again, nothing is computed."""
    folder, workspace = tmp_path / "films", str(tmp_path / "workspace")
    folder.mkdir()
    films = make_films(images, FILMS, folder)
    clips = sum(len(film.shots) for film in films[: STILL_EVERY - 1] + films[STILL_EVERY:])
    assert clips >= 20

    settings = [f"videos={folder}", *CURATION]
    outputs = video.curate_and_teach(settings, workspace, "local", Console(), TRAINING)
    said = capfd.readouterr().out
    shown = dict(line.split(maxsplit=1) for line in said[said.rindex("\ndataset ") :].splitlines() if line)
    assert Path(shown["report"]).is_file() and Path(shown["judged"]).is_file() and shown["kNN"].startswith("student ")
    found = list(video.found(Workspace(workspace)))
    cuts = sum(len(film.cuts_ms) for film in films)
    assert found == [
        "copies   2 of 2 found", f"cuts     {cuts} of {cuts} found; {cuts} reported",
        "still    1 of 1 rejected; 1 rejected in all",
    ]  # fmt: skip
    ledger = Workspace(workspace).run(None).ledger()
    assert ledger["clips"].children == clips == ledger["embed"].before
    assert run_pipeline(video.PIPELINE, settings, workspace, "local") == outputs
    assert not any(count.get("computed") for count in Workspace(workspace).run(None).counts().values())
