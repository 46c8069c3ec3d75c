import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from curate import encoders
from curate.core.contracts import Batch
from curate.core.errors import CurateError
from curate.core.vectors import to_binary
from curate.image.concepts import ImageConcepts
from curate.kernels.entries import entries_of
from curate.kernels.wordnet.hypernyms import taxonomy
from tests.encoders.models import blob_image
from tests.text.wordnet.wordnets import real, tiny  # noqa: F401  (fixtures)

PHOTOS = Path(__file__).parents[3] / "shared/data/imagenet-sample-1000.parquet"
pytestmark = pytest.mark.usefixtures("real")


@pytest.fixture(scope="module")
def encoder():
    return encoders.load("lite0", device="cpu")


def embedded(encoder, images, made_by=None):
    """The images' vectors, as `image.embed` writes them."""
    vectors = encoder.encode([encoder.prepare(image) for image in images], patches=False).summary
    column, norms = to_binary(vectors)
    about = {"encoder": made_by or encoder.spec, "weights": encoder.identity()["weights"]}
    field = pa.field("embedding", column.type, metadata=about)
    schema = pa.schema([field, pa.field("embedding_norm", pa.float32())])
    return pa.Table.from_arrays([column, pa.array(norms)], schema=schema)


@lru_cache
def stage_of(**parameters):
    stage = ImageConcepts(encoder="lite0", **parameters)
    stage.setup({})
    return stage


def named(table, **parameters):
    stage = stage_of(**parameters)
    batch = Batch(table)
    made = pa.table(stage.process(batch), schema=stage.schema())
    return made, batch


@pytest.fixture(scope="module")
def photos(encoder):
    """The synsets of twenty photos, and their vectors."""
    if not PHOTOS.is_file():
        pytest.skip(f"{PHOTOS} is missing")
    rows = pq.read_table(PHOTOS).slice(0, 1000).take(list(range(0, 1000, 50))).to_pylist()
    images = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
    return [taxonomy().by_offset[row["wnid"][1:]] for row in rows], embedded(encoder, images)


def test_photos_are_named(photos):
    names, table = photos
    made, batch = named(table)
    found = made.column("concept").to_pylist()
    kinds = [taxonomy().kinds(name) for name in names]
    right = [one in of for one, of in zip(found, kinds, strict=True) if one is not None]
    assert len(right) >= 15 and np.mean(right) > 0.8
    assert sum(one == name for one, name in zip(found, names, strict=True)) >= 10
    assert batch.counters["sure"] + batch.counters["unsure"] == len(names)
    assert batch.counters["unsure"] == made.column("concept").null_count


def test_columns_agree_and_are_read_as_entries(photos):
    made, _ = named(photos[1], share=0.05, most=4)
    for row in made.to_pylist():
        [concepts], [shares] = row["concepts"], row["concept_shares"]
        assert len(concepts) == len(set(concepts)) == len(shares) <= 4
        assert sorted(shares, reverse=True) == shares and all(share >= 0.05 for share in shares)
        assert row["concept"] == next(iter(concepts), None)
        assert not shares or row["concept_share"] == shares[0]
    found = entries_of(made, ["concepts"])
    assert len(found) == made.num_rows
    assert len(found.entry) == sum(len(row[0]) for row in made.column("concepts").to_pylist())


def test_a_concept_has_the_sum_of_its_classes(photos):
    """Nearly every class has a hypernym at depth 5, some have several."""
    made, _ = named(photos[1], depth=5, most=100, share=1e-9)
    sums = [sum(row[0]) for row in made.column("concept_shares").to_pylist()]
    assert min(sums) > 0.9 and "organism.n.01" in {row[0][0] for row in made.column("concepts").to_pylist()}


def test_no_concept_is_a_hypernym_of_another(photos):
    made, _ = named(photos[1], share=0.02, most=100)
    known = taxonomy()
    for [concepts] in made.column("concepts").to_pylist():
        assert all(not set(known.kinds(one)[1:]) & set(concepts) for one in concepts)


def test_a_higher_share_names_fewer(photos):
    named_at = [named(photos[1], share=share)[1].counters["sure"] for share in (0.1, 0.4, 0.8)]
    assert named_at[0] >= named_at[1] > named_at[2]


def test_a_row_does_not_depend_on_the_others(photos):
    whole, _ = named(photos[1])
    alone = [named(photos[1].slice(row, 1))[0] for row in range(5)]
    assert pa.concat_tables(alone).to_pylist() == whole.slice(0, 5).to_pylist()


def test_drawn_shapes_are_unsure(encoder):
    made, batch = named(embedded(encoder, [blob_image(seed=seed) for seed in range(6)]))
    assert batch.counters["unsure"] >= 3
    assert made.column("concept_share").null_count == 0


def test_rows_without_a_vector_are_unusable(photos):
    empty = (
        photos[1]
        .slice(0, 2)
        .set_column(
            0, photos[1].schema.field(0), pa.array([None, photos[1].column(0)[1].as_py()], photos[1].column(0).type)
        )
    )
    _, batch = named(empty)
    assert batch.unfit == {0: "no_embedding"}
    assert batch.counters["sure"] + batch.counters["unsure"] == 1


def test_vectors_of_another_encoder_are_one_line(encoder):
    with pytest.raises(CurateError, match=r"'embedding' has encoder tiny, but its `encoder` has encoder lite0; name"):
        named(embedded(encoder, [blob_image()], made_by="tiny"))


@pytest.mark.parametrize("spec", ["descriptor"])
def test_an_encoder_without_classes_is_one_line(spec):
    with pytest.raises(CurateError, match="has neither ImageNet's classes nor a text tower"):
        ImageConcepts(encoder=spec).setup({})


def test_texts_of_an_encoder_name_classes():
    found = encoders.load("tiny").classes()
    assert found.unit and found.weight_CD.shape == (1000, 192) and found.wnids[0] == "n01440764"


def test_timms_own_classifier(tmp_path):
    model = timm.create_model("resnet10t", num_classes=1000)
    save_file(model.state_dict(), tmp_path / "r.safetensors")
    found = encoders.load(f"timm:resnet10t@{tmp_path}/r.safetensors", device="cpu").classes()
    assert not found.unit
    assert np.array_equal(found.weight_CD, model.get_classifier().weight.detach().numpy())
    with pytest.raises(CurateError, match="has no linear classifier of ImageNet's classes"):
        encoders.load("timm:resnet10t?random=1&num_classes=0", device="cpu").classes()


def test_another_wordnet_is_one_line(tiny):  # noqa: F811
    with pytest.raises(CurateError, match=r"download WordNet 3.0 and set CURATE_WORDNET"):
        ImageConcepts(encoder="lite0").setup({})


def test_it_never_holds_a_gpu():
    assert ImageConcepts().placed(True).resources().gpus == 0
    assert ImageConcepts().placed(True) == ImageConcepts().placed(False)
