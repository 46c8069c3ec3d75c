from __future__ import annotations

import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from curate.acquire.download import environment as made
from curate.core.errors import PreflightError
from tests.scopes import ROOT

BUILD = (
    "from curate.acquire.download import environment as e; from pathlib import Path; import sys; "
    "e.LOCK = Path(sys.argv[1]); e.MAIN = e.LOCK.with_name('main.py'); "
)
"""Start of a program that builds an environment from the lock in argv[1], as `use` does."""


def wheelhouse(folder: Path, code: str = "") -> Path:
    """A lock of one package that is called img2dataset; beside it are the wheel and a runner that imports it."""
    folder.mkdir(exist_ok=True)
    files = {
        "img2dataset/__init__.py": code,
        "img2dataset/unused.py": "",
        "img2dataset-1.47.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: img2dataset\nVersion: 1.47.0\n",
        "img2dataset-1.47.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    wheel = folder / "img2dataset-1.47.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (files | {"img2dataset-1.47.0.dist-info/RECORD": record}).items():
            archive.writestr(name, text)
    (folder / "main.py").write_text("import img2dataset\n")
    lock = folder / "requirements.lock"
    lock.write_text(f"img2dataset==1.47.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return lock


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Packages come from `tmp_path/wheels` only; the environment goes to `tmp_path/cache`."""
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use(wheelhouse(tmp_path / "wheels"), monkeypatch)


def use(lock: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(made, "LOCK", lock)
    monkeypatch.setattr(made, "MAIN", lock.with_name("main.py"))
    return lock


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache/envs").iterdir() if path.is_dir())


def test_it_is_built_once(tmp_path: Path, lock: Path) -> None:
    python = made.environment()
    assert subprocess.run([python, "-I", "-c", "import img2dataset"], check=False).returncode == 0
    assert folders(tmp_path) == [python.parents[1].name]
    assert re.fullmatch("img2dataset-[0-9a-f]{16}", python.parents[1].name)
    built = python.parents[1].stat()
    assert made.environment() == python and made.problem() is None
    assert python.parents[1].stat().st_ino == built.st_ino


def test_another_lock_gives_another_environment(tmp_path: Path, lock: Path) -> None:
    first = made.environment()
    wheelhouse(tmp_path / "wheels", code="NEW = True")
    second = made.environment()
    assert first != second
    assert first.exists() and second.exists()


def test_it_is_rebuilt_if_its_python_is_gone(tmp_path: Path, lock: Path) -> None:
    python = made.environment()
    python.unlink()
    python.symlink_to(tmp_path / "removed")
    assert made.environment() == python
    assert python.exists()


def test_one_that_is_part_of_the_installation_is_used(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "installation"))
    python = made.environment()
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "installation"))
    assert made.environment() == python
    assert not (tmp_path / "cache").exists()


def test_the_docker_image_has_it_in_its_installation() -> None:
    dockerfile = (ROOT / "infra/Dockerfile").read_text()
    assert re.search(
        r"^RUN CURATE_CACHE=(\S+) .*\1/bin/python -m curate.acquire.download.environment$", dockerfile, re.M
    )


def test_the_command_that_builds_it(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    command = [sys.executable, "-m", "curate.acquire.download.environment"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"the environment of img2dataset cannot be built in .*\n", done.stderr)


def test_processes_that_need_it_at_the_same_time_build_it_once(tmp_path: Path, lock: Path) -> None:
    builds = tmp_path / "builds"
    program = BUILD + (
        "build = e._build\n"
        "def counted(*arguments):\n"
        "    open(sys.argv[2], 'a').write('x'); build(*arguments)\n"
        "e._build = counted; print(e.environment())"
    )
    command = [sys.executable, "-c", program, str(lock), str(builds)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(paths) == 1
    assert builds.read_text() == "x"


def test_a_build_that_is_killed_leaves_nothing_that_passes_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, blocked = tmp_path / "reached", tmp_path / "blocked"
    os.mkfifo(reached)
    os.mkfifo(blocked)
    lock = use(
        wheelhouse(tmp_path / "wheels", f"open({str(reached)!r}, 'w').close(); open({str(blocked)!r})"), monkeypatch
    )
    program = BUILD + "e.environment()"
    process = subprocess.Popen([sys.executable, "-c", program, str(lock)])
    reached.open().close()  # it is in the last step, the import
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not made.place().exists()

    blocked.open("w").close()  # the step ends, and with it the lock
    for fifo in (reached, blocked):
        fifo.unlink()
        fifo.touch()
    assert made.environment().exists()
    assert folders(tmp_path) == [made.place().name]


def test_what_runners_import_is_compiled_and_no_more(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may run as a user who cannot write there, as in the Docker image."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/nowhere")
    folder = made.environment().parents[1]
    assert [path.name.split(".")[0] for path in folder.rglob("img2dataset/**/*.pyc")] == ["__init__"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ImportError('libGL.so.1: cannot open shared object file')", "python: ImportError: libGL.so.1: cannot"),
        ("import os; os._exit(3)", "python: exit status 3"),
    ],
)
def test_packages_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    use(wheelhouse(tmp_path / "wheels", code), monkeypatch)
    with pytest.raises(PreflightError, match=f"^the environment of img2dataset cannot be built: {message}"):
        made.environment()
    assert folders(tmp_path) == []


def test_a_package_that_differs_from_the_lock(tmp_path: Path, lock: Path) -> None:
    lock.write_text(f"img2dataset==1.47.0 --hash=sha256:{'0' * 64}\n")
    problem = made.problem()
    assert problem and re.match(r"the environment of img2dataset cannot be built: uv: .*[Hh]ash", problem)
    assert "\n" not in problem
    assert folders(tmp_path) == []


def test_packages_that_are_not_available(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "wheels/img2dataset-1.47.0-py3-none-any.whl").unlink()
    with pytest.raises(
        PreflightError, match=r"uv: .*img2dataset.*; expected a package registry, or a folder of wheels"
    ):
        made.environment()


def test_a_build_that_hangs(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "BUILD_SECONDS", 0)
    with pytest.raises(PreflightError, match=r"cannot be built: uv: no end after 0 s"):
        made.environment()


def test_a_cache_that_cannot_be_written(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(PreflightError, match=r"cannot be built in .*/cache/envs: .*; set CURATE_CACHE to one"):
        made.environment()


def test_no_uv(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError("uv is nowhere")

    monkeypatch.setattr("uv.find_uv_bin", missing)
    with pytest.raises(PreflightError, match="needs uv: uv is nowhere; install the locked packages"):
        made.environment()


def test_what_uv_says_becomes_one_line() -> None:
    said = "error: Request failed\n  cause: Failed to fetch: URL\n  cause: client error\n  cause: timed out\nhint: x\n"
    assert made.said(said) == "Request failed: Failed to fetch: URL: timed out"
    assert made.said("error: No disk\n  Caused by: it is full\n") == "No disk: it is full"
    assert made.said("Traceback (most recent call last):\n  File\nImportError: no\n") == "ImportError: no"
    assert made.said("\n") == ""


def test_its_processes_get_no_credentials_and_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "HTTPS_PROXY", "https_proxy", "HF_TOKEN", "UV_INDEX_URL"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("SSL_CERT_FILE", "certificates.pem")
    variables = made.clean_environment({"ONE": "1"})
    assert "value" not in variables.values()
    assert variables["SSL_CERT_FILE"] == "certificates.pem"
    assert variables["ONE"] == "1"


def test_the_lock_has_versions_and_hashes_and_no_urls() -> None:
    entries = re.split(r"\n(?=\S)", made.LOCK.read_text().strip())
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9._-]+==\S+( ; .+)? \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+", entry), entry
    assert {"img2dataset==1.47.0", "pillow", "protego"} < {
        word for entry in entries for word in (entry.split()[0], entry.partition("==")[0])
    }


def test_the_real_one_has_what_the_runner_imports(runner_python: Path) -> None:
    command = [runner_python, "-I", made.MAIN, "check"]
    assert subprocess.run(command, env=made.clean_environment(), check=False).returncode == 0
