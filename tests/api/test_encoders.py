from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from curate.api.encoders import _judged, compare_encoders
from curate.cli import app
from curate.core.errors import CurateError
from tests.codec.make_images import encoded, noise
from tests.engine.contract import CLIP

BOTH = ["descriptor", CLIP]


def coloured(folder: Path, names: dict[str, str], count: int = 12) -> Path:
    """`count` noisy images of a colour for each sub-folder."""
    for seed, (name, colour) in enumerate(names.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image = Image.blend(Image.new("RGB", (48, 40), colour), noise(48, 40, seed=100 * seed + number), 0.3)
            (folder / name / f"{seed}-{number}.png").write_bytes(encoded(image, "png"))
    return folder


def test_folders_are_separated_if_there_is_no_label(tmp_path: Path) -> None:
    folder = coloured(tmp_path, {"june/red": "red", "blue": "blue", "red": "red"})
    found = compare_encoders(str(folder), ["descriptor"])
    assert (found.by, found.images, found.accuracy["descriptor"]) == ("folders", 36, 1.0)  # june/red is red
    assert found == compare_encoders(str(folder), ["descriptor"])


def test_labels_of_the_metadata_come_first(tmp_path: Path) -> None:
    folder = coloured(tmp_path, {"mixed": "red", "other": "blue"})
    names = [path.relative_to(folder).as_posix() for path in folder.glob("*/*")]
    rows = [{"file_name": name, "label": number % 2} for number, name in enumerate(names)]
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = compare_encoders(str(folder), ["descriptor"])
    assert (found.by, found.images) == ("labels", 24)
    assert found.accuracy["descriptor"] < 0.9  # the labels have nothing to do with the colours


def test_without_groups_altered_copies_are_found(tmp_path: Path) -> None:
    """Copies count once, and files that are not images do not count."""
    folder = coloured(tmp_path, {".": "white"}, count=30)
    for path in list(folder.glob("*.png"))[:5]:
        path.with_name(f"copy-{path.name}").write_bytes(path.read_bytes())
    (folder / "broken.png").write_bytes(b"no")
    found = compare_encoders(str(folder), ["descriptor"])
    assert (found.by, found.images, found.encoder) == ("altered copies", 30, "descriptor")
    assert found.verdict.startswith("descriptor is best by altered copies: ")


@pytest.mark.long
def test_the_command_prints_a_verdict_and_writes_the_result(tmp_path: Path) -> None:
    folder, file = coloured(tmp_path / "photos", {"red": "red", "blue": "blue"}), tmp_path / "result.json"
    options = [word for spec in BOTH for word in ("--encoder", spec)]
    shown = CliRunner().invoke(app, ["encoders", "compare", str(folder), *options, "--json", str(file)])
    result = json.loads(file.read_text())
    assert shown.exit_code == 0 and result["verdict"] in shown.output and "(24 images)" in shown.output
    assert result["encoder"] == "descriptor" and list(result["accuracy"]) == BOTH


@pytest.mark.parametrize(
    ("shares", "chosen", "verdict"),
    [
        ((0.5, 0.8), "b", "b is best by labels: a 50.0%, b 80.0%; b against a: +"),
        ((0.5, 0.501), "a", "undecided by labels, so a: a 50.0%, b 50.1%; b against a: -"),
        ((0.5, 0.2, 0.501), "a", "undecided by labels, so a"),
        ((0.1, 0.5, 0.501), "b", "undecided by labels, so b"),
    ],
)
def test_the_first_wins_unless_another_is_better(shares: tuple[float, ...], chosen: str, verdict: str) -> None:
    random = np.random.default_rng(0)
    right = [random.permutation(np.arange(1000) < 1000 * share).astype(float) for share in shares]
    found = _judged("labels", ["a", "b", "c"][: len(shares)], right)
    assert found.encoder == chosen and found.verdict.startswith(verdict)


@pytest.mark.parametrize(("specs", "message"), [(["descriptor"], "0 different images"), (["what"], "'what'")])
def test_what_cannot_be_compared_is_one_line(tmp_path: Path, specs: list[str], message: str) -> None:
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(CurateError, match=message) as caught:
        compare_encoders(str(tmp_path), specs)
    assert "\n" not in str(caught.value)
