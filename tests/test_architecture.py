"""Rules that hold for the repository as a whole: who imports whom, and what a tracked file may not contain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.tools.contracts import MAY_KNOW, class_tests
from tests.conftest import ROOT

PACKAGES = ("curate", "distill", "pipelines")
MAX_FILE_BYTES = 15 * 2**20
CODE = {".py", ".sh", ".toml", ".yaml", ".yml", ".css", ".js", ".html", ".j2", ""}

REGISTRY = re.compile(
    r"\b(?:[\w-]+\.)*(?:pypi\.org|pythonhosted\.org|pytorch\.org/whl|nvidia\.com/compute|anaconda\.(?:org|com)"
    r"|(?:docker|ghcr|quay|gcr|nvcr)\.io|amazonaws\.com/ecr)"
)
MACHINE = re.compile(r"(?<![\w.~}>])/(?:root|work|home/\w+|Users/\w+|tmp/\w+)/")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files of the commit and the index that are still there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def find(files: list[Path], pattern: re.Pattern[str]) -> list[str]:
    """`file:line: match`, over the files that are text."""
    found = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {hit.group()}" for hit in pattern.finditer(line)]
    return found


PLANTED = {
    "core": {"curate/core/planted.py": "import torch"},
    "layers": {
        "curate/core/planted.py": "import curate.codec",
        "curate/text/planted.py": "import curate.image",
        "curate/engine/planted.py": "import curate.cluster",
        "curate/api/planted.py": "import curate.cli",
        "curate/planted.py": "",
    },
    "engine": {"curate/engine/planted.py": "import curate.encoders"},
    "media": {"curate/engine/planted.py": "from curate.codec.images import decode"},
    "ray": {"curate/cluster/planted.py": "import ray"},
    "cli": {"curate/cli/planted.py": "import curate.text", "curate/cli/sown.py": "import curate.core.store.storage"},
    "curate": {"curate/pack/planted.py": "import distill"},
    "distill": {"distill/planted.py": "import curate.engine"},
}
"""Contract -> files that break it, each by one line."""


def test_planted_imports_are_caught(tmp_path: Path) -> None:
    """`make lint` checks the contracts of the repository itself."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for files in PLANTED.values():
        for file, line in files.items():
            with (tmp_path / file).open("a") as opened:
                opened.write(line + "\n")
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo"]
    wide = os.environ | {"COLUMNS": "250"}  # a heading is one line
    done = subprocess.run(command, cwd=tmp_path, env=wide, capture_output=True, text=True)
    assert done.returncode != 0
    _, *parts = re.split(r"^(.+)\n-+$", done.stdout.partition("\nBroken contracts\n")[2], flags=re.MULTILINE)
    said = dict(zip(parts[::2], parts[1::2], strict=True))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = {contract["id"]: contract["name"] for contract in contracts}
    for contract, files in PLANTED.items():
        assert names[contract] in said, f"{contract} is not broken: {done.stdout}"
        for file, line in files.items():
            module = file.removesuffix(".py").replace("/", ".")
            what = " -> ".join([module, *re.findall(r"(?:import|from) (\S+)", line)[:1]])
            assert what in said[names[contract]], f"{contract} does not name {what}: {done.stdout}"


def test_steps_and_recipes_alone_test_the_contract_of_a_stage(tmp_path: Path) -> None:
    assert [place for place in class_tests() if not place[0].startswith(MAY_KNOW)] == []
    planted = tmp_path / "curate" / "engine" / "planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def f(x):\n    return isinstance(x, (int, contracts.Map)) or issubclass(type(x), Derive)\n")
    assert list(class_tests(tmp_path)) == [("curate/engine/planted.py", 2)] * 2


def test_no_file_names_a_registry(tracked: list[Path]) -> None:
    assert find(tracked, REGISTRY) == []


def test_no_file_names_a_path_of_one_machine(tracked: list[Path]) -> None:
    assert find(tracked, MACHINE) == []


def test_nothing_is_left_for_later(tracked: list[Path]) -> None:
    assert find([path for path in tracked if path.suffix in CODE], UNFINISHED) == []


def test_no_file_is_large(tracked: list[Path]) -> None:
    large = [path.name for path in tracked if path.stat().st_size > MAX_FILE_BYTES]
    assert large == []


def test_lock_pins_every_package_by_version_and_hash() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())
    assert len(entries) > 100
    for entry in entries:
        assert re.fullmatch(
            r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+( ; .+)? \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+", entry
        ), entry
