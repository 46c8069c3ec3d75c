"""Export and import of stored answers: found by input in any shard of the other workspace, each once, or one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.api import Workspace
from curate.cli import main
from curate.core.errors import CorruptError, CurateError, InputError
from curate.core.nouns import facts
from curate.core.store.storage import open_storage
from curate.engine.passes.answers import index, merge
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.lines import FOLDER as INDEX
from curate.engine.record import answers, gc
from curate.engine.record.usage import usage
from curate.engine.run import Result, run
from tests.engine import toys, workspaces
from tests.engine.asks import Say, answer_rows, go, segments
from tests.servers.scripted import Endpoint

ROOT = Path(__file__).parents[3]
ROWS = 40


@pytest.fixture
def asked(workspace: Path, endpoint: Endpoint) -> Path:
    """A workspace with answers: 36 texts, one unusable row, and three rows in error."""
    script = endpoint.script(faults=[{"text": f"picture {n}", "status": 500} for n in (7, 8, 9)])
    go(workspace, Say(url=script.url, refused=(3,), attempts=1), rows=ROWS, shard_rows=16)
    index.forget_recent()
    return workspace


@pytest.fixture
def export(asked: Path, tmp_path: Path) -> Path:
    Workspace(str(asked)).export_answers(str(tmp_path / "export"))
    return tmp_path / "export"


def use(workspace: Path, endpoint: Endpoint, **source: Any) -> tuple[int, Result]:
    """A run in a workspace; (requests, result)."""
    index.forget_recent()
    script = endpoint.script()
    result = go(workspace, Say(url=script.url, refused=(3,)), **source)
    return script.stats()["requests"], result


def part_of(export: Path) -> Path:
    [part] = export.glob("*/*/*.parquet")
    return part


def test_an_export_has_each_final_answer_once(asked: Path, export: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    """Pools with the same rows have copies of an answer."""
    table = pq.read_table(part_of(export))
    assert table.column_names == ["_input", "_status", "_reason", "said", "tokens"]
    rows = table.to_pylist()
    expected = {f"said picture {n}" for n in range(ROWS) if n not in (3, 7, 8, 9)}
    assert {row["said"] for row in rows if row["said"]} == expected and len(rows) == 37
    assert Counter((row["_status"], row["_reason"]) for row in rows) == {(0, None): 36, (1, "not_asked"): 1}
    [stage] = json.loads((export / "manifest.json").read_text())["stages"]
    assert (stage["op"], stage["parts"][0]["rows"], stage["version"]) == ("toy.say", 37, Say.version)
    assert stage["parameters"]["refused"] == [3] and "url" not in stage["parameters"]
    use(asked, endpoint, rows=ROWS, shard_rows=5, namespace="other")
    [again] = Workspace(str(asked)).export_answers(str(tmp_path / "again"))
    assert again.rows == ROWS and len(set(pq.read_table(part_of(tmp_path / "again"))["_input"].to_pylist())) == ROWS


def test_imported_answers_are_found_by_input_in_any_shard(export: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    other = tmp_path / "other"
    [found] = Workspace(str(other)).import_answers(str(export))
    assert (found.op, found.rows, found.skipped) == ("toy.say", 37, 0)
    requests, result = use(other, endpoint, rows=ROWS, shard_rows=7, namespace="elsewhere")
    assert requests == 3 and result.ledger["stage_1"].after == ROWS - 1
    assert (result.counts["stage_1"].copied, result.ledger["stage_1"].unusable) == (37, Counter(not_asked=1))
    texts = {row["said"] for row in answer_rows(other) if row["said"]}
    assert texts == {f"said picture {n}" for n in range(ROWS) if n != 3}


def test_an_import_twice_is_an_import_once(export: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    other = Workspace(str(tmp_path / "other"))
    other.import_answers(str(export))
    before = workspaces.times(other.url)
    [found] = other.import_answers(str(export))
    assert (found.rows, found.skipped) == (0, 37) and workspaces.times(other.url) == before
    assert use(Path(other.url), endpoint, rows=ROWS)[0] == 3


def test_an_export_of_an_import_is_complete(asked: Path, export: Path, tmp_path: Path) -> None:
    """Over several files; with one op or all."""
    other = Workspace(str(tmp_path / "other"))
    other.import_answers(str(export))
    [found] = other.export_answers(str(tmp_path / "again"), "toy.say")
    assert found.rows == 37
    assert part_of(tmp_path / "again").read_bytes() == part_of(export).read_bytes()


@pytest.mark.parametrize("limit", ["FILE_ROWS", "FILE_BYTES"])
def test_answers_are_exported_in_files_of_limited_size(
    asked: Path, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(answers, limit, 10 if limit == "FILE_ROWS" else 1)
    [found] = Workspace(str(asked)).export_answers(str(tmp_path / "export"))
    assert len(found.parts) > 2 and max(part.rows for part in found.parts) <= 16 and found.rows == 37
    Workspace(str(tmp_path / "other")).import_answers(str(tmp_path / "export"))
    assert use(tmp_path / "other", endpoint, rows=ROWS)[0] == 3


def test_answers_in_logs_of_dead_workers_are_exported(
    asked: Path, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run has put them into tables yet."""
    monkeypatch.setattr(answer_log.Log, "end", lambda *_: None)
    monkeypatch.setattr(answer_log, "fold", lambda *_, **__: {})
    script = endpoint.script()
    stage = Say(url=script.url, refused=(3,), flush_seconds=0.0)
    go(asked, stage, rows=ROWS + 20, shard_rows=ROWS + 20, namespace="more")
    monkeypatch.undo()
    assert segments(asked)
    for path in asked.glob("facts/toy.say/*/*/*/0*.parquet"):
        if pq.read_metadata(path).num_rows == ROWS + 20:
            path.unlink()
    [found] = Workspace(str(asked)).export_answers(str(tmp_path / "export"))
    inputs = pa.concat_tables([pq.read_table(tmp_path / "export" / part.file) for part in found.parts])["_input"]
    assert len(inputs.unique()) == ROWS + 20
    Workspace(str(tmp_path / "other")).import_answers(str(tmp_path / "export"))
    assert use(tmp_path / "other", endpoint, rows=ROWS + 20)[0] == 0


def test_gc_and_du_treat_imported_answers_as_answers(export: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    """Kept without a run, and after runs that do not use them; removed with --costly only, and then asked again."""
    other = Workspace(str(tmp_path / "other"))
    other.import_answers(str(export))
    storage = open_storage(other.url)
    assert gc.unreachable(storage, keep=0) == ({}, [])
    [line] = [line for line in usage(storage) if line.noun == "facts"]
    assert (line.name, line.stages, line.garbage) == ("toy.say", (), 0)
    assert (line.files, line.bytes) == (2, sum(storage.list("facts").values()))
    go(tmp_path / "other", Say(url=endpoint.script().url, modulo=2), rows=4)
    assert not [path for path in other.gc(keep=0, delete=True)[0] if f"/{index.IMPORTED}/" in path]
    assert use(tmp_path / "other", endpoint, rows=ROWS)[0] == 3
    storage.remove("runs")
    garbage, _ = other.gc(costly=True, delete=True)
    assert [path for path in garbage if f"/{index.IMPORTED}/" in path]
    assert use(tmp_path / "other", endpoint, rows=ROWS)[0] == ROWS - 1


def test_imported_answers_survive_merges_of_the_index(
    export: Path, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Workspace(str(tmp_path / "other"))
    other.import_answers(str(export))
    storage = open_storage(other.url)
    monkeypatch.setattr(merge, "LEAST_FILES", 1)
    [folder] = [path.parent for path in Path(other.url).glob(f"facts/*/*/{INDEX}")]
    where = f"{folder.relative_to(other.url)}/{INDEX}"
    merge.merge(storage, where, lambda function, tasks: [function(task) for task in tasks])
    assert not [name for name in storage.list(where) if "/" not in name]
    assert use(tmp_path / "other", endpoint, rows=ROWS)[0] == 3


def test_an_export_while_a_run_merges_the_index(asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that it has listed are gone when it opens them."""
    storage = open_storage(str(asked))
    monkeypatch.setattr(merge, "LEAST_FILES", 1)
    [folder] = asked.glob(f"facts/*/*/{INDEX}")
    searched, merged = answers.searched, list[bool]()

    def then_merged(files: Any) -> tuple[str, ...]:
        listed = searched(files)
        where = str(folder.relative_to(asked))
        merge.merge(storage, where, lambda function, tasks: merged.extend(map(function, tasks)) or merged)
        return listed

    monkeypatch.setattr(answers, "searched", then_merged)
    [found] = Workspace(str(asked)).export_answers(str(tmp_path / "export"))
    assert merged == [True] and found.rows == ROWS - 3


# --- errors -----------------------------------------------------------------------------------------------------------


def refused(export: Path, tmp_path: Path) -> str:
    """Message of an import that fails; the workspace then has no answers."""
    other = Workspace(str(tmp_path / "other"))
    with pytest.raises(CurateError) as raised:
        other.import_answers(str(export))
    assert isinstance(raised.value, (InputError, CorruptError)) and "\n" not in str(raised.value)
    assert not open_storage(other.url).list("facts")
    return str(raised.value)


def test_a_folder_without_an_export(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no manifest.json; expected a folder that `curate answers export` wrote" in refused(
        tmp_path / "empty", tmp_path
    )
    (tmp_path / "empty" / "manifest.json").write_text('{"noun": "mask"}')
    assert "describes something else" in refused(tmp_path / "empty", tmp_path)
    (tmp_path / "empty" / "manifest.json").write_text("{")
    assert "not JSON" in refused(tmp_path / "empty", tmp_path)


def damage(export: Path, **changes: Any) -> None:
    """Change entries of the manifest: of the export, its stage or its only file."""
    manifest = json.loads((export / "manifest.json").read_text())
    for name, value in changes.items():
        places = [manifest, *manifest["stages"], *(part for stage in manifest["stages"] for part in stage["parts"])]
        place = next(place for place in places if name in place)
        place[name] = value
    (export / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version": 2}, "version 2 of the format, this one reads 1"),
        ({"op": "../../pins"}, "'../../pins' is not a name"),
        ({"stage": "x"}, "'x' is not a name"),
        ({"stages": [{"op": "toy.say"}]}, "damaged (KeyError"),
        ({"stages": [{"parts": [{}]}]}, "damaged (TypeError"),
        ({"rows": 1}, "not a file of answers (missing: rows)"),
        ({"file": "toy.say"}, "cannot be read"),
        ({"file": "none"}, "missing; copy the folder again"),
        ({"digest": "0" * 32}, f"expected {'0' * 32}"),
    ],
)
def test_a_damaged_manifest(export: Path, tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    damage(export, **changes)
    assert expected in refused(export, tmp_path)


def test_a_damaged_file(export: Path, tmp_path: Path) -> None:
    part = part_of(export)
    data = part.read_bytes()
    part.write_bytes(data[:-9] + b"x" + data[-8:])
    message = refused(export, tmp_path)
    assert str(part) in message and "damaged: its digest is" in message and "export the answers again" in message
    part.unlink()
    assert "missing" in refused(export, tmp_path)


@pytest.mark.parametrize("column", ["_input", "_status"])
def test_a_file_without_answers(export: Path, tmp_path: Path, column: str) -> None:
    """Another table, which the manifest names."""
    table = pq.read_table(part_of(export))
    place = table.schema.get_field_index(column)
    other = table.set_column(place, column, pa.array([facts.ERROR] * table.num_rows))
    damage(
        export, digest=answers._write(open_storage(str(export)), "other.parquet", other).digest, file="other.parquet"
    )
    assert ("not a file of answers" if column == "_input" else "has rows without an answer") in refused(
        export, tmp_path
    )


def test_an_export_overwrites_nothing(asked: Path, export: Path) -> None:
    before = workspaces.times(export)
    with pytest.raises(InputError, match=r"has a manifest.json already; choose an empty folder"):
        Workspace(str(asked)).export_answers(str(export))
    assert workspaces.times(export) == before


def test_an_export_of_nothing_names_what_there_is(asked: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no answers of toy.none; ops with answers: toy.say$"):
        Workspace(str(asked)).export_answers(str(tmp_path / "export"), "toy.none")
    run(toys.chain(toys.Brightness(), rows=4), str(tmp_path / "cheap"))
    with pytest.raises(InputError, match="no stored answers"):
        Workspace(str(tmp_path / "cheap")).export_answers(str(tmp_path / "export"))
    assert not (tmp_path / "export").exists()


def test_the_commands(
    asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def curate(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["curate", "answers", *words])
        with pytest.raises(SystemExit) as raised:
            main()
        return (raised.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    there, other = str(tmp_path / "export"), str(tmp_path / "other")
    code, text, _ = curate("export", "-w", str(asked), there, "--op", "toy.say")
    assert code == 0 and "toy.say" in text and "37" in text
    assert curate("import", "-w", other, there)[0] == 0
    code, text, _ = curate("import", "-w", other, there)
    assert code == 0 and re.findall(r"\d+", text.splitlines()[-2])[-2:] == ["0", "37"]
    code, _, error = curate("import", "-w", other, str(asked))
    assert code == 1 and error.startswith("curate: ") and error.count("\n") == 1 and "no manifest.json" in error


# --- kills ------------------------------------------------------------------------------------------------------------

IMPORT = """
import sys
from curate.api import Workspace
Workspace(sys.argv[1]).import_answers(sys.argv[2])
"""


@pytest.mark.parametrize(
    "point",
    ["publish:facts/*/index/*:published", "publish:facts/*/imported/*:written", "publish:*/imported/*:published"],
)
def test_a_killed_import_is_completed_by_the_next(export: Path, endpoint: Endpoint, tmp_path: Path, point: str) -> None:
    """Lines of the index that lead nowhere do no harm, not even to a run in between."""
    other = tmp_path / "other"
    command = [sys.executable, "-c", IMPORT, str(other), str(export)]
    killed = subprocess.run(command, cwd=ROOT, env=os.environ | {"CURATE_FAULT_KILL": point}, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    done = point.endswith("imported/*:published")
    assert use(other, endpoint, rows=4, namespace="few")[0] == (0 if done else 3)
    [found] = Workspace(str(other)).import_answers(str(export))
    assert found.rows == (0 if done else 37)
    assert use(other, endpoint, rows=ROWS)[0] == 3
