"""Where WordNet's files come from: found in order, fetched whole or not at all, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from curate.core.errors import InputError
from curate.text.wordnet import database as wordnet
from tests.text.wordnet.wordnets import tiny, write_wordnet  # noqa: F401  (a fixture)

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not here: no packages to build")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without WordNet, without apt, without a network."""
    monkeypatch.delenv("CURATE_WORDNET", raising=False)
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wordnet, "_nltk_paths", lambda: [tmp_path / "nltk_data"])
    monkeypatch.setattr(wordnet, "_INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(wordnet, "_from_nltk", _fails)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def _fails(made: Path, before: str) -> None:
    raise InputError(f"WordNet is not here ({before.split(';')[0]}; nltk.download failed too); {wordnet.REMEDY}")


def fake_debian(place: Path, monkeypatch: pytest.MonkeyPatch, files: Path) -> Path:
    """An apt-get that has a package of the files; its log."""
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


def test_nowhere_to_be_had_is_one_line_with_the_remedy(nowhere: Path) -> None:
    (line,) = wordnet.problems()
    assert "\n" not in line
    assert "apt-get is not here" in line
    assert "CURATE_WORDNET" in line
    assert "nltk.downloader wordnet" in line
    assert not (nowhere / "cache/wordnet").exists()


def test_order_of_places(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wordnet(nowhere / "installed")
    assert wordnet.place() == nowhere / "installed"
    cached = write_wordnet(nowhere / "cache/wordnet/corpora/wordnet")
    assert wordnet.place() == cached
    zipped = nowhere / "nltk_data/corpora/wordnet.zip"
    zipped.parent.mkdir(parents=True)
    with zipfile.ZipFile(zipped, "w") as file:
        for path in cached.iterdir():
            file.write(path, f"wordnet/{path.name}")
    identity = wordnet.identity()
    assert wordnet.place() == zipped
    assert wordnet.identity() == identity
    own = write_wordnet(nowhere / "own")
    monkeypatch.setenv("CURATE_WORDNET", str(own))
    assert wordnet.place() == own
    (own / "noun.exc").unlink()
    with pytest.raises(InputError, match=r"^CURATE_WORDNET: '.*/own' has no noun.exc; name a folder"):
        wordnet.place()


@needs_dpkg
def test_debians_package_is_fetched_once_for_all(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = fake_debian(nowhere, monkeypatch, write_wordnet(nowhere / "files"))
    half = nowhere / "cache/wordnet/corpora/wordnet"
    half.mkdir(parents=True)
    (half / "data.noun").write_text("half of it")
    (half.with_name("brown")).write_text("another corpus")
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: wordnet.place(), range(4)))
    assert places == {half}
    assert len(log.read_text().splitlines()) == 1
    assert (half / "lexnames").read_text().splitlines()[5] == "05\tnoun.animal\t1"
    assert (half / "index.sense").read_bytes() == b""
    assert half.with_name("brown").read_text() == "another corpus"
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("wordnet: not on this machine, fetching it into ")
    assert sorted(path.name for path in (nowhere / "cache").iterdir()) == ["wordnet", "wordnet.lock"]


@needs_dpkg
def test_a_package_that_is_no_wordnet_leaves_nothing(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "files").mkdir()
    (nowhere / "files/README").touch()
    fake_debian(nowhere, monkeypatch, nowhere / "files")
    assert "not as expected" in wordnet.problems()[0]
    assert [path.name for path in (nowhere / "cache").iterdir()] == ["wordnet.lock"]


@pytest.mark.parametrize("name", wordnet.FILES)
def test_every_file_counts_and_is_missed(tiny: Path, name: str) -> None:  # noqa: F811
    before = wordnet.identity()
    text = (tiny / name).read_text()
    (tiny / name).write_text(text + "another line\n")
    assert wordnet.identity() != before
    (tiny / name).unlink()
    [line] = wordnet.problems()
    assert f"has no {name};" in line


def test_identity_is_of_what_is_said(tiny: Path) -> None:  # noqa: F811
    before = wordnet.identity()
    file = tiny / "data.noun"
    text = file.read_text()
    file.write_text(text.replace("Princeton", "Another").replace("  \n", "\n"), newline="\r\n")
    assert wordnet.identity() == before
    file.write_text(text.replace("what it is", "what it was", 1))
    assert wordnet.identity() != before
