"""`make url_list`, small: from a list of URLs to a trained student, and the same command again."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from curate.api import Workspace
from pipelines import url_list
from pipelines.serve import ImageServer, Request, Response
from pipelines.url_list import served
from tests.e2e.texts import write_images

COUNT = 48
CURATION = ["contact=me@example.org", "levels=[6]", "target=24", "min_side=48", "urls.portion_rows=20"]
TRAINING = ["data.test_fraction=0.5", "train.steps=2", "train.warmup_steps=1", "train.sequences=1"]
"""Few steps of small batches."""


@pytest.mark.long
def test_a_list_becomes_a_student_and_the_same_command_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], runner_python: Path
) -> None:
    asked: list[str] = []

    class Logging(ImageServer):
        def answer(self, request: Request) -> Response:
            asked.append(request.path)
            return super().answer(request)

    monkeypatch.setattr(url_list, "ImageServer", Logging)
    images = write_images(tmp_path / "images", COUNT)
    (images / "007.png").unlink()

    def go(port: int) -> tuple[dict[str, str], str]:
        with served(images, tmp_path, port) as settings:
            outputs = url_list.url_list(
                [*settings, *CURATION], str(tmp_path / "workspace"), "local", TRAINING, Console()
            )
        return outputs, capfd.readouterr().out

    first, said = go(0)
    assert len(asked) == len(set(asked)) == COUNT
    [port] = [int(path.stem.removeprefix("urls-")) for path in tmp_path.glob("urls-*.jsonl")]
    [run] = Workspace(str(tmp_path / "workspace")).runs()
    ledger = Workspace(str(tmp_path / "workspace")).run(run.run_id).ledger()
    assert (ledger["pool"].before, ledger["pool"].unusable, ledger["pool"].error) == (COUNT, {"http_404": 1}, {})
    assert ledger["size"].rejected == {"too_small": 12} and ledger["sample"].copies == 24
    last = said[said.rindex("\ndataset ") :]
    shown = dict(line.split(maxsplit=1) for line in last.splitlines() if line)
    assert " a random sample: " in shown["balance"]
    assert shown["dataset"] == first["dataset"] and Path(shown["report"]).is_file() and Path(shown["judged"]).is_file()
    assert shown["kNN"].startswith("student ")

    asked.clear()
    again, said = go(port)
    assert again == first and asked == []
    assert said.endswith(last)
