"""Several sources: shares, sizes, texts and modalities, the same for any ranks and after any interruption."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import InputError, RecipeError
from curate.core.hashing import make_key
from distill.evaluation.datasets import texts_of
from distill.recipe import AugmentRecipe, DataRecipe, SourceRecipe
from distill.samples.batches.draws import Draws, choose
from distill.samples.batches.loader import Loader, collate
from distill.samples.batches.stream import Packing, Stream
from distill.samples.batches.track import turns
from distill.samples.images.reader import CacheBudget, ImageReader, Skipped
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture, as_mixture, open_mixture, open_mixtures
from distill.samples.texts import Texts, choose_text
from tests.distill.datasets import Item, draw, write_dataset

PACKING = Packing(capacity=40, images=4, lookahead=16, lanes=2, window_shards=2)


def items(name: str, count: int) -> list[Item]:
    return [Item(draw(0, n, 32, 32), 32, 32, make_key(name, str(n)), columns={"label": name}) for n in range(count)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Datasets of 40, 10 and 7 images, in tars of 6."""
    root = tmp_path_factory.mktemp("mixture")
    counts = {"a": 40, "b": 10, "c": 7}
    return {name: str(write_dataset(root / name, items(name, n), shard_rows=6)) for name, n in counts.items()}


def test_a_dataset_of_several_stages_is_opened_once(places):
    a, b = (SourceRecipe(dataset=places[name]) for name in "ab")
    small, large = open_mixtures(DataRecipe(sources=[a, item]) for item in (b, a.model_copy(update={"max_tokens": 9})))
    assert small.sources[0] is large.sources[0] is large.sources[1]
    assert (len(small), len(large)) == (50, 80)
    assert large.recipes[1].max_tokens == 9


def mixture_of(places: dict[str, str], **sources: dict) -> Mixture:
    return open_mixture(
        DataRecipe(sources=[SourceRecipe(dataset=places[name], **more) for name, more in sources.items()])
    )


def stream_of(mixture: Mixture, *, sequences=2, packing: Packing = PACKING, tokens=None) -> Stream:
    tokens = 3 + np.arange(len(mixture)) % 9 if tokens is None else tokens
    return Stream(mixture, np.arange(len(mixture)), seed=3, sequences=sequences, tokens=tokens, packing=packing)


def images(steps) -> list[tuple[int, int]]:
    """(row, epoch of its source) in reading order."""
    return [
        pair
        for step in steps
        for rows, epochs in zip(step.sequences, step.epochs, strict=True)
        for pair in zip(rows.tolist(), epochs.tolist(), strict=True)
    ]


def test_rows_of_all_sources_in_turn(places):
    mixture = mixture_of(places, a={}, b={})
    one, two = open_dataset(places["a"]), open_dataset(places["b"])
    assert len(mixture) == 50
    assert mixture.strings("key") == one.strings("key") + two.strings("key")
    assert mixture.source.tolist() == [0] * 40 + [1] * 10
    assert mixture.integers("shard").tolist() == one.integers("shard").tolist() + [7 + n for n in two.integers("shard")]
    assert mixture.tar(8) == (two.storage, two.tars[1])
    assert not mixture.has("nothing")
    assert set(mixture.integers("nothing")) == {-1}
    assert mixture.urls == [one.url, two.url]
    members = MemberReader(mixture, open_tars=1)
    assert [members.read(row) for row in (0, 40, 39, 49)] == [
        MemberReader(source).read(row) for source, row in ((one, 0), (two, 0), (one, 39), (two, 9))
    ]


def test_a_mixture_of_one_dataset_has_its_fingerprint(places):
    alone = open_dataset(places["a"])
    assert as_mixture(alone).fingerprint == alone.fingerprint
    both = [mixture_of(places, **{name: {} for name in names}).fingerprint for names in (("a", "b"), ("b", "a"))]
    assert len({*both, alone.fingerprint}) == 3


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images of 16 x 16, 32 x 8, 32 x 32, 64 x 16, 40 x 40 px and of unknown size."""
    sizes = [(16, 16), (32, 8), (32, 32), (64, 16), (40, 40), (None, None)]
    held = [Item(b"", width, height, make_key("sized", str(n))) for n, (width, height) in enumerate(sizes)]
    return str(write_dataset(tmp_path_factory.mktemp("sized") / "sized", held))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([16, 32], [True, True, True, True, False, False]),
        ([17, 32], [False, False, True, True, False, False]),
        ([None, 16], [True, True, False, False, False, False]),
        ([33, None], [False, False, False, False, True, False]),
        ([None, None], [True, True, True, True, True, False]),
    ],
)
def test_a_range_of_natural_sizes_counts_pixels_and_includes_its_ends(places, sized, limits, expected):
    sources = [SourceRecipe(dataset=sized, natural_side=limits), SourceRecipe(dataset=places["b"])]
    assert open_mixture(DataRecipe(sources=sources)).eligible.tolist() == expected + [True] * 10
    assert mixture_of(places, a={}, b={}).eligible is None


def test_a_source_without_an_image_of_its_natural_sizes_is_one_line(places, sized):
    sources = [SourceRecipe(dataset=places["b"]), SourceRecipe(dataset=sized, natural_side=(256, None))]
    with pytest.raises(InputError, match=r"^data\.sources\.1\.natural_side: none of the 6 images of ") as caught:
        open_mixture(DataRecipe(sources=sources))
    assert "a natural size of 256 px or more; their sizes are 0 to 40 px (0: unknown); change" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_weights_an_epoch_has_every_sample_once(places):
    mixture = mixture_of(places, a={}, b={}, c={})
    steps = [step for step in islice(stream_of(mixture).steps(), 60) if step.epoch < 2]
    for epoch in (0, 1):
        assert sorted(images(step for step in steps if step.epoch == epoch)) == [(row, epoch) for row in range(57)]
    window = [row for row, _ in images(steps)][:16]
    assert Counter(mixture.source[window]).keys() == {0, 1, 2}  # sources are mixed from the beginning


def test_with_weights_each_source_has_its_own_epochs(places):
    mixture = mixture_of(places, a={"weight": 1.0}, b={"weight": 3.0})
    steps = list(islice(stream_of(mixture, packing=Packing(lookahead=10), tokens=np.ones(50, int)).steps(), 200))
    seen = images(steps)
    assert len(seen) == 400
    for source, share in enumerate((0.25, 0.75)):
        counts = np.cumsum([mixture.source[row] == source for row, _ in seen])
        assert np.abs(counts - share * np.arange(1, 401)).max() <= 1.0 + 10  # one image, plus the order within a window
        assert np.abs(counts[9::10] - share * np.arange(10, 401, 10)).max() < 1.0
        own = [item for item in seen if mixture.source[item[0]] == source]
        rows = np.flatnonzero(mixture.source == source).tolist()
        for epoch in range(len(own) // len(rows)):
            assert sorted(row for row, number in own if number == epoch) == rows
    assert [step.epoch for step in steps[:26]] == [0] * 25 + [1]  # 50 images are an epoch


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 300), st.integers(1, 40))
def test_turns_are_within_an_image_of_the_shares(weights, total, window):
    shares = np.array(weights) / sum(weights)
    taken, all_turns = (0,) * len(weights), []
    while len(all_turns) < total:
        part = turns(shares, taken, window).tolist()
        all_turns += part
        taken = tuple(count + part.count(source) for source, count in enumerate(taken))
    counts = np.cumsum(np.array(all_turns)[:, None] == np.arange(len(weights)), axis=0)
    assert np.abs(counts - shares * np.arange(1, len(all_turns) + 1)[:, None]).max() < 1.0


@settings(max_examples=25)
@given(taken=st.integers(0, 60), weighted=st.booleans())
def test_resuming_at_any_step(places, taken, weighted):
    more = ({"weight": 1.0}, {"weight": 3.0}, {"weight": 0.4, "modality": "video"}) if weighted else ({}, {}, {})
    mixture = mixture_of(places, **dict(zip("abc", more, strict=True)))
    stream = stream_of(mixture, sequences=1)
    undisturbed = list(islice(stream.steps(), taken + 10))
    again = stream_of(mixture, sequences=1)
    state = json.loads(json.dumps(stream.state(undisturbed[taken - 1].after))) if taken else None
    position = again.position(state) if state else None
    resumed = list(islice(again.steps(position), 10))
    assert images(resumed) == images(undisturbed[taken:])
    assert [step.modality for step in resumed] == [step.modality for step in undisturbed[taken:]]


def test_the_state_of_another_mixture_is_rejected(places):
    position = next(stream_of(mixture_of(places, a={}, b={})).steps()).after
    state = stream_of(mixture_of(places, a={}, b={})).state(position)
    for other in (
        mixture_of(places, a={"weight": 1}, b={"weight": 2}),
        mixture_of(places, b={}, a={}),
        mixture_of(places, a={}, b={"modality": "video"}),
    ):
        with pytest.raises(InputError, match="start a new run"):
            stream_of(other).position(state)


def test_each_step_has_one_modality_and_all_run_out_together(places):
    mixture = mixture_of(places, a={}, b={"modality": "video"}, c={"modality": "video"})
    stream = stream_of(mixture, sequences={"image": 2, "video": 1}, packing=PACKING)
    steps = [step for step in islice(stream.steps(), 400) if step.epoch < 20]
    for epoch in range(20):
        mine = [step for step in steps if step.epoch == epoch]
        assert sorted(row for row, _ in images(mine)) == list(range(57))
        assert {step.modality for step in mine} == {"image", "video"}
        for step in mine:
            assert {mixture.source[row] > 0 for row, _ in images([step])} == {step.modality == "video"}
            assert len(step.sequences) <= (2 if step.modality == "image" else 1)
    firsts = Counter(next(step for step in steps if step.epoch == epoch).modality for epoch in range(20))
    assert len(firsts) == 2
    places_of = [[n for n, s in enumerate(steps) if s.modality == kind and s.epoch == 0] for kind in ("image", "video")]
    assert max(places_of[0]) > min(places_of[1])
    assert max(places_of[1]) > min(places_of[0])


def test_the_modality_of_the_first_step_is_drawn_by_its_number_of_steps(places):
    """P(image) : P(video) = N / B : N / B. 40 images in steps of 8 and 17 in steps of 2: 5 : 8.5."""
    mixture = mixture_of(places, a={}, b={"modality": "video"}, c={"modality": "video"})
    packing = Packing(capacity=2, images=2, lookahead=16)
    first = []
    for seed in range(150):
        sequences = {"image": 4, "video": 1}
        stream = Stream(mixture, np.arange(57), seed=seed, sequences=sequences, packing=packing)
        first.append(next(stream.steps()).modality)
    assert abs(first.count("image") / 150 - 5 / 13.5) < 4 * (0.37 * 0.63 / 150) ** 0.5


def test_missing_settings_of_a_modality_are_one_line_errors(places):
    mixture = mixture_of(places, a={}, b={"modality": "video"})
    with pytest.raises(RecipeError, match=r"no value for modality 'video' of data\.sources, only for image; add one"):
        stream_of(mixture, sequences={"image": 2})
    with pytest.raises(InputError, match="no samples of modality 'video'"):
        Stream(mixture, np.arange(40), seed=0, sequences=1)
    weighted = mixture_of(places, a={"weight": 1}, b={"weight": 1})
    with pytest.raises(InputError, match="has a weight, but no training samples"):
        Stream(weighted, np.arange(40), seed=0, sequences=1)


def test_sizes_are_drawn_by_weight_and_images_have_the_planned_size(places):
    mixture = mixture_of(places, a={"max_tokens": {4: 0.75, 16: 0.25}}, b={"max_tokens": 9})
    reader = ImageReader(mixture, patch=8, seed=1)
    rows = np.repeat(np.arange(50), 40)
    epochs = np.tile(np.arange(40), 50)
    planned = reader.tokens(rows, epochs)
    assert abs(np.mean(planned[rows < 40] == 4) - 0.75) < 4 * (0.75 * 0.25 / 1600) ** 0.5
    assert set(planned[rows < 40]) == {4, 16}
    assert set(planned[rows >= 40]) == {9}
    for row in (0, 7, 45):
        for epoch in range(6):
            assert len(reader.get(row, epoch).patches) == reader.tokens(np.array([row]), np.array([epoch]))[0]
        assert len(reader.get(row).patches) == reader.tokens(np.array([row]))[0] == (16 if row < 40 else 9)


def with_texts(folder: Path) -> str:
    """A packed dataset: row 0 has a text and fields, row 1 only a field, row 2 nothing, row 3 an empty text."""
    made = items("t", 4)
    texts = [b"a caption", None, None, b" "]
    documents = [{"title": "a title", "tags": ["x", "y", 3], "deep": {"er": "deep"}}, {"title": "other"}, {}, {}]
    return str(write_dataset(folder, made, texts=texts, documents=documents))


def test_texts_are_drawn_by_weight_among_those_of_the_sample(tmp_path):
    url = with_texts(tmp_path / "t")
    texts = {"txt": 2.0, "json.title": 1.0, "json.tags": 1.0, "json.deep.er": 1.0, "json.none": 5.0}
    mixture = open_mixture(DataRecipe(sources=[SourceRecipe(dataset=url, texts=texts)]))
    reader = ImageReader(mixture, patch=8, max_tokens=4, allowance=CacheBudget(1 << 20))
    found = Counter(reader.get(0, epoch).text for epoch in range(1000))
    shares = {"a caption": 0.4, "a title": 0.2, "x": 0.1, "y": 0.1, "deep": 0.2}
    assert found.keys() == shares.keys()
    for text, share in shares.items():
        assert abs(found[text] / 1000 - share) < 4 * (share * (1 - share) / 1000) ** 0.5
    assert {reader.get(1, epoch).text for epoch in range(9)} == {"other"}
    assert [reader.get(row).text for row in (2, 3)] == [None, None]
    assert [reader.get(0, epoch).text for epoch in range(30)] == [
        ImageReader(mixture, patch=8, max_tokens=4).get(0, epoch).text for epoch in range(30)
    ]
    batch = collate([reader.get(row) for row in (1, 2)])
    assert batch.texts == ["other", None]


def test_texts_that_cannot_be_read_are_skipped_and_logged_once(tmp_path, monkeypatch, caplog):
    mixture = open_mixture(DataRecipe(sources=[SourceRecipe(dataset=with_texts(tmp_path / "t"), texts={"txt": 1.0})]))
    members = MemberReader(mixture)
    real = members.member

    def member(row: int, name: str) -> bytes | None:
        if row > 1:
            raise OSError(5, "Input/output error")
        return real(row, name)

    monkeypatch.setattr(members, "member", member)
    assert Texts(mixture, members, Draws(mixture, 0)).read_all(np.arange(4), workers=1) == ["a caption"]
    assert texts_of(mixture, members, ["txt"], range(4), 1) == [["a caption"], [], [], []]
    assert [record.message for record in caplog.records] == [
        "row 2: cannot read its texts ([Errno 5] Input/output error); such rows count as having no text"
    ] * 2


def test_an_image_without_text_is_skipped_if_texts_are_needed(tmp_path):
    url = with_texts(tmp_path / "t")
    mixture = open_mixture(DataRecipe(sources=[SourceRecipe(dataset=url, texts={"txt": 1.0})]))
    reader = ImageReader(mixture, patch=8, max_tokens=4, needs_text=True)
    assert reader.get(0).text == "a caption"
    skipped = [reader.get(row) for row in (1, 2, 3)]
    assert {item.reason for item in skipped if isinstance(item, Skipped)} == {"no_text"}


@given(st.integers(0, 2**64 - 1), st.lists(st.floats(0.01, 10), min_size=1, max_size=5))
def test_choices_are_within_bounds(rank, weights):
    assert 0 <= choose(np.array([rank], dtype=np.uint64), weights)[0] < len(weights)
    candidates = tuple((weight, ("x", "y")) for weight in weights)
    assert choose_text(candidates, np.uint64(rank)) in ("x", "y")
    assert choose_text((), np.uint64(rank)) is None


def test_augmented_images_fill_the_plan_and_do_not_depend_on_the_cache(places):
    from functools import partial

    from distill.samples.images.augment import augment

    change = partial(augment, recipe=AugmentRecipe(crop=(0.3, 1.0), aspect=1.5, flip=True, colour=0.3))
    mixture = mixture_of(places, a={"max_tokens": 16})
    read = []
    members = MemberReader(mixture)
    made = [
        ImageReader(
            mixture,
            patch=8,
            augment=change,
            allowance=CacheBudget(room),
            read=lambda r: read.append(r) or members.read(r),
        )
        for room in (0, 1 << 24)
    ]
    once, kept = ([reader.get(5, epoch).patches for epoch in range(6)] for reader in made)
    assert all(np.array_equal(a, b) for a, b in zip(once, kept, strict=True))
    assert len(read) == 6 + 1
    assert all(12 <= len(patches) <= 16 for patches in once)
    assert len({patches.tobytes() for patches in once}) == 6
    assert np.array_equal(made[1].get(5).patches, ImageReader(mixture, patch=8).get(5).patches)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_has_the_same_number_of_micro_batches(places, world):
    mixture = mixture_of(places, a={})
    reader = ImageReader(mixture, patch=8, max_tokens=9, allowance=CacheBudget(1 << 24))
    stream = stream_of(mixture, sequences=7, tokens=reader.tokens(np.arange(len(mixture))) + 1)
    for shares in zip(*(islice(Loader(stream, reader, rank=r, world=world), 3) for r in range(world)), strict=True):
        for most in (0, 1, 2, 5, 99):
            parts = [share.micro_batches(most) for share in shares]
            assert len({len(rank) for rank in parts}) == 1
            for share, rank in zip(shares, parts, strict=True):
                assert [item.row for part in rank for item in part.images] == [item.row for item in share.images]
                assert [n for part in rank for n in part.sequence] == share.sequence
                assert all(len(set(part.sequence)) <= (most or 99) for part in rank)
