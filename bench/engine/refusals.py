"""How runs take what servers of models do: outcomes of eight rows, requests, dollars, seconds, and the lines that
`curate run` prints, for each of the behaviours in tests/servers/scenarios.py.

    python -m bench.engine.refusals [NAME ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from PIL import Image

from curate.api import Workspace
from tests.servers.scenarios import NAME, PROMPT, ROWS, SCENARIOS, endpoints
from tests.servers.scripted import Endpoint, started


def images(folder: Path) -> None:
    """Images, their captions, and a prompt that has these."""
    (folder / "images").mkdir()
    for number in range(ROWS):
        Image.new("RGB", (64, 64), (30 * number, 100, 90)).save(folder / f"images/{number}.png")
    captions = [json.dumps({"file_name": f"{number}.png", "caption": f"{NAME} {number}"}) for number in range(ROWS)]
    (folder / "images/metadata.jsonl").write_text("\n".join(captions))
    (folder / "prompt.yaml").write_text(yaml.safe_dump(PROMPT))


def outcomes(place: Path) -> str:
    """Outcomes of rows, and reasons of errors, with one text."""
    tables = sorted(place.glob("facts/caption.generate/**/*.parquet"))
    rows = [row for table in tables for row in pq.read_table(table).to_pylist() if "generated_outcome" in row]
    found = Counter(row["_reason"] or row["generated_outcome"] for row in rows)
    texts = {row["generated"] for row in rows} - {None}
    return ", ".join(f"{count} {name}" for name, count in found.items()) + (f" {sorted(texts)[0]!r}" if texts else "")


def ran(server: Endpoint, folder: Path, name: str) -> str:
    scenario, place = SCENARIOS[name], folder / "".join(one if one.isalnum() else "-" for one in name)
    script = server.script(faults=scenario.faults, models=["m"])
    stages = {
        "pool": {"op": "acquire.folder", "path": "images", "namespace": "n"},
        "generate": {"op": "caption.generate", "from": "pool", "endpoints": "endpoints.yaml", "prompt": "prompt.yaml"},
    }
    (folder / "endpoints.yaml").write_text(yaml.safe_dump(endpoints(script, scenario)))
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    command = [Path(sys.executable).with_name("curate"), "run", "recipe.yaml", "-w", place, "--run-id", "r"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    seconds = time.monotonic() - began
    spend, sent = Workspace(str(place)).run("r").status().spend.total, script.stats()["requests"]
    told = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("warning:", "curate:"))]
    rows = outcomes(place) or "no rows"
    head = f"exit {done.returncode}, {rows}; {sent} requests, ${spend.dollars:.4f}, {seconds:.0f} s"
    return "\n      ".join([head, *(line[:220] for line in told)])


def main() -> None:
    with started() as server, tempfile.TemporaryDirectory() as folder:
        images(Path(folder))
        for name in sys.argv[1:] or SCENARIOS:
            print(f"{name}: {ran(server, Path(folder), name)}", flush=True)


if __name__ == "__main__":
    main()
