from __future__ import annotations

import struct
import warnings
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.kit.texts import alt_texts
from curate.core.errors import InputError
from curate.text.language import model as language_model
from curate.text.language.file import read
from curate.text.language.language import built_in
from curate.text.language.model import LanguageModel, huffman_levels, ngrams

WORDS = ["</s>", "a", "the", "chien", "日本", "ß", "ab", "-"]
DIM, BUCKETS = 5, 300


def write(path: Path, *, loss: int = 1, shortest: int = 2, longest: int = 4) -> str:
    """A model of random weights in fastText's format, like `FastText::saveModel`."""
    rng = np.random.default_rng(7)
    labels = [(f"__label__l{number}", 1000 // (number + 1)) for number in range(6)]
    entries = [(word, 50 - number, 0) for number, word in enumerate(WORDS)] + [(*label, 1) for label in labels]
    out = struct.pack("<2i12id", 793712314, 12, DIM, 5, 5, 1, 5, 1, loss, 3, BUCKETS, shortest, longest, 100, 1e-4)
    out += struct.pack("<3iqq", len(entries), len(WORDS), len(labels), 999, -1)
    for word, count, kind in entries:
        out += word.encode() + b"\0" + struct.pack("<qb", count, kind)
    for rows in (len(WORDS) + BUCKETS, len(labels)):
        table = rng.standard_normal((rows, DIM)).astype("<f4") * 2
        out += struct.pack("<b2q", 0, *table.shape) + table.tobytes()
    path.write_bytes(out)
    return str(path)


def answers_agree(path: str, texts: list[str]) -> None:
    label, score = LanguageModel(read(path)).predict(pa.array(texts, pa.string()))
    labels, library = read(path).labels, fasttext.load_model(path).f
    for text, mine, probability in zip(texts, label, score, strict=True):
        said = library.predict(text.replace("\n", " ") + "\n", len(labels), 0.0, "strict")
        likely = {name.removeprefix("__label__"): value for value, name in said}
        if mine >= 0:
            assert likely[labels[mine]] == pytest.approx(probability, abs=2e-5), text
            assert max(likely.values()) == pytest.approx(probability, abs=2e-5), text


@pytest.mark.parametrize(
    "how",
    [{}, {"loss": 3}, {"shortest": 1, "longest": 3}, {"longest": 0, "shortest": 0}],
    ids=["tree", "softmax", "single", "words"],
)
def test_random_models_equal_the_library(how: dict[str, int], tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", **how)

    @settings(max_examples=25)
    @given(st.lists(st.text(st.sampled_from("ab ß日本-\t\0é𝒳chienth"), max_size=20), max_size=5))
    def agree(texts: list[str]) -> None:
        answers_agree(path, texts)

    agree()


def test_alt_texts_have_the_labels_that_the_library_gives() -> None:
    texts = [" ".join(text.split()) for text in alt_texts()[:1000]]
    if not texts:
        pytest.skip("no alt texts; name the folder of shared data in CURATE_SHARED")
    model, library = LanguageModel(read(built_in())), fasttext.load_model(built_in()).f
    label, score = model.predict(pa.array(texts))
    said = [library.predict(text + "\n", 1, 0.0, "strict")[0] for text in texts]
    known = label >= 0
    assert known.mean() > 0.95
    assert [model.labels[mine] for mine in label[known]] == [
        name.removeprefix("__label__") for (_, name), there in zip(said, known, strict=True) if there
    ]
    assert np.abs(score - [value for value, _ in said])[known].max() < 1e-5
    assert {value for (value, _), there in zip(said, known, strict=True) if not there} == {score_of_nothing(library)}


def score_of_nothing(library: fasttext.FastText._FastText) -> float:
    return library.predict("\n", 1, 0.0, "strict")[0][0]


def test_a_text_has_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{word} {number} house Straße 日本語 été" for number, word in enumerate(["the", "un", "der", "la"] * 80)]
    model = LanguageModel(read(built_in()))
    label, score = model.predict(pa.array(texts))
    monkeypatch.setattr(language_model, "MOST_WORDS", 20)  # the cache is emptied repeatedly
    monkeypatch.setattr(language_model, "_SLICE_BYTES", 64)
    other = LanguageModel(read(built_in()))
    for size in (1, 7, 60):
        pieces = [other.predict(pa.array(texts[start : start + size])) for start in range(0, len(texts), size)]
        assert np.concatenate([piece[0] for piece in pieces]).tolist() == label.tolist()
        assert np.concatenate([piece[1] for piece in pieces]).tobytes() == score.tobytes()


def test_unknown_texts_have_no_label() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        label, score = LanguageModel(read(built_in())).predict(
            pa.array(["", None, "😀", "\0 \t", "__label__en", "12345"])
        )
    assert label.tolist() == [-1] * 6 and score.tolist() == [0.0] * 6
    assert len(LanguageModel(read(built_in())).predict(pa.array([], pa.string()))[0]) == 0


@pytest.mark.parametrize("piece", ["a", "ab ", "中", "\u202e"])
def test_a_megabyte_is_linear(piece: str) -> None:
    text = piece * (1_000_000 // len(piece.encode()))
    assert LanguageModel(read(built_in())).predict(pa.array([text]))[0].shape == (1,)


def test_ngrams_are_characters_in_brackets() -> None:
    owner, bucket = ngrams(["é".encode(), b"", b"ab"], 2, 3, 1 << 31)
    expected = {0: ["<é", "é>", "<é>"], 1: ["<>"], 2: ["<a", "ab", "b>", "<ab", "ab>"]}
    for place, pieces in expected.items():
        assert sorted(bucket[owner == place]) == sorted(fnv(piece) % (1 << 31) for piece in pieces)


def fnv(text: str) -> int:
    state = 2166136261
    for byte in text.encode():
        state = ((state ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) % 2**32
    return state


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_frequent_labels_are_near_the_root(counts: list[int]) -> None:
    counts = sorted(counts, reverse=True)
    levels = huffman_levels(np.array(counts))
    depth = {int(node): number for number, (nodes, _, _) in enumerate(levels, 1) for node in nodes}
    depths = [depth.get(label, 0) for label in range(len(counts))]
    assert sum(0.5**level for level in depths) == 1.0  # a binary tree with these leaves, and no others
    assert all(depths[x] <= depths[y] for x in range(len(counts)) for y in range(len(counts)) if counts[x] > counts[y])


@pytest.mark.parametrize("cut", [0, 7, 60, 200, 4000])
def test_another_file_is_one_line(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(Path(write(tmp_path / "model.bin")).read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cut.bin' is not a fastText model for .* \((wrong magic|the file is trunc)"):
        read(str(path))
    (tmp_path / "vectors.bin").write_bytes(Path(write(tmp_path / "model.bin", loss=2)).read_bytes())
    with pytest.raises(InputError, match="expected a supervised model with softmax"):
        read(str(tmp_path / "vectors.bin"))
    with pytest.raises(InputError, match="no file '/nowhere'"):
        read("/nowhere")
