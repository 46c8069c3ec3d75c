"""Search by words: what a text names in WordNet, which rows show it, and when words come before an index."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw

from curate.api import Pipeline, Run, Slice, Workspace, make_stage
from curate.api.words import LONGEST, Words, parsed
from curate.core.errors import InputError
from curate.core.items import places_of
from curate.engine.run import run
from tests.e2e.commands import curate
from tests.encoders.test_classes import Mean
from tests.engine import toys
from tests.text.wordnet.wordnets import real, tiny  # noqa: F401  (fixtures)

DATA = Path(__file__).parents[3] / "shared/data/imagenet-sample-1000.parquet"
PHOTOS = {
    "chihuahua": 151, "retriever": 207, "car": 817, "cab": 468, "lemon": 951, "banana": 954, "apple": 948,
    "strawberry": 949, "ostrich": 9,
}  # fmt: skip
LISTS = pa.list_(pa.list_(pa.string()))


# --- what a text names ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("text", "things", "colours", "left"),
    [
        ("dogs", "dogs", "", ""),
        ("mice and geese", "mice geese", "", ""),
        ("a photo of two DOGS!", "dogs", "", "two"),
        ("ice creams", "ice creams", "", ""),
        ("hot dog, teddy bear", "hot dog|teddy bear", "", ""),
        ("red apples", "apples", "red", ""),
        ("black and white cat", "cat", "black white", ""),
        ("black bear", "black bear", "", ""),
        ("gray", "", "grey", ""),
        ("orange", "orange", "", ""),
        ("oranges", "oranges", "", ""),
        ("an orange", "orange", "", ""),
        ("orange car", "car", "orange", ""),
        ("orange cat and an orange", "cat orange", "orange", ""),
        ("orange juice", "orange juice", "", ""),
        ("pink", "", "pink", ""),
        ("3 dogs", "dogs", "", "3"),
        ("seven", "", "", "seven"),
        ("running", "", "", "running"),
        ("red zorblax", "", "red", "zorblax"),
        ("zorblax", "", "", "zorblax"),
        ("head", "head", "", ""),
        ("photo", "", "", ""),
        ("the of", "", "", ""),
        ("", "", "", ""),
        ("\x00 | ?!", "", "", ""),
    ],
)
def test_what_a_text_names(text: str, things: str, colours: str, left: str) -> None:
    found = parsed(text)
    wanted = things.split("|") if "|" in things or (" " in things and things in text) else things.split()
    assert (list(found[0]), *found[1:]) == (wanted, colours.split(), left.split())


@pytest.mark.usefixtures("real")
def test_a_word_has_all_its_senses_that_can_be_seen_the_most_frequent_first() -> None:
    assert parsed("apples")[0] == {"apples": ("apple.n.01", "apple.n.02")}
    assert parsed("dog")[0]["dog"][0] == parsed("dogs")[0]["dogs"][0] == "dog.n.01"
    assert parsed("orange")[0]["orange"][0] == "orange.n.01"
    senses = parsed("head")[0]["head"]
    assert len(senses) > 20 and senses[0] == "head.n.01" and len(set(senses)) == len(senses)
    said = Words((("head", senses),), (), ()).said(table([]))
    assert said == "Images that show head (head.n.01, head.n.02, head.n.04, head.n.05, head.n.06, …)"


@pytest.mark.usefixtures("real")
def test_colours_are_other_words_where_images_have_none() -> None:
    """Not things: a red is a Bolshevik, too."""
    assert parsed("red car", with_colours=False)[1:] == ([], ["red"])
    assert list(parsed("orange", with_colours=False)[0]) == ["orange"]


@pytest.mark.usefixtures("real")
def test_all_phrases_of_a_text_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone would take minutes for the longest text that the service takes."""
    asked = list[int]()
    found = pa.compute.index_in
    monkeypatch.setattr(
        pa.compute, "index_in", lambda *some, **more: asked.append(len(some[0])) or found(*some, **more)
    )
    assert len(parsed(" ".join("abcdefghijklmnopqrstuvwxyz" * 5))[2]) > 100
    assert len(asked) == 1 and asked[0] <= 130 * LONGEST


def test_another_wordnet_is_read_without_a_restart(tiny: Path) -> None:  # noqa: F811
    assert parsed("couch")[0] == {"couch": ("sofa.n.01",)} and parsed("lemon")[2] == ["lemon"]


# --- which rows show it -----------------------------------------------------------------------------------------------


def table(rows: list[tuple[list[list[str]] | None, list[str] | None]]) -> pa.Table:
    field = pa.field("concepts", LISTS, metadata=places_of("concepts"))
    schema = pa.schema([field, pa.field("colours", pa.list_(pa.string()))])
    return pa.Table.from_arrays([pa.array([row[0] for row in rows], LISTS), [row[1] for row in rows]], schema=schema)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lemons", [True, False, False, False, False, True]),
        ("fruit", [True, True, False, False, False, True]),
        ("red fruit", [False, True, False, False, False, True]),
        ("red", [False, True, True, True, False, True]),
        ("red green", [False, False, False, False, False, True]),
        ("dog and lemon", [False] * 6),
    ],
)
def test_rows_show_each_thing_or_a_kind_of_it_and_have_each_colour(text: str, expected: list[bool], start: int) -> None:
    shown = table(
        [
            ([["lemon.n.01"]], ["yellow"]),
            ([["pomegranate.n.02", "dog.n.01"]], ["red"]),
            ([[]], ["blue", "red"]),
            (None, ["red"]),
            ([["cab.n.03"]], None),
            ([["no_such.n.01", "lemon.n.01"]], ["green", "red"]),
        ]
    )
    shown = pa.concat_tables([shown.slice(0, 2), shown.slice(2)])  # several chunks, and a slice of them
    things, colours, left = parsed(text)
    asked = Words(tuple(things.items()), tuple(colours), tuple(left))
    assert asked.holds(shown.slice(start)).tolist() == expected[start:]
    assert asked.holds(shown.slice(0, 0)).tolist() == []


# --- a run ------------------------------------------------------------------------------------------------------------


class Both(Mean):
    """An encoder of the user's that reads texts."""

    context = 9

    def encode_text(self, texts: list[str]) -> np.ndarray:
        return np.ones((len(texts), 3), np.float32)


def photos(folder: Path) -> Path:
    """Nine photos, and other images: thin, animated, grey, CMYK, clip-art, cut short."""
    if not DATA.is_file():
        pytest.skip(f"{DATA} is missing")
    folder.mkdir()
    images = pq.read_table(DATA, columns=["image"]).column("image")
    for name, row in PHOTOS.items():
        (folder / f"{name}.jpg").write_bytes(images[row].as_py())
    lemon = Image.open(io.BytesIO(images[PHOTOS["lemon"]].as_py())).convert("RGB")
    lemon.convert("CMYK").save(folder / "lemon_cmyk.jpg")
    lemon.convert("L").save(folder / "lemon_grey.jpg")
    Image.new("RGB", (1, 5000), "red").save(folder / "odd_thin.png")
    frames = [Image.new("RGB", (60, 60), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "odd_moving.gif", save_all=True, append_images=frames[1:])
    clip = Image.new("RGBA", (200, 200))
    ImageDraw.Draw(clip).ellipse((40, 40, 160, 160), "red", "black", 6)
    clip.save(folder / "odd_clip.png")
    (folder / "odd_short.jpg").write_bytes((folder / "lemon.jpg").read_bytes()[:5000])
    return folder


def recipe(images: Path, index: str = "", looks: bool = True, named: bool = True) -> Pipeline:
    made = Pipeline().add("pool", make_stage("acquire.folder", namespace="n", path=str(images), shard_rows=5))
    made.add("embed", make_stage("image.embed", encoder="lite0"), "pool")
    if named:
        made.add("concepts", make_stage("image.concepts", encoder="lite0"), "embed")
    if looks and named:
        made.add("looks", make_stage("image.appearance"), "concepts")
    if index:
        made.add("vectors", make_stage("image.embed", encoder=index), "pool")
        made.add("index", make_stage("search.fit"), "vectors")
    return made.check()


RUNS = {
    "named": {}, "tiny": {"index": "tiny"}, "own": {"index": "tests.api.test_words:Both"}, "lite": {"index": "lite0"},
    "plain": {"looks": False}, "vectors": {"named": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def workspace(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:  # noqa: F811
    folder = tmp_path_factory.mktemp("words")
    images = photos(folder / "images")
    for name, given in RUNS.items():
        run(recipe(images, **given), str(folder / "workspace"), run_id=name)  # type: ignore[arg-type]
    return Workspace(str(folder / "workspace"))


@pytest.fixture(scope="module")
def named(workspace: Workspace) -> Run:
    return workspace.run("named")


def names(found: Run, text: str, **asked: object) -> list[str]:
    return [str(hit.name).partition(".")[0] for hit in found.search(text, **asked).hits]  # type: ignore[arg-type]


def test_photos_are_found_by_what_they_show(named: Run) -> None:
    assert set(names(named, "dog")) >= {"chihuahua", "retriever"}
    assert {"lemon", "banana", "apple", "strawberry"} <= set(names(named, "fruit"))
    assert "car" in names(named, "red cars") and "cab" not in names(named, "red cars")
    assert names(named, "ostriches") == ["ostrich"] and names(named, "whale") == []
    answer = named.search("yellow lemon", columns=["concept", "colours"])
    assert answer.said.startswith("Images that show lemon (lemon.n.01) and that are yellow in the middle")
    assert {hit.columns["concept"] for hit in answer.hits} == {"lemon.n.01"}
    assert all("yellow" in hit.columns["colours"] for hit in answer.hits)
    assert (answer.stage, answer.rows, answer.judged) == ("pool", 15, len(answer.hits))
    scores = [hit.score for hit in named.search("fruit").hits]
    assert sorted(scores, reverse=True) == scores and len(named.search("fruit", limit=2).hits) == 2


def test_odd_images_have_concepts_or_a_reason(named: Run) -> None:
    """A CMYK and a grey photo are what the photo is; what a classifier of photos has never seen is less sure."""
    assert {"lemon", "lemon_cmyk", "lemon_grey"} <= set(names(named, "lemon"))
    assert "lemon_grey" not in names(named, "yellow lemon")
    found = named.slice(Slice("looks"), ["concept_share", "colours"], limit=100).table.to_pylist()
    share = {row["name"].partition(".")[0]: row["concept_share"] for row in found}
    odd, sure = ([share[name] for name in share if name.startswith("odd") == is_odd] for is_odd in (True, False))
    assert "odd_short" not in share and len(odd) == 3 and max(odd) < np.median(sure)
    assert set(names(named, "red")) >= {"odd_thin", "odd_moving", "odd_clip", "car"}
    assert named.workspace.run("named").record.result["ledger"]["embed"]["unusable"] == {"truncated": 1}


def test_words_that_name_nothing_are_one_line(named: Run, workspace: Workspace) -> None:
    for text in ("zorblax", "running", "7"):
        with pytest.raises(InputError, match=f"^search: WordNet knows no visible thing '{text}'$"):
            named.search(text)
        with pytest.raises(InputError, match=f"^search: WordNet knows no visible thing '{text}'$"):
            workspace.run("lite").search(text)  # its index has no text tower
    assert named.search("red zorblax").said == "Images that are red in the middle; not searched: zorblax"
    with pytest.raises(InputError, match=r"'red'; to search by colours, add a stage `image.appearance`"):
        workspace.run("plain").search("red")
    assert "car" in names(workspace.run("plain"), "red car")
    with pytest.raises(InputError, match=r"no vectors to search yet; add a stage `search.fit`"):
        named.search("the")
    with pytest.raises(InputError, match=r"run vectors: no vectors to search yet; add a stage `search.fit`"):
        workspace.run("vectors").search("dog")
    assert workspace.run("vectors").showing("pool", "dog") == named.showing("pool", "the") == (None, "")


def test_a_thing_that_no_image_shows_is_left_out(named: Run) -> None:
    answer = named.search("a dog in the snow at sunset")
    assert {hit.name for hit in answer.hits} == {hit.name for hit in named.search("dog").hits} != set()
    assert answer.said == "Images that show dog (dog.n.01), the most probable first; not searched: snow, sunset"
    assert names(named, "a lemon and an ostrich") == []  # both are shown, not together


def test_words_come_before_an_included_index(workspace: Workspace) -> None:
    found = workspace.run("tiny")
    assert found.search("dogs").said and set(names(found, "dogs")) >= {"chihuahua", "retriever"}
    for text in ("whale", "zorblax"):  # no image shows it: the nearest vectors
        answer = found.search(text)
        assert (answer.stage, answer.said, len(answer.hits)) == ("index", "", 10)
    assert found.search("dogs", stage="index").said == found.search("dogs", encoder="tiny").said == ""
    assert workspace.run("lite").search("dogs").said
    assert workspace.run("lite").search("whale").hits == []


def test_words_need_no_index_that_an_erasure_removed(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.root, tmp_path / "copy")
    found = Workspace(str(tmp_path / "copy")).run("tiny")
    (tmp_path / "copy" / found.record.outputs["index"]["base"] / "manifest.json").unlink()
    assert found.search("dogs") == workspace.run("tiny").search("dogs")
    with pytest.raises(InputError, match="the index of index was removed"):
        found.search("dogs", stage="index")


def test_an_index_by_a_foreign_encoder_comes_first(workspace: Workspace) -> None:
    answer = workspace.run("own").search("dogs")
    assert (answer.stage, answer.said, len(answer.hits)) == ("index", "", 10)


def test_filters_and_tombstones_hold(named: Run, workspace: Workspace) -> None:
    where = "concept_share > 0.5 and source_id not like '%grey%'"
    assert set(names(named, "lemon")) - set(names(named, "lemon", where=where)) == {"lemon_grey"}
    assert names(named, "lemon", where="concept_share > 1") == []
    with pytest.raises(InputError, match="nope: no stage over the rows of pool writes this column"):
        named.search("lemon", where="nope = 1")
    first = named.search("lemon").hits[0]
    workspace.add_tombstones([first.key], "asked for it")
    try:
        assert first.key not in {hit.key for hit in named.search("lemon").hits}
    finally:
        workspace.remove_tombstones([first.key], "a mistake")
    assert first in named.search("lemon").hits


def test_the_command_prints_what_it_searched(workspace: Workspace) -> None:
    options = ("-w", workspace.url, "--run", "named")
    found = curate("search", "red cars", *options, "--columns", "concept")
    assert "Images that show cars (car.n.01) and that are red in the middle" in found.words
    assert "probability" in found.words and "sports_car.n.01" in found.words and " nearest " not in found.words
    failed = curate("search", "zorblax", *options)
    assert failed.code != 0 and failed.err.strip() == "curate: search: WordNet knows no visible thing 'zorblax'"


def test_a_run_without_rows_has_nothing_to_search(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no samples"):
        run(Pipeline().add("pool", toys.Numbers(namespace="toys", rows=0)).check(), str(tmp_path), run_id="one")
    with pytest.raises(InputError, match="run one: no vectors to search yet"):
        Workspace(str(tmp_path)).run("one").search("dog")
