"""Keys, ranks and digests: the same on every machine, uniform, and dependent on all of their inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import (
    KEY_HEX,
    digest,
    digest_bytes,
    hashed_words,
    key_words,
    keys_of_words,
    make_child_key,
    make_key,
    rank_below,
    ranks,
    ranks_of_words,
)

KEYS = st.lists(st.binary(min_size=16, max_size=16).map(bytes.hex), min_size=1, max_size=40, unique=True)
SEEDS = st.integers(-(2**63), 2**64 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_goldens() -> None:
    """These are formats: if a value changes, so does every pool, selection and dataset."""
    assert make_key("laion", "a.jpg") == "d0a31ab61d54784ad46f7bbcb0b5bc58"
    assert make_child_key("00" * 16, "frame", {"start": 0.1, "frame": 1}) == "0188a849939d65352587aacb9e548f1d"
    assert digest({"b": [1, 2.5, None], "a": "é"}) == "3276393bf8a5a8df0e5ddcb8f78302ef"
    assert ranks(7, [make_key("n", "1"), make_key("n", "2")], 3).tolist() == [2654391302092974527, 17540383870620753344]


@given(st.text(), st.text(), st.text(), st.text())
def test_a_key_depends_on_namespace_and_source_id(space: str, other: str, one: str, two: str) -> None:
    key = make_key(space, one)
    assert len(key) == KEY_HEX and int(key, 16) >= 0
    assert (key == make_key(space, two)) == (one == two)
    assert (key == make_key(other, one)) == (space == other)


@given(KEYS, st.text(), st.dictionaries(st.text(), st.integers(), min_size=1))
def test_a_childs_key_depends_on_parent_kind_and_span(keys: list[str], kind: str, span: dict[str, int]) -> None:
    found = {make_child_key(key, kind, span) for key in keys}
    assert len(found) == len(keys) and all(len(key) == KEY_HEX for key in found)
    assert make_child_key(keys[0], kind, dict(reversed(span.items()))) in found
    others = (
        make_child_key(keys[0], kind + "x", span),
        make_child_key(keys[0], kind, {**span, "".join(span) + "x": 0}),
    )
    assert not found & {*others, *keys}


def test_a_source_id_may_contain_surrogates() -> None:
    assert make_key("n", "a\udcff.jpg") != make_key("n", "a\udcfe.jpg")


@given(JSON, JSON)
def test_a_digest_depends_on_the_value(one: object, two: object) -> None:
    assert digest(one) == digest(one) and len(digest(one)) == 32
    if one != two:
        assert digest(one) != digest(two)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_a_digest_does_not_depend_on_the_order_of_names(value: dict[str, int]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


def test_a_digest_of_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"threshold": float("nan")})


@given(st.binary(), st.integers(0, 50))
def test_a_digest_of_bytes_does_not_depend_on_chunks(data: bytes, cut: int) -> None:
    assert digest_bytes([data]) == digest_bytes([data[:cut], data[cut:]])


@given(KEYS)
def test_words_are_the_keys(keys: list[str]) -> None:
    assert ["".join(f"{int(word):016x}" for word in row) for row in key_words(keys)] == keys


@pytest.mark.parametrize("keys", [["abc"], ["g" * 32], ["00" * 16, "00" * 15]])
def test_invalid_keys_are_rejected(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="hex"):
        key_words(keys)


@given(SEEDS, KEYS, st.randoms(use_true_random=False))
def test_a_rank_does_not_depend_on_other_keys(seed: int, keys: list[str], random: object) -> None:
    rank = dict(zip(keys, ranks(seed, keys, 5).tolist(), strict=True))
    random.shuffle(keys)  # type: ignore[attr-defined]
    assert {key: ranks(seed, [key], 5)[0] for key in keys} == rank
    assert dict(zip(keys, ranks(seed, np.array(keys), np.full(len(keys), 5)).tolist(), strict=True)) == rank


@given(SEEDS, KEYS)
def test_ranks_depend_on_seed_salts_and_their_order(seed: int, keys: list[str]) -> None:
    ways = [ranks(seed, keys), ranks(seed + 1, keys), ranks(seed, keys, 0), ranks(seed, keys, 1)]
    ways += [ranks(seed, keys, 0, 1), ranks(seed, keys, 1, 0), ranks(seed, keys, np.arange(len(keys)) + 2)]
    everything = np.concatenate(ways)
    assert len(np.unique(everything)) == len(everything)


def test_ranks_are_uniform() -> None:
    """20,000 ranks in 64 cells, by the high bits and by the low: chi squared (63 degrees) below its 0.9999 quantile."""
    rank = ranks(0, [make_key("n", str(i)) for i in range(20_000)])
    for cells in (rank >> np.uint64(58), rank & np.uint64(63)):
        counts = np.bincount(cells.astype(np.int64), minlength=64)
        assert ((counts - 312.5) ** 2 / 312.5).sum() < 113


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_smaller_share_is_a_part_of_a_larger(a: float, b: float) -> None:
    rank = ranks(1, [make_key("n", str(i)) for i in range(200)])
    low, high = sorted((a, b))
    assert not (rank_below(rank, low) & ~rank_below(rank, high)).any()
    assert rank_below(rank, 1.0).all() and not rank_below(rank, 0.0).any()
    assert abs(rank_below(rank, low).mean() - low) < 0.2


@given(KEYS, SEEDS)
def test_words_are_keys(keys: list[str], seed: int) -> None:
    assert keys_of_words(key_words(keys)) == keys
    assert (ranks_of_words(seed, key_words(keys), 5) == ranks(seed, keys, 5)).all()


def test_hashed_words_are_those_of_the_keys_made() -> None:
    ids = ["", "a", "\udcff", "é" * 300]
    assert (hashed_words("t", ids) == key_words([make_key("t", one) for one in ids])).all()
    assert hashed_words("t", []).shape == (0, 2)
