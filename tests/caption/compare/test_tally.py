from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from curate.api.verdicts import tally_of
from curate.caption.compare.blind import Key, Pair, blind, key_file
from curate.caption.compare.compare import Compare
from curate.caption.compare.statistics import Wins, wilson
from curate.caption.compare.tally import Verdicts, tally
from curate.cli import app
from curate.core.errors import InputError
from curate.core.hashing import make_key
from tests.caption.captioned import judged_pool

ROWS = [
    {"key": make_key("tally", str(number)), "a": f"a {number}", "b": f"b {number}", "judge_verdict": "b"}
    for number in range(60)
]


def choices(key: Key, sides: Mapping[str, str]) -> Verdicts:
    """What a person downloads who prefers these sides (a, b or tie), by sample."""
    wanted = {name: sides[line.key] for name, line in key.pairs.items() if line.key in sides}
    made = {}
    for name, side in wanted.items():
        made[name] = "0" if side == "tie" else "1" if key.pairs[name].first == side else "2"
    return Verdicts(format=1, page=key.page, verdicts=made)


@given(st.lists(st.sampled_from(["a", "b", "tie"]), max_size=len(ROWS)), st.integers(0, 2**31))
def test_the_order_is_undone(sides: list[str], seed: int) -> None:
    _, key = blind(ROWS, "a", "b", None, seed, {})
    wanted = {row["key"]: side for row, side in zip(ROWS, sides, strict=False)}
    found = tally(key, [("me", choices(key, wanted))])
    expected = Wins(sides.count("a"), sides.count("b"), sides.count("tie"))
    assert found.together == expected and found.people == [("me", expected)]
    assert found.pairs == len(ROWS)


def test_either_text_comes_first_in_half_of_the_pairs() -> None:
    rows = [{"key": make_key("order", str(number)), "a": "x", "b": "y"} for number in range(2000)]
    pairs, key = blind(rows, "a", "b", None, 0, {})
    first = sum(line.first == "a" for line in key.pairs.values())
    assert abs(first - 1000) < 120  # 5 standard deviations
    assert [pair.texts[0] for pair in pairs] == ["x" if key.pairs[pair.id].first == "a" else "y" for pair in pairs]
    _, other = blind(rows, "a", "b", None, 1, {})
    assert key.page != other.page and not key.pairs.keys() & other.pairs.keys()


def test_people_count_by_pair_and_their_agreement_is_stated() -> None:
    _, key = blind(ROWS[:4], "a", "b", "judge", 0, {})
    keys = [row["key"] for row in ROWS[:4]]
    one = choices(key, dict(zip(keys, ["a", "b", "b", "tie"], strict=True)))
    two = choices(key, dict(zip(keys, ["a", "b", "a"], strict=False)))
    three = choices(key, dict(zip(keys, ["a", "tie", "tie"], strict=False)))
    found = tally(key, [("one", one), ("two", two), ("three", three)])
    assert found.together == Wins(a=1, b=1, ties=2)  # the third has one vote of each kind
    assert found.agreement == wilson(3 + 1 + 0, 3 + 3 + 3)
    assert found.with_judge == wilson(1, 2)
    assert found.judged_by_model == Wins(0, 4, 0)
    assert tally(key, [("one", one)]).agreement is None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for name, data in Compare(a="generated", b="long", judge="judge", samples=30).render(judged_pool()).items():
        (folder / name).write_bytes(data)
    return folder


def key_of(page: Path) -> Key:
    return Key.model_validate_json((page / "key.json").read_bytes())


def test_the_command_prints_the_win_rate(page: Path, tmp_path: Path) -> None:
    key = key_of(page)
    sides = {line.key: "b" if number % 3 else "a" for number, line in enumerate(key.pairs.values())}
    file = tmp_path / "verdicts.json"
    file.write_text(choices(key, sides).model_copy(update={"name": "Ada"}).model_dump_json())
    done = CliRunner().invoke(app, ["caption", "tally", str(page / "index.html"), str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Ada" in done.output and "win rate of long" in done.output
    expected = wilson(20, 30)
    assert expected is not None
    assert f"66.7 % │ {100 * expected.low:.1f} to {100 * expected.high:.1f} %" in done.output
    assert "30 of 30 pairs are judged" in done.output and "the model" in done.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page": "0" * 16}, "verdicts on page 0000000000000000, but this folder has page"),
        ({"verdicts": {"f" * 16: "1"}}, f"the page has no pair {'f' * 16}"),
        ({"verdicts": {"x": "3"}}, "not a file of verdicts; give files that were downloaded from the page"),
        ({"format": 2}, "not a file of verdicts"),
        ({"more": 1}, "not a file of verdicts"),
    ],
)
def test_other_verdicts_are_rejected_in_one_line(page: Path, tmp_path: Path, change: dict, message: str) -> None:
    file = tmp_path / "verdicts.json"
    file.write_text(json.dumps({"format": 1, "page": key_of(page).page, "verdicts": {}} | change))
    with pytest.raises(InputError) as error:
        tally_of(str(page), [str(file)])
    assert message in str(error.value) and str(error.value).startswith(str(file)) and "\n" not in str(error.value)


def test_a_person_counts_once(page: Path, tmp_path: Path) -> None:
    half, whole, nameless = (tmp_path / name for name in ("half.json", "whole.json", "nameless.json"))
    for file, name in ((half, "Ada"), (whole, "Ada"), (nameless, "")):
        file.write_text(json.dumps({"format": 1, "page": key_of(page).page, "name": name, "verdicts": {}}))
    with pytest.raises(InputError) as error:
        tally_of(str(page), [str(half), str(nameless), str(whole)])
    assert str(error.value) == f"{half}, {whole}: both are by Ada; give the last file of each person"
    assert len(tally_of(str(page), [str(half), str(nameless)]).people) == 2
    with pytest.raises(InputError, match="both are by"):
        tally_of(str(page), [str(nameless), str(nameless)])


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00", "[" * 20_000])
def test_damaged_verdicts_are_rejected(page: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "verdicts.json"
    file.write_text(text)
    with pytest.raises(InputError, match="not a file of verdicts"):
        tally_of(str(page), [str(file)])


def test_a_folder_without_a_key_and_missing_files_are_errors(page: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no key\.json; give the folder that caption\.compare wrote"):
        tally_of(str(tmp_path), [])
    with pytest.raises(InputError, match="cannot read the verdicts"):
        tally_of(str(page), [str(tmp_path / "none.json")])
    (tmp_path / "key.json").write_text("{}")
    with pytest.raises(InputError, match="not the key of a blind page"):
        tally_of(str(tmp_path), [])


def test_the_key_survives_its_file() -> None:
    key = Key(page="p", a="x", b="y", pairs={"1": Pair(key="k", first="b", judge="tie")})
    assert Key.model_validate_json(key_file(key)) == key
