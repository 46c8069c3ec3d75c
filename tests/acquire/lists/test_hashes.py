from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.lists import hashes
from curate.acquire.lists.hashes import LONG_BYTES, hashed, joined

GOLDEN = {
    "": 0xE220A8397B1DCDAF,
    "a": 0x5E025F9ADE9EAF3E,
    "http://example.com/": 0x01C590B0D146488B,
    "bücher": 0x8931AE4C509B50BE,
    "a" * LONG_BYTES: 0xCEB24D26760A20B9,
    "a" * (LONG_BYTES + 1): 0x06B88471D4D06316,
    None: 0xA2FC443AB82C8B7B,
}
"""Lists that were made stay valid as long as these do."""
TEXTS = st.lists(st.none() | st.text(max_size=40) | st.integers(500, 520).map(lambda length: "x" * length), max_size=20)


def of(values: list[str | None]) -> list[int]:
    return hashed(pa.array(values, pa.string()))[0].tolist()


def test_golden() -> None:
    assert dict(zip(GOLDEN, of(list(GOLDEN)), strict=True)) == GOLDEN
    words = hashed(pa.array(["a", "b"]))[0]
    assert joined(words, words[::-1]).tolist() == [0x12502003B46A8153, 0x57C046F6F670F875]


@given(TEXTS)
def test_a_hash_does_not_depend_on_the_other_rows(texts: list[str | None]) -> None:
    assert of(texts) == [of([text])[0] for text in texts]


@given(TEXTS, st.integers(0, 20), st.integers(0, 20))
def test_slices(texts: list[str | None], start: int, length: int) -> None:
    part = pa.array(texts, pa.string()).slice(start, length)
    assert hashed(part)[0].tolist() == of(texts[start : start + length])


@pytest.mark.parametrize("block", [1, 3, 1 << 14])
def test_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str | None] = ["x" * (n * 7 % 90) for n in range(50)]
    expected = of(texts)
    monkeypatch.setattr(hashes, "BLOCK_ROWS", block)
    assert of(texts) == expected


def test_similar_texts_differ() -> None:
    texts = {
        text for n in range(3000) for text in (f"http://e.example/{n}", "a" * n, "\0" * n, f"{'a' * n}b", f"{n:060d}")
    }
    [found] = hashed(pa.array(sorted(texts)))
    assert len(set(found.tolist())) == len(texts)
    bits = np.unpackbits(found.view(np.uint8)).reshape(len(texts), 64).mean(0)
    assert np.all(np.abs(bits - 0.5) < 0.03)


def test_null_is_not_empty_and_the_order_of_a_pair_counts() -> None:
    empty, null, a, b = hashed(pa.array(["", None, "a", "b"]))[0]
    assert empty != null
    pairs = [joined(np.array([x]), np.array([y]))[0] for x, y in ((a, b), (b, a), (a, empty), (a, null), (a, a))]
    assert len(set(pairs)) == 5


@given(TEXTS)
def test_further_hashes_of_the_same_strings_are_different(texts: list[str | None]) -> None:
    first, second, third = hashed(pa.array(texts, pa.string()), 3)
    assert first.tolist() == of(texts)
    assert not np.any((first == second) | (second == third) | (first == third))
