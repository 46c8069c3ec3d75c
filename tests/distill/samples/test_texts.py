"""Kinds of `caption.mix` in the reader: shares, single sentences, pairs of texts, and what samples lack."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import make_key
from distill.recipe import DataRecipe, SourceRecipe
from distill.samples.batches.draws import Draws
from distill.samples.batches.loader import BatchShare, Loader
from distill.samples.batches.stream import Stream
from distill.samples.batches.track import Packing
from distill.samples.images.reader import ImageReader
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture, open_mixture
from distill.samples.texts import Texts, choose_sentence, missing_texts
from tests.distill.datasets import Item, draw, write_dataset

ROWS = 24
SENTENCES = ("A cat sleeps.", "It is red.", "The sofa is blue.")
KINDS = {"original": "IMG_1.JPG", "short": "A cat.", "long": " ".join(SENTENCES)}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Row 0 has all kinds, row 1 only the original and a text of the tar, row 2 no text; the others are named."""
    image = draw(1, 1, 16, 16)
    items = [Item(image, 16, 16, make_key("texts", str(row))) for row in range(ROWS)]
    documents: list[dict[str, Any]] = [{"texts": KINDS}, {"texts": {"original": "IMG_2.JPG"}}, {}]
    documents += [{"texts": {"original": f"o{row}", "short": f"s{row}"}} for row in range(3, ROWS)]
    texts = [b"a text" if row == 1 else None for row in range(ROWS)]
    folder = tmp_path_factory.mktemp("texts") / "t"
    return str(write_dataset(folder, items, documents=documents, texts=texts, shard_rows=6))


def mixture_of(url: str, texts: dict[str, float], **source: Any) -> Mixture:
    return open_mixture(DataRecipe(sources=[SourceRecipe(dataset=url, texts=texts, **source)]))


def texts_of(mixture: Mixture, seed: int = 0) -> Texts:
    return Texts(mixture, MemberReader(mixture), Draws(mixture, seed))


def drawn(texts: Texts, row: int, epochs: int = 2_000) -> Counter[tuple[str, ...]]:
    found = texts.read(row)
    return Counter(texts.draw(row, epoch, found) for epoch in range(epochs))


def assert_shares(found: Counter[Any], shares: dict[Any, float]) -> None:
    """Shares hold to four standard deviations, and nothing else was drawn."""
    count = found.total()
    assert found.keys() == shares.keys()
    for value, share in shares.items():
        assert abs(found[value] / count - share) < 4 * (share * (1 - share) / count) ** 0.5, value


def test_kinds_are_drawn_by_weight_among_those_of_the_sample(url):
    texts = texts_of(mixture_of(url, {"original": 0.2, "short": 0.6, "long": 0.2, "txt": 3.0}))
    assert_shares(drawn(texts, 0), {(KINDS["original"],): 0.2, (KINDS["short"],): 0.6, (KINDS["long"],): 0.2})
    assert_shares(drawn(texts, 1), {("IMG_2.JPG",): 0.2 / 3.2, ("a text",): 3 / 3.2})
    assert drawn(texts, 2, 9) == {(): 9}
    others = sum((drawn(texts, row, 480) for row in range(3, ROWS)), Counter())  # 10,080 draws of 21 samples
    assert_shares(Counter(text[0] for (text,) in others.elements()), {"o": 0.25, "s": 0.75})


def test_a_kind_is_a_field_of_the_json(url):
    kinds, fields = (
        texts_of(mixture_of(url, {f"{prefix}original": 1.0, f"{prefix}short": 4.0})) for prefix in ("", "json.texts.")
    )
    for row in range(ROWS):
        assert list(kinds.read(row).values()) == list(fields.read(row).values())
        assert [kinds.draw(row, epoch, kinds.read(row)) for epoch in range(20)] == [
            fields.draw(row, epoch, fields.read(row)) for epoch in range(20)
        ]


def test_a_member_of_the_tar_comes_before_a_kind_of_its_name(url, tmp_path):
    """Any WebDataset may have members of any name."""
    packed = texts_of(mixture_of(f"{url}/*.tar", {"short": 1.0, "txt": 1.0}))
    found = [packed.read(row) for row in range(ROWS)]
    assert sum("txt" in item for item in found) == 1 and sum("short" in item for item in found) == ROWS - 2
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in (
            ("1.png", draw(1, 1, 8, 8)),
            ("1.short", b"member"),
            ("1.json", b'{"texts": {"short": "kind"}}'),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    mixture = mixture_of(str(tmp_path / "a.tar"), {"short": 1.0, "json.texts.short": 1.0})
    assert texts_of(mixture).read(0) == {"short": ("member",), "json.texts.short": ("kind",)}


def test_single_sentences_are_drawn_with_their_probability(url):
    texts = texts_of(mixture_of(url, {"long": 1.0}, single_sentence=0.3))
    assert_shares(drawn(texts, 0), {(KINDS["long"],): 0.7} | {(sentence,): 0.1 for sentence in SENTENCES})
    plain = texts_of(mixture_of(url, {"short": 1.0}, single_sentence=1.0))
    assert drawn(plain, 0, 9) == {(KINDS["short"],): 9}
    assert texts.draw(0, None, texts.read(0)) == (KINDS["long"],)  # evaluation reads the whole text


def test_the_weights_of_kinds_do_not_change_with_single_sentences(url):
    weights = {"original": 1.0, "long": 1.0}
    whole, cut = (texts_of(mixture_of(url, weights, single_sentence=share)) for share in (0.0, 0.5))
    for epoch in range(100):
        one, other = ([texts.draw(0, epoch, texts.read(0))[0]] for texts in (whole, cut))
        assert (one[0] == KINDS["original"]) == (other[0] == KINDS["original"])


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 1), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_sentence_is_part_of_its_text(rank, share, text):
    if text.strip():
        assert choose_sentence(text.strip(), np.uint64(rank), share) in text


def test_a_pair_has_both_texts_and_replaces_those_that_are_missing(url):
    weights = {"original": 1.0, "short": 4.0, "txt": 1.0}
    texts = texts_of(mixture_of(url, weights, text_pair=("original", "short")))
    assert drawn(texts, 5, 50) == {("o5", "s5"): 50}
    assert_shares(drawn(texts, 1, 4000), {("IMG_2.JPG", "IMG_2.JPG"): 0.5, ("IMG_2.JPG", "a text"): 0.5})
    assert drawn(texts, 2, 9) == {(): 9}
    split = texts_of(mixture_of(url, {"long": 1.0, "short": 1.0}, text_pair=("long", "short"), single_sentence=0.6))
    assert_shares(
        drawn(split, 0), {(KINDS["long"], KINDS["short"]): 0.4} | {(one, KINDS["short"]): 0.2 for one in SENTENCES}
    )


def loader_of(mixture: Mixture, **of_rank: int) -> Loader:
    stream = Stream(mixture, np.arange(ROWS), seed=7, sequences=3, packing=Packing(4, 4, 8, 2, 2))
    return Loader(stream, ImageReader(mixture, patch=8, max_tokens=4, seed=7), **of_rank)


def seen(share: BatchShare) -> list[tuple[int, str | None, str | None]]:
    return [(image.row, image.text, image.second_text) for image in share.images]


def test_every_rank_thread_and_restart_draws_the_same_texts(url):
    weights = {"original": 1.0, "short": 1.0, "long": 1.0, "txt": 1.0}
    mixture = mixture_of(url, weights, text_pair=("original", "long"), single_sentence=0.4)
    steps = [seen(share) for share, _ in zip(loader_of(mixture), range(9), strict=False)]
    assert len({text for step in steps for _, _, text in step}) > 5
    ranks = [iter(loader_of(mixture, rank=rank, world=3, workers=rank + 1)) for rank in range(3)]
    for step in steps:
        assert sorted(item for rank in ranks for item in seen(next(rank))) == sorted(step)
    first = loader_of(mixture)
    shares = iter(first)
    for _ in range(4):
        next(shares)
    again = loader_of(mixture, workers=3)
    again.load_state_dict(first.state_dict())
    assert [seen(share) for share, _ in zip(again, steps[4:], strict=False)] == steps[4:]


def test_names_that_no_sample_has_are_reported_with_the_kinds_there_are(url, tmp_path):
    assert missing_texts(mixture_of(url, {"original": 1, "short": 1, "long": 1, "txt": 1})) == []
    [line] = missing_texts(mixture_of(url, {"shrot": 1, "txt": 1}))
    assert line == f"data.sources.0.texts: 'shrot' is in none of 6 samples of {url}; did you mean 'short'?"
    [line] = missing_texts(mixture_of(url, {"json.title": 1}))
    assert line.endswith("; they have long, original, short, txt")
    old = write_dataset(tmp_path / "old", [Item(draw(1, 1, 8, 8), 8, 8, make_key("texts", "0"))])
    [line] = missing_texts(mixture_of(str(old), {"short": 1}))
    assert line.endswith("'short' is in none of 1 samples of " + str(old) + "; they have no texts")
    assert missing_texts(mixture_of(str(old), {})) == []


def test_samples_that_cannot_be_read_are_not_counted(url, tmp_path):
    folder = write_dataset(tmp_path / "old", [Item(draw(1, 1, 8, 8), 8, 8, make_key("texts", "0"))])
    mixture = mixture_of(str(folder), {"short": 1})
    (Path(folder) / "toy-000000.tar").unlink()
    assert missing_texts(mixture) == []
