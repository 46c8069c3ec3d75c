"""Two stages share the rows out between them, and no set is on both sides."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from curate.acquire.folder import AcquireFolder
from curate.core.errors import CurateError
from curate.core.hashing import make_key
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.filter.split import Split
from curate.select.all import SelectAll
from distill.samples.sources.split import held_out


def rows(sets: list[int | None]) -> pa.Table:
    keys = [make_key("split", str(number)) for number in range(len(sets))]
    names = [None if one is None else make_key("set", str(one)) for one in sets]
    return pa.table({"key": pa.array(keys, pa.string()), "duplicate_set": pa.array(names, pa.string())})


def kept(table: pa.Table, side: str, **parameters: object) -> list[bool]:
    reasons = Split(side=side, **parameters).keep(table).to_pylist()
    other = {"train": "validation", "validation": "train"}[side]
    assert set(reasons) <= {None, other}
    return [reason is None for reason in reasons]


@given(st.lists(st.none() | st.integers(0, 30), max_size=80), st.floats(0.01, 0.99), st.integers(0, 99), st.randoms())
def test_each_row_is_on_one_side_with_all_of_its_set(
    sets: list[int | None], share: float, seed: int, random: object
) -> None:
    table = rows(sets)
    train, other = (kept(table, side, share=share, seed=seed) for side in ("train", "validation"))
    assert train == [not held for held in other]
    sides = {(one, held) for one, held in zip(sets, other, strict=True) if one is not None}
    assert len(sides) == len({one for one, _ in sides})
    held = held_out(table["key"].to_pylist(), table["duplicate_set"].to_pylist(), seed=seed, fraction=share)
    assert other == held.tolist(), "distill holds out the same rows"


def test_about_the_share_of_the_sets_is_held_out() -> None:
    table = rows([None] * 4000)
    assert 340 <= sum(kept(table, "validation", share=0.1)) <= 460
    assert kept(table, "validation", share=0.1) == kept(table, "validation", share=0.1, within="key")
    assert kept(table, "validation", share=0.1) != kept(table, "validation", share=0.1, seed=1)


def test_a_pool_of_one_set_is_on_one_side_and_the_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "photos" / "burst").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "photos" / "burst" / f"{number}.png")
    made = Pipeline().add("pool", AcquireFolder(path=str(tmp_path / "photos"), namespace="split"))
    for side in ("train", "validation"):
        made.add(side, Split(side=side, within="meta.folder"), "pool").add(f"all_{side}", SelectAll(), side)
    result = run(made.check(), str(tmp_path / "workspace"))
    assert sorted(result.ledger[side].after for side in ("train", "validation")) == [0, 4]
    events = latest(open_storage(str(tmp_path / "workspace")), result.run_id).events
    [said] = [event["text"] for event in events if event["event"] == "warning"]
    assert said == ("validation: rejects all 4 rows; they are one set, or too few sets for this share")


def test_sets_that_are_vectors_or_missing_are_one_line() -> None:
    made = Pipeline().add("pool", AcquireFolder(path="photos", namespace="split"))
    with pytest.raises(CurateError, match="column 'duplicate_set' is missing upstream"):
        made.add("train", Split(side="train"), "pool").check()
    with pytest.raises(CurateError, match=r"^within: column 'score' holds float; give a column with a word or"):
        Split(side="train", within="score").check_columns(pa.schema([("score", pa.float32())]))
