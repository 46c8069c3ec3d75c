"""Where WordNet's files come from: a named folder or the cache, which one process fills atomically."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from curate.core.errors import InputError
from curate.kernels.wordnet import database
from tests.text.wordnet.wordnets import tiny, write_wordnet  # noqa: F401  (a fixture)

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not here: no packages to build")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without WordNet and without apt."""
    monkeypatch.delenv("CURATE_WORDNET", raising=False)
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def fake_debian(place: Path, monkeypatch: pytest.MonkeyPatch, files: Path) -> Path:
    """An apt-get with a package of the files; returns its log."""
    root = place / "package"
    shutil.copytree(files, root / "usr/share/wordnet")
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        "Package: wordnet-base\nVersion: 1\nArchitecture: all\nMaintainer: a test <a@b.invalid>\nDescription: words\n"
    )
    monkeypatch.setenv("PATH", os.environ["PATH"] if shutil.which("dpkg-deb") else os.defpath)
    subprocess.run(["dpkg-deb", "--build", root, place / "wordnet-base.deb"], check=True, capture_output=True)
    script = f'#!/bin/sh\necho "$@" >> {place}/log\ncase "$*" in *download*) cp {place}/wordnet-base.deb . ;; esac\n'
    (place / "bin/apt-get").write_text(script)
    (place / "bin/apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    return place / "log"


def test_a_machine_that_cannot_fetch_it_gets_one_line_with_the_remedy(nowhere: Path) -> None:
    (line,) = database.problems()
    assert "\n" not in line
    assert "apt-get is not installed" in line
    assert "set CURATE_WORDNET to the folder of its dict files" in line
    assert not (nowhere / "cache/wordnet/dict").exists()


def test_a_named_folder_goes_before_the_cache(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = write_wordnet(nowhere / "cache/wordnet/dict")
    assert database.place() == cached
    identity = database.identity()
    own = write_wordnet(nowhere / "own")
    monkeypatch.setenv("CURATE_WORDNET", str(own))
    assert database.place() == own
    assert database.identity() == identity
    (own / "noun.exc").unlink()
    with pytest.raises(InputError, match=r"^CURATE_WORDNET: '.*/own' has no noun.exc; name a folder"):
        database.place()


@needs_dpkg
def test_debians_package_is_fetched_once(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = fake_debian(nowhere, monkeypatch, write_wordnet(nowhere / "files"))
    half = nowhere / "cache/wordnet/dict"
    half.mkdir(parents=True)
    (half / "data.noun").write_text("half of it")
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: database.place(), range(4)))
    assert places == {half}
    assert len(log.read_text().splitlines()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("wordnet: not found, downloading it to ")
    assert sorted(path.name for path in (nowhere / "cache/wordnet").iterdir()) == [".lock", "dict"]


@needs_dpkg
def test_a_package_without_the_files_leaves_nothing(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "files").mkdir()
    (nowhere / "files/README").touch()
    fake_debian(nowhere, monkeypatch, nowhere / "files")
    assert "wordnet-base has no index.noun" in database.problems()[0]
    assert [path.name for path in (nowhere / "cache/wordnet").iterdir()] == [".lock"]


@pytest.mark.parametrize("name", database.FILES)
def test_every_file_counts_and_is_required(tiny: Path, name: str) -> None:  # noqa: F811
    before = database.identity()
    text = (tiny / name).read_text()
    (tiny / name).write_text(text + "another line\n")
    assert database.identity() != before
    (tiny / name).unlink()
    [line] = database.problems()
    assert f"has no {name};" in line


def test_identity_depends_on_content_only(tiny: Path) -> None:  # noqa: F811
    before = database.identity()
    file = tiny / "data.noun"
    text = file.read_text()
    file.write_text(text.replace("Princeton", "Another").replace("  \n", "\n"), newline="\r\n")
    assert database.identity() == before
    file.write_text(text.replace("what it is", "what it was", 1))
    assert database.identity() != before
