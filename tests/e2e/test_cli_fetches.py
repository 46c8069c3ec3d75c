"""What an operator sees of a download: status, report and explain, before and after a retry."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from curate.api import FetchStatus, StageStatus, Status
from curate.cli.fetches import fetches, sparkline
from curate.core.contracts import Fetch
from curate.core.fetches import FETCHED, Fetches
from tests.e2e.commands import curate
from tests.engine.units.test_collect import write

TOYS = "tests.engine.toys.lists"
ROWS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two runs: in the first, three rows fail for a moment, and one permanently; a retry gets two."""
    folder = tmp_path_factory.mktemp("fetches")
    write(folder / "lists", a=[(n, n) for n in range(ROWS)])
    stages = {
        "list": {"op": f"{TOYS}:Listed", "folder": str(folder / "lists")},
        "pool": {"op": f"{TOYS}:Fetched", "list": "list", "store": str(folder / "store.json")},
        "bright": {"op": "tests.engine.toys:Brightness", "from": "pool"},
        "page": {"op": "report.html", "from": "bright"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    failures = {"3-3": "TIMEOUT", "5-5": "TIMEOUT", "7-7": "RESET", "9-9": "gone"}
    for run_id, words in (("first", ["run"]), ("second", ["retry"])):
        (folder / "store.json").write_text(json.dumps(failures))
        stage = ["pool"] if run_id == "second" else []
        printed = curate(
            *words, folder / "recipe.yaml", *stage, "-w", folder / "workspace", "--run-id", run_id, "-q",
            "--failure-budget", "0.5",
        )  # fmt: skip
        assert (printed.code, printed.err) == (0, "")
        failures = {"5-5": "TIMEOUT", "9-9": "gone"}
    return folder / "workspace"


def test_status_shows_the_fetches_of_its_run(place: Path) -> None:
    words = curate("status", "first", "-w", place).words
    assert "pool: fetched in" in words and "24 URLs: 20 done, 3 error, 1 unusable; 1.17 tries per URL" in words
    assert "timeout error 2 8.3 %" in words and "gone unusable 1 4.2 %" in words
    assert "host-3 1 1" in words and "all opt-outs" not in words
    words = curate("status", "second", "-w", place).words
    assert "3 URLs: 2 done, 1 error, 0 unusable" in words
    assert "fetched" not in curate("status", "-w", place).words


class Text(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def test_a_report_after_a_retry_adds_up(place: Path) -> None:
    """The pool has 26 rows: two of them replace rows in error."""
    found = []
    for page in place.glob("artifacts/report.html/*/index.html"):
        text = " ".join(" ".join(Text(page.read_text()).parts).split())
        assert "Every image is accounted for." in text
        found.append(re.findall(r"(\d+) in = (\d+) rejected \+ (\d+) kept|(\d+) URLs of pool were fetched", text))
    wanted = [("24", "4", "20"), ("24", "2", "22")]
    assert sorted(counts[0][:3] for counts in found) == sorted(wanted)
    assert sorted(counts[1][3] for counts in found) == ["24", "27"]


def test_explain_shows_the_last_fetch(place: Path) -> None:
    words = curate("explain", "5-5", "-w", place, "--run", "second").words
    assert "status error reason timeout fetch host host-5 fetch tries 2 fetch seconds 0.0 fetch bytes 100" in words
    words = curate("explain", "3-3", "-w", place, "--run", "second").words
    assert "rejected no" in words and "fetch tries 1" in words
    words = curate("explain", "3-3", "-w", place, "--run", "first").words
    assert "reason timeout" in words


def test_explain_finds_the_fetch_beside_a_larger_list(place: Path) -> None:
    folder = place.parent
    write(folder / "more", b=[(n, n) for n in range(100, 100 + 4 * ROWS)])
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["stages"]["list"]["folder"] = str(folder / "more")
    del recipe["stages"]["bright"], recipe["stages"]["page"]
    (folder / "more.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert curate("run", folder / "more.yaml", "-w", place, "--run-id", "more", "-q").code == 0
    assert "fetch host host-100" in curate("explain", "100-100", "-w", place, "--run", "more").words
    assert "fetch tries 1" in curate("explain", "3-3", "-w", place, "--run", "second").words


# --- the block of `curate status` ---


def status(found: FetchStatus) -> Status:
    stages = (
        StageStatus("pool", "acquire.download", "running", 5, 10, fetches=found),
        StageStatus("list", "x", "done"),
    )
    return Status("one", "running", stages=stages)


def shown(found: FetchStatus, width: int = 200) -> list[str]:
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as captured:
        for block in fetches(status(found)):
            console.print(block)
    return captured.get().splitlines()


def test_a_block_fits_100_characters() -> None:
    finished = Fetches()
    for number in range(2000):
        host = f"{'cdn-' * 20}{number % 30}.images.example.org"
        finished.count(Fetch(host, 3, 12345.0, 10**9), ("error", f"http_{500 + number % 40}"), 0.0)
    codes = Counter(finished.codes) + Counter({FETCHED: 2_000_000_000, ("unusable", "opt_out_tdm_reservation"): 9**9})
    rates = tuple((float(n), 123_456.7 * n, 1e9 * n) for n in range(500))
    lines = shown(FetchStatus(codes, 10**15, 1e6, finished, rates))
    assert max(len(line.rstrip()) for line in lines) <= 100
    text = "\n".join(lines)
    assert "61,604,893.3/s now" in text and "2,000.0/s on average" in text and "31 other codes" in text
    assert "…" in text and ".images.example.org" in text and "all opt-outs" in text


def test_a_block_of_the_first_seconds() -> None:
    lines = shown(FetchStatus(Counter({FETCHED: 1}), 100, 0.0, Fetches(), ((0.0, 1.0, 100.0),)))
    text = " ".join(" ".join(lines).split())
    assert "1 URL: 1 done, 0 error, 0 unusable" in text and "code" not in text and "host" not in text


def test_a_line_of_values_over_time() -> None:
    assert sparkline([(0, 0.0), (1, 7.0)], width=2) == "▁█"
    assert sparkline([(float(n), float(n)) for n in range(80)], width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline([(0.0, 4.0), (9.0, 2.0)], width=3) == "██▅", "a part without values repeats the one before"
    assert sparkline([(0.0, 0.0), (1.0, 0.0)], width=3) == "▁▁▁" and sparkline([(0.0, 1.0)]) == ""
