from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.core.contracts import Artifact, Batch
from curate.core.errors import InputError, TargetError
from curate.core.items import family_of, per_item
from curate.text.hashtags.apply import Hashtags
from curate.text.hashtags.lexicon import wordnet_lexicon
from curate.text.hashtags.map import MAP, HashtagMap
from tests.text.wordnet.wordnets import real, tiny  # noqa: F401  (fixtures)

TAGS = [["Dogs", "dogs", "hotDog"], ["hot-dog", "Sofas", "couch", "running"], None, [], ["ＤＯＧ", "qqq", "white"]]


def table(tags: list[list[str] | None]) -> pa.Table:
    captions = ["#hotdog dogs", None, "", "a couch", "dogs"]
    return pa.table({"tags": pa.array(tags, pa.list_(pa.string())), "caption": captions[: len(tags)]})


def built(rows: pa.Table, cut: int = 2, **parameters: Any) -> Artifact:
    stage = HashtagMap(**parameters)
    assert pickle.loads(pickle.dumps(stage)) == stage and stage.preflight() == []
    states = [
        stage.partial(rows.slice(0, cut).select(stage.reads())),
        stage.partial(rows.slice(cut).select(stage.reads())),
    ]
    return stage.finish(stage.merge(iter(states)))


def test_the_map_of_a_pool(tiny: Path) -> None:  # noqa: F811
    artifact = built(table(TAGS))
    assert artifact["map"].schema == MAP
    told = {
        row["tag"]: (row["canonical"], row["kind"], row["count"], row["how"]) for row in artifact["map"].to_pylist()
    }
    assert told == {
        "dogs": ("dog", "noun", 1, "synset"),
        "dog": ("dog", "noun", 1, "word"),
        "hotdog": ("hot dog", "noun", 1, "synset"),
        "hot dog": ("hot dog", "noun", 1, "word"),
        "sofas": ("sofa", "noun", 1, "synset"),
        "couch": ("sofa", "noun", 1, "synset"),
        "running": ("run", "action", 1, "synset"),
        "qqq": (None, "unmapped", 1, "unknown"),
        "white": (None, "unmapped", 1, "adjective"),
    }
    summary = artifact["summary"]
    assert (summary["tags"], summary["uses"], summary["vocabulary"]) == (9, 9, {"noun": 3, "action": 1})
    assert summary["mapped_share"] == pytest.approx(7 / 9) and summary["short"] == 0


def test_how_the_pool_is_cut_does_not_matter(tiny: Path) -> None:  # noqa: F811
    rows = table(TAGS)
    assert [built(rows, cut) for cut in (0, 1, 5)] == [built(rows)] * 3


def test_a_pool_without_tags(tiny: Path) -> None:  # noqa: F811
    artifact = built(table([None, []]), words=None)
    assert artifact["map"].num_rows == 0 and artifact["summary"]["mapped_share"] is None
    assert hashtags([["dog"]], artifact)[0] == [None]


def test_edits_override_rules(tiny: Path, tmp_path: Path) -> None:  # noqa: F811
    edits = tmp_path / "edits.tsv"
    edits.write_text("qqq\tgame\nunseen\tx\n")
    artifact = built(table(TAGS), edits=edits)
    row = next(row for row in artifact["map"].to_pylist() if row["tag"] == "qqq")
    assert (row["canonical"], row["kind"], row["how"]) == ("game", "noun", "edit")
    assert (artifact["summary"]["edits"], artifact["summary"]["unused_edits"]) == (2, 1)
    stage, plain = HashtagMap(edits=edits), HashtagMap()
    assert stage.parameters() == plain.parameters() and stage.identity() != plain.identity()
    edits.write_text("\n".join(HashtagMap.lines(artifact)))
    assert built(table(TAGS), edits=edits)["map"].column("canonical") == artifact["map"].column("canonical")
    edits.write_text("no tab")
    assert "expected tag, TAB" in stage.preflight()[0]
    with pytest.raises(InputError, match="expected tag, TAB"):
        stage.finish(stage.merge(iter([stage.partial(table(TAGS))])))


def hashtags(tags: list[Any], artifact: Artifact) -> tuple[list[Any], dict[str, int]]:
    stage = Hashtags()
    [field] = stage.schema()
    assert per_item(field) and family_of(field.name, {field.name: field}) == "hashtags"
    stage.setup({"map": artifact})
    batch = Batch(table(tags))
    [column] = stage.process(batch).values()
    assert column.type == field.type
    return column.to_pylist(), batch.counters


def test_canonical_tags_of_rows(tiny: Path) -> None:  # noqa: F811
    artifact = built(table(TAGS))
    out, counters = hashtags([*TAGS[:3], ["new", "!!"]], artifact)
    assert out == [["dog", "hot dog"], ["hot dog", "sofa", "to run"], None, None]
    assert counters == {"tags_mapped": 6, "tags_unknown": 1}


def test_objects_and_actions_apart(real: Path) -> None:  # noqa: F811
    """The words of the paper's audit: only visible objects are nouns; noun and verb of a spelling are two tags."""
    words = "happiness freedom motivation success monday summer paris love"
    artifact = built(table([[*words.split(), "racing", "dance", "dancing", "drink", "drinking", "jogging", "trip"]]))
    out, _ = hashtags([words.split(), ["racing", "jogging"], ["dance", "dancing"], ["drink"], ["trip"]], artifact)
    assert out == [None, ["to jog", "to race"], ["to dance"], ["drink"], ["to trip"]]
    synsets = {row["tag"]: row["synset"] for row in artifact["map"].to_pylist()}
    assert synsets["racing"] == "race.v.02" and synsets["drink"] == "drink.n.01"
    assert {row["how"] for row in artifact["map"].to_pylist() if row["tag"] in words.split()} == {"not_visual"}
    nouns = built(table([["drink", "drinking", "dance"]]), verbs=())
    assert nouns["summary"]["vocabulary"] == {"noun": 1, "action": 0}
    named = built(table([["paris"]]), instances=True)
    assert named["summary"]["vocabulary"] == {"noun": 1, "action": 0}


def test_a_vocabulary_is_cut_to_its_size(tiny: Path) -> None:  # noqa: F811
    artifact = built(table(TAGS), most=2)
    kept = {row["canonical"] for row in artifact["map"].to_pylist() if row["canonical"]}
    assert kept == {"dog", "hot dog"} and artifact["summary"]["tags_by_how"]["rare"] == 3
    with pytest.raises(TargetError, match=r"most: 5 canonical tags, but only 4 occur; lower it"):
        built(table(TAGS), most=5)


def test_tags_in_wordnet(real: Path) -> None:  # noqa: F811
    """The readings that the rules of lexicon.py produce."""
    lexicon = wordnet_lexicon()
    readings = {}
    for word in ("dogs", "building", "swimming", "wedding", "bear", "cook", "orange", "colour", "fast", "ice cream"):
        found = lexicon.reading(word)
        readings[word] = found and (found.kind, lexicon.names(found)[0])
    assert readings == {
        "dogs": ("noun", "dog"),
        "building": ("noun", "building"),
        "swimming": ("action", "swim"),
        "wedding": ("noun", "wedding"),
        "bear": ("noun", "bear"),
        "cook": ("action", "cook"),
        "orange": ("noun", "orange"),
        "colour": ("noun", "color"),
        "fast": None,
        "ice cream": ("noun", "ice cream"),
    }


def test_every_parameter_is_described() -> None:
    assert all(info.description for stage in (HashtagMap, Hashtags) for info in stage.model_fields.values())
