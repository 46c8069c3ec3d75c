import numpy as np
import pyarrow as pa
import pytest

from curate import encoders
from curate.core.contracts import Batch
from curate.core.errors import CurateError
from curate.core.items import family_of
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.core.vectors import from_binary, halves_of, to_binary, vector_type
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.pack.webdataset import PackWebDataset
from curate.text.embed import Embed
from distill.samples.sources.dataset import open_dataset
from tests.encoders.models import save_language_model, save_open_clip
from tests.engine import toys
from tests.engine.passes.test_items import Pick, Words

TEXTS = ["a red star", "blue house", "a red star"]


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    save_language_model(root / "language", hidden_size=64)
    save_open_clip(root / "open_clip", seed=3)
    return {"hf": f"hf:{root / 'language'}", "open_clip": f"open_clip:{root / 'open_clip'}"}


def embedded(spec, texts):
    stage = Embed(encoder=spec, device="cpu")
    assert stage.preflight() == []
    stage.setup({})
    batch = Batch(pa.table({"key": [f"{i:032x}" for i in range(len(texts))], "text": texts}))
    columns = stage.process(batch)
    assert not batch.failed and not batch.unfit
    assert pa.table(columns).schema.equals(stage.schema())
    return columns, batch, stage


@pytest.mark.parametrize("kind", ["hf", "open_clip"])
def test_a_vector_and_its_length_for_each_text(kind, specs):
    columns, batch, _ = embedded(specs[kind], pa.array(TEXTS))
    expected = encoders.load(specs[kind], device="cpu").encode_text(TEXTS)
    vectors, norms = (column.flatten() for column in columns.values())
    assert vectors.type == vector_type(expected.shape[1])
    assert np.allclose(from_binary(vectors, norms), expected, rtol=2e-3, atol=2e-3)
    assert np.allclose(np.linalg.norm(from_binary(vectors), axis=1), 1, atol=1e-3)
    assert not batch.counters["no_direction"]


def test_items_keep_their_places_and_nothing_has_no_vector(specs):
    one, _, _ = embedded(specs["hf"], pa.array(TEXTS))
    star, house = (row[0] for row in one["text_embedding"].to_pylist()[:2])
    texts = pa.array([[TEXTS[0], None, TEXTS[1]], None, [], ["", TEXTS[1]]])
    columns, batch, stage = embedded(specs["hf"], texts)
    assert columns["text_embedding"].to_pylist() == [[star, None, house], None, [], [None, house]]
    assert [row and [value is None for value in row] for row in columns["text_embedding_norm"].to_pylist()] == [
        [False, True, False], None, [], [True, False]
    ]  # fmt: skip
    assert batch.counters["no_direction"] == 1
    fields = {field.name: field for field in stage.schema()}
    assert family_of("text_embedding", fields) == "text"


def test_the_fingerprint_has_the_weights_and_not_their_place(specs, tmp_path):
    stage = Embed(encoder=specs["hf"])
    save_language_model(tmp_path / "same", hidden_size=64)
    save_language_model(tmp_path / "other", seed=1, hidden_size=64)
    same, other = (Embed(encoder=f"hf:{tmp_path / name}") for name in ("same", "other"))
    assert stage.identity() == same.identity() and stage.parameters() == same.parameters()
    assert stage.identity()["weights"] != other.identity()["weights"]
    assert stage.parameters()["encoder"] == "hf:local"
    assert Embed(encoder=specs["hf"], device="cuda").resources().gpus == 1


def test_a_bad_folder_is_one_line(tmp_path):
    [problem] = Embed(encoder=f"hf:{tmp_path / 'nothing'}").preflight()
    assert problem.startswith("encoder: no weights at") and "\n" not in problem
    assert "has no text tower" in Embed(encoder="descriptor").preflight()[0]
    with pytest.raises(CurateError, match=r"text.embed.column: 'text' holds int64; give a column of texts"):
        embedded("tiny", pa.array([1, 2]))


def test_a_dataset_carries_the_vector_of_each_text(specs, tmp_path):
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=12)).add("words", Words(), "pool")
    made.add("pick", Pick(), "words")
    made.add("vectors", Embed(encoder=specs["hf"], column="words", device="cpu"), "pick")
    carry = {"says": "words", "vector": "text_embedding"}
    made.add("dataset", PackWebDataset(name="pairs", text="words", carry=carry), "vectors")
    result = run(made.check(), str(tmp_path))
    dataset = open_dataset(result.outputs["dataset"])
    every = np.arange(len(dataset))
    says, found = dataset.values("says", every), dataset.values("vector", every)
    assert "7-2" in says and len(set(found)) == len(set(says)) < len(says)
    expected, _ = to_binary(encoders.load(specs["hf"], device="cpu").encode_text(says))
    vectors = np.stack([np.frombuffer(value, "<f2") for value in found])
    assert np.allclose(vectors, halves_of(expected), atol=1e-3)
    told = dict(line[::2] for line in explain(latest(open_storage(str(tmp_path)), result.run_id), "000007"))
    assert [vector and vector[:11] for vector in told["vectors"]["text_embedding"]] == [
        "64 numbers:",
        None,
        "64 numbers:",
    ]
