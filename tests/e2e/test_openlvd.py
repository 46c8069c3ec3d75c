"""AMoE's two recipes in small: a tree fitted on a uniform subsample, all images assigned, a balanced sample; and large
images without balance."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from curate.acquire.lists.list import AcquireList
from curate.core.errors import CurateError, TargetError
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.load import load
from curate.core.store.storage import open_storage
from curate.encoders.spec import parse_spec
from curate.encoders.timm_models import create
from curate.engine.run import Result, run
from tests.conftest import ROOT
from tests.e2e.commands import curate
from tests.e2e.image_files import write_good

IMAGES, SUBSAMPLE, TARGET, LEVELS = 60, 25, 12, [8, 4, 3, 2]
RECIPE = ROOT / "pipelines/openlvd.yaml"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_good(tmp_path_factory.mktemp("openlvd") / "images", IMAGES)


def settings(images: Path, *more: str) -> list[str]:
    values = [f"images={images}", "source=folder", "encoder=descriptor", "precision=float32", "pool.shard_rows=20"]
    return [*values, f"subsample={SUBSAMPLE}", f"levels={LEVELS}", f"target={TARGET}", *more]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("space"))


@pytest.fixture(scope="module")
def done(images: Path, space: str) -> Result:
    return run(load(RECIPE, settings(images)), space)


def lines_of(done: Result, space: str, stage: str) -> pa.Table:
    folder = Path(space) / Path(done.outputs[stage]).relative_to(space) / "rows"
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])


def test_the_tree_is_fitted_on_the_subsample_and_all_images_are_sampled(done: Result, space: str) -> None:
    assert done.ledger["subsample"].rejected == {"not_drawn": IMAGES - SUBSAMPLE}
    assert done.ledger["tree"].before == SUBSAMPLE
    assert done.ledger["clusters"].before == done.ledger["sample"].before == IMAGES
    storage = open_storage(space)
    tree = StoredArtifact(storage, str(Path(done.outputs["tree"]).relative_to(space)))
    assert tree["levels"]["rows"] == SUBSAMPLE and tree["sizes_4"].sum() == SUBSAMPLE
    assert [level["clusters"] for level in tree["levels"]["levels"]] == LEVELS
    fitted, taken = (
        {line["key"] for line in lines_of(done, space, stage).to_pylist() if line["copies"]}
        for stage in ("subsample", "sample")
    )
    assert len(fitted) == SUBSAMPLE and len(taken) == TARGET
    assert taken - fitted, "the draw must not depend on the subsample"


def test_an_image_outside_of_the_subsample_is_explained(done: Result, space: str) -> None:
    lines = lines_of(done, space, "sample").to_pylist()
    outside = {line["key"] for line in lines_of(done, space, "subsample").to_pylist() if not line["copies"]}
    key = next(line["key"] for line in lines if line["copies"] and line["key"] in outside)
    told = curate("explain", key, "-w", space)
    assert told.code == 0 and "not_drawn" in told.words and "cluster_4" in told.words


def test_the_report_shows_the_balanced_selection(done: Result) -> None:
    page = " ".join(Path(done.outputs["report"], "index.html").read_text().split())
    assert "does not add up" not in page and "unaccounted" not in page
    assert "subsample" in page and "not drawn" in page


def test_a_changed_target_fits_nothing_again(done: Result, images: Path, space: str) -> None:
    again = run(load(RECIPE, settings(images, "target=20")), space)
    assert {name for name, counts in again.counts.items() if counts.rebuilt} == {"sample", "dataset", "report"}


def test_a_count_above_the_pool_is_one_line(images: Path, tmp_path: Path) -> None:
    with pytest.raises(CurateError) as caught:
        run(load(RECIPE, settings(images, "subsample=61")), str(tmp_path))
    text = "openlvd.yaml:69: subsample: count 61 is more than the 60 rows of its pool; lower it"
    assert str(caught.value).endswith(text), caught.value


def test_two_samples_with_one_seed_are_reported_as_dependent(images: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "two.yaml"
    recipe.write_text(
        f"stages:\n  pool: {{op: acquire.folder, path: {images}, namespace: two}}\n"
        "  a: {op: select.uniform, from: pool, count: 5}\n  b: {op: select.uniform, from: pool, count: 4}\n"
    )
    told = curate("plan", recipe, "-w", tmp_path / "work")
    assert "select.uniform with seed 0, as a" in told.words
    run(load(recipe), str(tmp_path / "work"))
    assert "the larger sample contains the smaller one" in curate("plan", recipe, "-w", tmp_path / "work").words


def test_two_lists_become_one_pool(tmp_path: Path) -> None:
    for name, columns in (("dfn", {"uid": ["1"]}), ("laion", {"similarity": [0.3], "NSFW": ["no"]})):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"url": [f"http://{name}.example/1.jpg"], **columns}), tmp_path / name / "0.parquet")
    lists = [f"{tmp_path}/dfn/*.parquet", f"{tmp_path}/laion/*.parquet"]
    stage = load(RECIPE, ["contact=me@example.org", f"lists={lists}"]).nodes["urls"].stage
    assert isinstance(stage, AcquireList)
    urls = [url for part in stage.plan() for table in stage.read(part) for url in table["url"].to_pylist()]
    assert urls == ["http://dfn.example/1.jpg", "http://laion.example/1.jpg"]


def test_large_images_keep_their_distribution(images: Path, tmp_path: Path) -> None:
    highres = ROOT / "pipelines/amoe_highres.yaml"
    values = [f"images={images}", "source=folder", "min_side=48"]
    done = run(load(highres, values), str(tmp_path))
    assert done.ledger["dataset"].after == IMAGES
    with pytest.raises(TargetError, match=r"sample: select\.uniform: no rows reach it"):
        run(load(highres, [*values[:2], "min_side=49"]), str(tmp_path))


def test_the_encoder_of_the_paper_is_built_without_weights() -> None:
    name = load(RECIPE, ["source=folder"]).nodes["embed"].stage.encoder  # type: ignore[attr-defined]
    with torch.device("meta"):  # shapes alone
        model = create(parse_spec(f"{name.split('.')[0]}?random=0"))
        features = model.forward_features(torch.empty(2, 3, 256, 256))
        summary = model.forward_head(features, pre_logits=True)
    assert 85e6 < sum(weights.numel() for weights in model.parameters()) < 87e6
    assert summary.shape == (2, 768) and features.shape == (2, 1 + 4 + 16 * 16, 768)
    assert model.global_pool == "token"
