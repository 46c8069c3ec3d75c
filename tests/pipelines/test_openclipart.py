"""Builds the corpus from two tiny packages made here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from curate.core.errors import InputError
from pipelines.openclipart import openclipart

SVG = """<?xml version="1.0"?>
<svg xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><metadata><rdf:RDF><cc:Work>
<dc:title>{title}</dc:title><dc:description>{description}</dc:description>
<dc:subject><rdf:Bag><rdf:li>night</rdf:li><rdf:li> </rdf:li><rdf:li>étoile</rdf:li></rdf:Bag></dc:subject>
<dc:creator><cc:Agent><dc:title>another title</dc:title></cc:Agent></dc:creator>
</cc:Work></rdf:RDF></metadata></svg>"""

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb to build packages")


def build_deb(folder: Path, name: str, files: Path) -> None:
    """A package that installs `files` under /usr/share/openclipart."""
    root = folder / name
    shutil.copytree(files, root / "usr/share/openclipart", symlinks=True)
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a test <a@b.invalid>\nDescription: images\n"
    )
    subprocess.run(["dpkg-deb", "--build", root, folder / f"{name}.deb"], check=True, capture_output=True)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    png, svg = tmp_path / "files-png/png", tmp_path / "files-svg/svg"
    for folder in (png, svg):
        (folder / "shapes/stars").mkdir(parents=True)
        (folder / "science").mkdir()
    for name in ("shapes/stars/a", "shapes/stars/broken", "science/silent", "science/alone"):
        Image.new("RGB", (3, 2), "red").save(png / f"{name}.png")
    (png / "science/again.png").symlink_to("../shapes/stars/a.png")
    (svg / "science/again.svg").symlink_to("../shapes/stars/a.svg")
    (svg / "shapes/stars/a.svg").write_text(
        SVG.format(title=" A star &amp; more", description="see\n http://x.invalid ")
    )
    (svg / "shapes/stars/broken.svg").write_text("<svg><metadata></svg>")
    (svg / "science/silent.svg").write_text("<svg/>")
    debs = tmp_path / "debs"
    debs.mkdir()
    build_deb(debs, "openclipart-png", png.parent)
    build_deb(debs, "openclipart-svg", svg.parent)
    return debs


def fake_apt(folder: Path, debs: Path, monkeypatch: pytest.MonkeyPatch, *, knows: bool) -> Path:
    """Put an apt-get that copies `debs` first on PATH. Unless `knows`, it finds no package before `apt-get update`."""
    folder.mkdir(exist_ok=True)
    log, updated = folder / "log", folder / "updated"
    script = f"""#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *update*) touch {updated} ;;
  *download*) [ {int(knows)} = 1 ] || [ -e {updated} ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}
              cp {debs}/*.deb . ;;
esac
"""
    (folder / "apt-get").write_text(script)
    (folder / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def rows_of(images: Path) -> dict[str, dict[str, object]]:
    rows = [json.loads(line) for line in (images / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row.pop("file_name"): row for row in rows}


@needs_dpkg
def test_two_packages_become_a_folder_of_images_with_metadata(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_apt(tmp_path / "bin", packages, monkeypatch, knows=True)
    images = openclipart(tmp_path / "cache")
    rows = rows_of(images)
    assert sorted(rows) == sorted(p.relative_to(images).as_posix() for p in images.rglob("*.png"))
    star = {
        "caption": " A star & more\nsee\n http://x.invalid ",
        "title": " A star & more",
        "description": "see\n http://x.invalid ",
        "keywords": ["night", "étoile"],
    }
    assert rows["shapes/stars/a.png"] == {**star, "category": "shapes/stars"}
    assert rows["science/again.png"] == {**star, "category": "science"}
    assert {rows[f"{name}.png"]["caption"] for name in ("shapes/stars/broken", "science/silent", "science/alone")} == {
        ""
    }
    said = capsys.readouterr().out
    assert "5 images in 2 categories" in said
    assert "1 missing, 1 unreadable (mismatched tag), 2 with a title, 1 without a title" in said


@needs_dpkg
def test_images_are_files_and_nothing_else_is_left(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_apt(tmp_path / "bin", packages, monkeypatch, knows=True)
    images = openclipart(tmp_path / "cache")
    assert not any(path.is_symlink() for path in images.rglob("*"))
    assert (images / "science/again.png").samefile(images / "shapes/stars/a.png")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == ["images"]


@needs_dpkg
def test_unknown_packages_are_looked_up_in_separate_lists(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_apt(tmp_path / "bin", packages, monkeypatch, knows=False)
    openclipart(tmp_path / "cache")
    first, update, download = log.read_text().splitlines()
    assert "Dir::State::Lists" not in first
    for line in (update, download):
        assert f"Dir::State::Lists={tmp_path / 'cache'}" in line


@needs_dpkg
def test_second_call_fetches_nothing_and_a_killed_build_is_redone(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_apt(tmp_path / "bin", packages, monkeypatch, knows=True)
    (tmp_path / "cache/building/images").mkdir(parents=True)
    (tmp_path / "cache/building/images/half").touch()
    images = openclipart(tmp_path / "cache")
    assert not (images / "half").exists()
    assert openclipart(tmp_path / "cache") == images
    assert len(log.read_text().splitlines()) == 1


def test_without_apt_the_error_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"^apt-get is not installed.*make quickstart IMAGES=dir$"):
        openclipart(tmp_path / "cache")


def test_errors_of_apt_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        (tmp_path / tool).write_text("#!/bin/sh\necho 'W: something' >&2; echo 'E: no space left' >&2; exit 100\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InputError, match=r"apt-get failed: E: no space left; .*IMAGES=dir"):
        openclipart(tmp_path / "cache")
    assert not (tmp_path / "cache/images").exists()
