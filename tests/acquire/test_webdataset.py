from __future__ import annotations

import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import webdataset

from curate.acquire.webdataset import REASONS, AcquireWebDataset
from curate.core.contracts import Incoming, Source
from curate.core.errors import InputError
from tests.acquire.helpers import by_id, encoded_image, read_all, rejects, write, write_tar


def tars(path: Path | str | list[str], **more: object) -> AcquireWebDataset:
    return AcquireWebDataset(namespace="test", path=path if isinstance(path, list) else str(path), **more)


def member(source: Source, index: int = 0) -> list[bytes]:
    """Bytes of a portion's images, read from the original tar by offset."""
    portion = source.plan()[index]
    data = Path(source.tar(portion) or "").read_bytes()
    return [data[s.offset : s.offset + s.size] for s in source.read(portion) if s.offset is not None and s.size]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two shards as the webdataset library writes them."""
    for shard in range(2):
        with open(tmp_path / f"{shard:05d}.tar", "wb") as file, webdataset.TarWriter(file) as sink:
            for i in range(3):
                number = 3 * shard + i
                about = {"caption": f"caption {number}", "url": f"http://x/{number}.png", "n": number}
                sink.write({"__key__": f"s{number}", "png": encoded_image(number), "json": about, "cls": number % 2})
    return tmp_path


def test_tars_of_the_webdataset_library_are_indexed_in_place(written: Path) -> None:
    source = tars(written)
    samples = read_all(source)
    assert [s.source_id for s in samples] == [s.name for s in samples] == [f"s{i}" for i in range(6)]
    assert member(source, 0) + member(source, 1) == [encoded_image(i) for i in range(6)]
    assert [s.caption for s in samples] == [f"caption {i}" for i in range(6)]
    assert samples[4].url == "http://x/4.png"
    assert samples[4].meta == {"n": 4, "cls": 0}
    assert all((s.data, s.ext, s.reject) == (None, "png", None) for s in samples)
    assert [source.tar(portion) for portion in source.plan()] == [str(written / f"0000{i}.tar") for i in range(2)]


@pytest.mark.parametrize("pattern", ["", "/*.tar", "/{00000..00001}.tar", "/0000?.tar", "/{00001,00000}.tar"])
def test_folders_globs_and_braces_name_the_same_tars(written: Path, pattern: str) -> None:
    assert tars(f"{written}{pattern}").plan() == tars(written).plan()


def test_a_list_of_folders_and_files_is_below_their_common_root(written: Path) -> None:
    write_tar(written / "more.tar", {"m.png": encoded_image(9)})
    (written / "deep/er").mkdir(parents=True)
    shutil.move(written / "00001.tar", written / "deep/er/1.tar")
    source = tars([str(written / "deep"), f"{written}/00000.tar", f"{written}/more.tar"])
    assert [portion.content["tar"] for portion in source.plan()] == ["00000.tar", "deep/er/1.tar", "more.tar"]
    assert len(read_all(source)) == 7


def test_moved_tars_have_the_same_content(written: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = tars(written).plan()
    moved = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.copytree(written, moved, copy_function=shutil.copy2)
    after = tars(moved).plan()
    assert before == after
    assert tars(written).parameters() == tars("elsewhere").parameters()
    assert str(written) not in json.dumps(before[0].content)


def test_source_ids_may_include_the_shard(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, {"0.png": encoded_image(0)})
    assert [s.source_id for s in read_all(tars(tmp_path))] == ["0", "0"]
    assert [s.source_id for s in read_all(tars(tmp_path, key_from="shard_and_name"))] == ["a/0", "b/0"]
    assert [s.name for s in read_all(tars(tmp_path, key_from="shard_and_name"))] == ["0", "0"]


def test_captions_come_from_txt_then_from_json(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {
        "1.png": encoded_image(1), "1.txt": "from txt", "1.json": '{"caption": "from json", "n": 1}',
        "2.json": '{"title": "from json"}', "2.png": encoded_image(2),
        "3.png": encoded_image(3),
        "4.png": encoded_image(4), "4.json": '["a", "b"]',
    })  # fmt: skip
    samples = by_id(tars(tmp_path))
    assert [samples[name].caption for name in "1234"] == ["from txt", "from json", None, None]
    assert samples["1"].meta == {"n": 1}
    assert samples["4"].meta == {"json": ["a", "b"]}
    assert by_id(tars(tmp_path, caption_field="n"))["1"].caption == "from txt"


def test_row_counts_come_from_sizes_json(written: Path) -> None:
    assert [portion.rows for portion in tars(written).plan()] == [None, None]
    write(written, {"sizes.json": '{"00000.tar": 3, "other.tar": 9}'})
    assert [portion.rows for portion in tars(written).plan()] == [3, None]
    write(written, {"sizes.json": "{"})
    assert [portion.rows for portion in tars(written).plan()] == [None, None]


# --- bad input ---


def test_bad_samples_are_rejects_and_others_pass(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [
        ("1.png", encoded_image(1)), ("1.txt", "gräulich".encode("latin-1")),
        ("2.txt", "no image"),
        ("../3.png", encoded_image(3)),
        ("/4.png", encoded_image(4)),
        ("5.png", encoded_image(5)), ("5.json", "{"),
        ("6.png", b""),
        ("7.png", encoded_image(7)),
    ])  # fmt: skip
    source = tars(tmp_path)
    assert rejects(source) == {
        "1": "caption_not_utf8", "2": "no_image", "../3": "unsafe_path", "/4": "unsafe_path", "5": "bad_metadata",
    }  # fmt: skip
    samples = by_id(source)
    assert samples["2"].caption == "no image"
    assert (samples["6"].size, samples["6"].reject) == (0, None)
    assert all(samples[name].offset is None for name in ("2", "../3", "/4"))
    assert samples["1"].offset is not None


def test_a_link_in_a_tar_is_a_reject(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        good = tarfile.TarInfo("2.png")
        good.size = len(encoded_image(2))
        tar.addfile(good, io.BytesIO(encoded_image(2)))
    assert rejects(tars(tmp_path)) == {"1": "not_a_file"}


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_truncated_tar_gives_its_complete_samples(tmp_path: Path, keep: float) -> None:
    whole = write_tar(
        tmp_path / "a.tar", {f"{i:02d}.{ext}": encoded_image(i) for i in range(20) for ext in ("png", "txt.png")}
    )
    samples = read_all(tars(tmp_path))
    data = whole.read_bytes()
    whole.write_bytes(data[: int(len(data) * keep)])
    cut = read_all(tars(tmp_path))
    good = [sample for sample in cut if sample.reject is None]
    assert good == samples[: len(good)]
    assert len(good) >= 20 * keep - 3
    assert [sample.reject for sample in cut[len(good) :]] == ["truncated_tar"]
    assert cut[-1].offset is None


def test_a_tar_without_end_mark_has_a_row_that_reports_it(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": encoded_image(1)})
    path.write_bytes(path.read_bytes()[:-1024])
    samples = by_id(tars(tmp_path))
    assert samples["1"].reject is None
    assert samples["a.tar"] == Incoming("a.tar", reject="truncated_tar", meta={"detail": "no end mark after '1.png'"})


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100])
def test_a_file_that_is_not_a_tar_is_one_reject(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {"a.tar": content})
    write_tar(tmp_path / "b.tar", {"1.png": encoded_image(1)})
    assert set(rejects(tars(tmp_path))) == {"a.tar"}


def test_an_empty_tar_is_an_empty_portion(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {})
    assert read_all(tars(tmp_path)) == []


def test_a_tar_that_changed_since_the_plan_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": encoded_image(1)})
    source = tars(tmp_path)
    (portion,) = source.plan()
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(InputError, match=r"bytes, .* when the run began"):
        list(source.read(portion))
    path.unlink()
    with pytest.raises(InputError, match="was deleted during the run"):
        list(source.read(portion))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "has no .tar file"),
        ("/nowhere", "nowhere' does not exist"),
        ("/1.tar", "1.tar' does not exist"),
        ("/*.tar", "matches no .tar file"),
        ("/{00..02}.tar", "00.tar' of '.*/{00..02}.tar' does not exist"),
    ],
)
def test_nothing_to_import_is_a_one_line_error(tmp_path: Path, path: str, message: str) -> None:
    write(tmp_path, {"notes.md": "hello"})
    with pytest.raises(InputError, match=message) as caught:
        tars(f"{tmp_path}{path}").plan()
    assert "\n" not in str(caught.value)


class NoListing(SimpleHTTPRequestHandler):
    """Serves files, but no folders."""

    def list_directory(self, path: Any) -> None:
        self.send_error(403)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def unlisted(tmp_path: Path) -> Iterator[str]:
    """URL of a folder of two tars that cannot be listed."""
    for name in ("000.tar", "001.tar"):
        write_tar(tmp_path / name, {"1.png": encoded_image(1)})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(NoListing, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("path", "count"), [("/000.tar", 1), ("/{000..001}.tar", 2)])
def test_tars_of_a_folder_that_cannot_be_listed(unlisted: str, path: str, count: int) -> None:
    assert len(tars(f"{unlisted}{path}").plan()) == count
    with pytest.raises(InputError, match=r"cannot read 'http://.*/\*\.parquet' \(403"):
        tars(f"{unlisted}{path}", layout="img2dataset").plan()
    with pytest.raises(InputError, match=r"cannot read 'http://.*/\*\.tar' \(403"):
        tars(f"{unlisted}/*.tar").plan()


def test_every_reason_and_parameter_is_described() -> None:
    assert all(REASONS.values())
    assert all(field.description for field in AcquireWebDataset.model_fields.values())
