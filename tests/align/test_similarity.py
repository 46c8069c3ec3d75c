import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from curate import encoders
from curate.align.similarity import Similarity
from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.errors import CurateError
from curate.core.items import family_of, places_of
from curate.core.vectors import from_binary, to_binary
from curate.image.embed import Embed
from tests.codec.make_images import encoded
from tests.encoders.models import blob_image, save_hf, save_open_clip

KINDS = ("open_clip", "clip", "siglip")
TEXTS = ["a red star </s>", "a blue house </s>", "a red star </s>", "star star </s>", "", "\0", "🎉🎉", "‏بيت‎"]


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save_open_clip(root / "open_clip", seed=3)
    for kind in ("clip", "siglip", "dinov2"):
        save_hf(root / kind, kind)
    return {kind: f"{'open_clip' if kind == 'open_clip' else 'hf'}:{root / kind}" for kind in (*KINDS, "dinov2")}


@pytest.fixture(scope="module")
def embedded(specs):
    """Eight images' vectors by kind, as `image.embed` writes them: (field, column)."""
    found = {}
    for kind in KINDS:
        stage = Embed(encoder=specs[kind], device="cpu")
        stage.setup({})
        prepared = [stage.prepare(Sample(encoded(blob_image(seed=seed), "PNG"), decode)) for seed in range(8)]
        table = pa.table({"key": [f"{i:032x}" for i in range(8)]})
        found[kind] = stage.schema().field("embedding"), stage.process(Batch(table, prepared))["embedding"]
    return found


@pytest.fixture(scope="module")
def stages(specs):
    made = {}
    for kind in KINDS:
        made[kind] = Similarity(encoder=specs[kind], device="cpu")
        made[kind].setup({})
    return made


def score(stage, field, vectors, texts):
    """Output columns of one batch, and the batch with its counters and unusable rows."""
    keys = pa.field("key", pa.string()), pa.array([f"{i:032x}" for i in range(len(texts))])
    schema = pa.schema([keys[0], field, pa.field("text", texts.type)])
    batch = Batch(pa.Table.from_arrays([keys[1], vectors, texts], schema=schema))
    columns = stage.process(batch)
    assert list(columns) == ["similarity"] and not batch.failed
    return columns, batch


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_cosine_of_both_towers(kind, specs, stages, embedded):
    field, vectors = embedded[kind]
    columns, batch = score(stages[kind], field, vectors, pa.array(TEXTS))
    texts = encoders.load(specs[kind], device="cpu").encode_text(TEXTS)
    images = from_binary(vectors)
    expected = (images * texts).sum(1) / np.linalg.norm(images, axis=1) / np.linalg.norm(texts, axis=1)
    assert np.allclose([row[0] for row in columns["similarity"].to_pylist()], expected, atol=1e-5)
    assert not batch.unfit


@pytest.mark.parametrize("kind", KINDS)
def test_items_keep_their_places(kind, stages, embedded):
    field, vectors = embedded[kind]
    one, _ = score(stages[kind], field, vectors, pa.array(TEXTS))
    flat = [row[0] for row in one["similarity"].to_pylist()]
    lists = pa.array([[TEXTS[0]], None, [], [None], [None, TEXTS[4], None, TEXTS[4]], *[[text] for text in TEXTS[5:]]])
    found, _ = score(stages[kind], field, vectors, lists)
    expected = [[flat[0]], None, [], [None], [None, flat[4], None, flat[4]], *[[value] for value in flat[5:]]]
    assert found["similarity"].to_pylist() == expected and found["similarity"].type == pa.list_(pa.float32())
    nothing, batch = score(stages[kind], field, vectors, pa.array([None] * 8, pa.string()))
    assert nothing["similarity"].to_pylist() == [None] * 8 and not batch.unfit


@settings(max_examples=12)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_the_same_bits_however_rows_are_cut(data, kind, stages, embedded):
    field, vectors = embedded[kind]
    words = st.lists(st.sampled_from(["a", "red", "blue", "star", "house"]), max_size=20).map(" ".join)
    rows = data.draw(st.lists(st.lists(words, max_size=5), min_size=8, max_size=8))
    cuts = sorted(data.draw(st.sets(st.integers(1, 7), max_size=3)))
    texts = pa.array(rows, pa.list_(pa.string()))
    whole, _ = score(stages[kind], field, vectors, texts)
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, 8], strict=True):
        columns, _ = score(stages[kind], field, vectors[start:stop], texts[start:stop])
        parts.append(columns["similarity"])
    assert pa.concat_arrays(parts).equals(whole["similarity"])


def test_rows_without_a_direction_are_unusable_alone(stages, embedded):
    field, vectors = embedded["clip"]
    raw = from_binary(vectors)
    raw[1], raw[2, 3] = 0, np.nan
    broken, _ = to_binary(raw)
    broken = pa.array([value if i != 5 else None for i, value in enumerate(broken.to_pylist())], broken.type)
    columns, batch = score(stages["clip"], field, broken, pa.array(TEXTS))
    whole, _ = score(stages["clip"], field, vectors, pa.array(TEXTS))
    wrong = [i in (1, 2, 5) for i in range(8)]
    assert batch.unfit == {1: "no_embedding", 2: "no_embedding", 5: "no_embedding"}
    rows = whole["similarity"].to_pylist()
    assert columns["similarity"].to_pylist() == [[None] if bad else row for bad, row in zip(wrong, rows, strict=True)]
    assert batch.counters["no_direction"] == 0


def test_a_text_whose_vector_is_not_finite_has_no_similarity(stages, embedded, monkeypatch):
    stage = stages["clip"]
    encode = stage._encoder.encode_text

    def overflowing(texts):
        return np.where(np.array([text == TEXTS[1] for text in texts])[:, None], np.inf, encode(texts))

    monkeypatch.setattr(stage._encoder, "encode_text", overflowing)
    columns, batch = score(stage, *embedded["clip"], pa.array(TEXTS))
    assert [row[0] is None for row in columns["similarity"].to_pylist()] == [i == 1 for i in range(8)]
    assert not batch.unfit and batch.counters["no_direction"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_megabyte_in_one_text(kind, stages, embedded):
    """The text is truncated before the tokenizer, whose time is quadratic in a word's length and would take hours."""
    letters = np.random.default_rng(0).integers(97, 123, 1 << 20, dtype=np.uint8).tobytes().decode()
    texts = pa.array([letters, "a red star " * 100_000, *TEXTS[2:]])
    columns, _ = score(stages[kind], *embedded[kind], texts)
    assert all(abs(row[0]) <= 1 for row in columns["similarity"].to_pylist())


def test_vectors_of_another_encoder_are_an_error(stages, embedded, tmp_path):
    texts = pa.array(TEXTS)
    says = r"^align.similarity.embedding: 'embedding' has {}, but its `encoder` has .*; score with the encoder that emb"
    with pytest.raises(CurateError, match=says.format(r"encoder open_clip:local")):
        score(stages["clip"], *embedded["open_clip"], texts)
    save_open_clip(tmp_path / "other", seed=4)
    other = Similarity(encoder=f"open_clip:{tmp_path}/other", device="cpu")
    other.setup({})
    with pytest.raises(CurateError, match=says.format("weights [0-9a-f]+")):
        score(other, *embedded["open_clip"], texts)
    field, vectors = embedded["clip"]
    wide = embedded["open_clip"][1]
    with pytest.raises(CurateError, match=says.format("32 dimensions")):
        score(stages["clip"], pa.field("embedding", wide.type), wide, texts)
    with pytest.raises(
        CurateError, match=r"align.similarity.embedding: column 'embedding': expected fixed_size_binary .*, not double"
    ):
        score(stages["clip"], pa.field("embedding", pa.float64()), pa.array(np.zeros(8)), texts)
    with pytest.raises(CurateError, match=r"align.similarity.column: 'text' holds int64; give a column of texts"):
        score(stages["clip"], field, vectors, pa.array(range(8)))


@pytest.mark.parametrize("spec", ["descriptor", "timm:vit_small_patch16_224", "dinov2"])
def test_an_encoder_without_a_text_tower_fails_before_the_run(spec, specs):
    stage = Similarity(encoder=specs.get(spec, spec))
    says = "has no text tower; use an image-text model: 'tiny', 'open_clip:…', or a CLIP or SigLIP of 'hf:…'"
    assert says in stage.preflight()[0]


def test_or_when_it_is_loaded(specs, stages):
    assert stages["clip"].preflight() == stages["open_clip"].preflight() == []
    with pytest.raises(CurateError, match="has no text tower"):
        Similarity(encoder=specs["dinov2"], device="cpu").setup({})
    with pytest.raises(ValidationError, match="'clip' is not 'library:model'"):
        Similarity(encoder="clip")
    with pytest.raises(ValidationError, match="encoder\n  Field required"):
        Similarity()


def test_provenance(specs, stages):
    stage = stages["clip"]
    [field] = stage.schema()
    metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
    assert places_of("text").items() <= metadata.items() and metadata["of"] == "embedding and text"
    assert not stage.padded() and family_of("similarity", {"similarity": field}) == "text"
    [before] = Similarity(encoder=specs["clip"], column="sentences").schema()
    assert before.type == field.type and before.metadata[b"places"] == b"sentences"
    assert metadata["weights"] == stage.identity()["weights"] and "dim" not in metadata
    again = pickle.loads(pickle.dumps(Similarity(encoder=specs["clip"], device="cpu", threads=2)))
    assert again.parameters() == stage.parameters() and specs["clip"] not in repr(stage.parameters())
    assert again.resources().cpus == 2 and again.resources().gpus == 0
    assert Similarity(encoder=specs["clip"], device="cuda").resources().gpus == 1
    assert Similarity(encoder=specs["clip"], embedding="a", column="b", output="c").reads() == ("a", "b")
