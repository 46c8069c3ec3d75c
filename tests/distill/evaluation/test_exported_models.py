"""`distill eval` of exported models on any WebDataset: tars with labels, texts and masks in their members."""

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from PIL import Image
from rich.console import Console

from bench.kit.features import shared
from curate.core.errors import RecipeError, StorageError
from distill.cli import main
from distill.commands.evaluate import evaluate
from tests.distill.evaluation.toys import COLOURS, disc_image, encoded
from tests.distill.exports import save_distill

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_distill(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def discs(tmp_path: Path) -> Path:
    """30 discs of 3 colours: a class, two texts and a mask of each in its members."""
    folder = tmp_path / "discs"
    folder.mkdir()
    with wds.TarWriter(str(folder / "discs-000.tar"), encoder=False) as writer:
        for number in range(30):
            colour = list(COLOURS)[number % 3]
            image, disc = disc_image(colour, number)
            words = {"titles": [f"a {colour} disc", f"disc {number}"]}
            writer.write(
                {
                    "__key__": f"{number:06d}",
                    "png": encoded(image),
                    "seg.png": encoded(Image.fromarray(disc.astype(np.uint8))),
                    "cls": colour.encode(),
                    "json": json.dumps(words).encode(),
                }
            )
    return folder


def test_a_model_on_any_tars(model, discs, tmp_path):
    item = {"name": "discs", "dataset": str(discs), "label": "cls", "texts": ["json.titles"], "masks": "seg.png"}
    settings = [f"evaluate.datasets={json.dumps([item | {'test_fraction': 0.5}])}", "run.device=cpu"]
    result = evaluate(str(model), settings, QUIET, to=str(tmp_path / "out"))
    (found,) = result["sets"]
    assert found["knn"]["chance"] == found["zero_shot"]["chance"] == pytest.approx(1 / 3)
    assert set(found["zero_shot"]["models"]) == {"toy"}
    assert set(found["knn"]["models"]) == {"toy", "toy, as plain", "toy, as dense", "toy, heads together"}
    assert found["retrieval"]["pairs"] == 2 * found["retrieval"]["pictures"]
    assert found["retrieval"]["texts"] == found["retrieval"]["pictures"] + 3
    assert found["segmentation"]["models"]["toy"]["mean_iou"] > 0.5
    assert found["maps"]["models"] == ["toy", "toy, as dense"]
    assert "none of these students was trained on an available teacher" in found["fidelity"]["why_none"]
    assert json.loads((tmp_path / "out/evaluation.json").read_text()) == result
    assert b"discs" in (tmp_path / "out/evaluation.html").read_bytes()


def test_a_dataset_can_be_given_by_its_place(model, discs, tmp_path, monkeypatch, capsys):
    arguments = ["eval", str(model), "--dataset", str(discs), "--to", str(tmp_path / "out"), "--set", "run.device=cpu"]
    monkeypatch.setattr(sys, "argv", ["distill", *arguments, "--set", "evaluate.tasks=[knn]"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    output = capsys.readouterr().out
    assert "kNN: not computed: no column, member or JSON field 'label'" in output
    assert f"report: {tmp_path}/out/evaluation.html" in output


def test_text_encoders_of_no_head_are_one_line(model, discs, tmp_path):
    settings = ["run.device=cpu", "evaluate.text_encoders={other: descriptor}"]
    with pytest.raises(RecipeError, match="unknown teacher 'other'; choose from plain, dense"):
        evaluate(str(model), settings, QUIET, [str(discs)], str(tmp_path / "out"))


def test_a_model_without_datasets_is_one_line(model, tmp_path):
    with pytest.raises(RecipeError, match="give --dataset FOLDER"):
        evaluate(str(model), ["run.device=cpu"], QUIET, to=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["model/config.json", "/proc/out"])
def test_an_unwritable_folder_is_rejected_before_the_evaluation(model, discs, tmp_path, monkeypatch, place):
    monkeypatch.setattr("distill.evaluation.runs.evaluate_model", None)
    with pytest.raises(StorageError, match=r"--to .*: cannot write the evaluation there \(.*name another folder"):
        evaluate(str(model), ["run.device=cpu"], QUIET, [str(discs)], str(tmp_path / place))


def test_a_runs_evaluation_stays_with_the_run(tmp_path):
    with pytest.raises(RecipeError, match="--to out: does not apply to a run"):
        evaluate(str(tmp_path), [], QUIET, to="out")


def test_settings_of_the_section_apply_to_datasets_of_the_command_line(model, discs, tmp_path):
    asked = ["evaluate.label=cls", "evaluate.texts=[json.titles]", "evaluate.masks=seg.png", "run.device=cpu"]
    asked.append("evaluate.tasks=[retrieval, segmentation]")
    (tmp_path / "more").mkdir()
    shutil.copytree(discs, tmp_path / "more/discs")
    places = [str(discs), str(tmp_path / "more/discs")]
    result = evaluate(str(model), asked, QUIET, places, str(tmp_path / "out"))
    assert [found["name"] for found in result["sets"]] == ["discs", "discs-2"]
    for found in result["sets"]:
        assert found["retrieval"]["models"] and found["segmentation"]["models"]


@pytest.mark.skipif(not (shared() / "data").is_dir(), reason="no images next to the checkout (CURATE_SHARED)")
def test_photographs(model, tmp_path):
    """CIFAR-10's test images: a model of random weights is about as good as chance at zero-shot classification."""
    table = pq.read_table(shared() / "data" / "cifar10-test.parquet").take(list(range(0, 10_000, 50)))
    folder = tmp_path / "cifar10"
    folder.mkdir()
    with wds.TarWriter(str(folder / "cifar10-000.tar"), encoder=False) as writer:
        for number, row in enumerate(table.to_pylist()):
            kind = Image.open(io.BytesIO(row["image"])).format.lower().replace("jpeg", "jpg")
            writer.write({"__key__": f"{number:06d}", kind: row["image"], "cls": row["label"].encode()})
    items = [{"name": "cifar10", "dataset": str(folder), "label": "cls", "test_fraction": 1.0}]
    settings = [f"evaluate.datasets={json.dumps(items)}", "run.device=cpu", "evaluate.tasks=[zero_shot, knn]"]
    (found,) = evaluate(str(model), settings, QUIET, to=str(tmp_path / "out"))["sets"]
    assert found["zero_shot"]["test_images"] == 200
    assert found["zero_shot"]["classes"] == 10
    assert found["zero_shot"]["models"]["toy"]["top5"] > found["zero_shot"]["models"]["toy"]["accuracy"]
    assert "with 2 training images" in found["knn"]["why_none"]
