"""Fixtures that every test shares: few threads, no network, real data where present, one server of each kind.

Under xdist (`make test`) a file is run by one process, and all files that share a slow server by the same one.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# Read by the libraries when they are imported, so they are set here and not in a fixture.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "2"),
    HF_HUB_OFFLINE="1",
    OMP_WAIT_POLICY="PASSIVE",  # idle threads of libgomp would spin
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
)

from hypothesis import settings

from tests import draw, flaky, orphans
from tests.account import Account
from tests.scopes import ROOT, SLOW, is_heavy, scope_of

# `make test-nightly` sets HYPOTHESIS_EXAMPLES.
settings.register_profile(
    "shared cores",
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "30")),
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("shared cores")


LAST = pytest.StashKey[set[pytest.Item]]()
"""The last test of each scope."""
RUNNING = pytest.StashKey[dict[str, Callable[[], None]]]()
"""Scope -> how to end its slow server, which runs."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ["CURATE_TEST_POINTS"] = draw.seed()  # that of all processes, whatever is committed meanwhile
    flaky.register(config)
    config.pluginmanager.register(Account(config))
    if not hasattr(config, "workerinput"):
        orphans.keep_ending()
    config.stash[RUNNING] = {}


def pytest_report_header() -> str:
    kept = "all" if draw.seed() == "all" else "a third"
    return f"kill points: {kept}; marked `drawn`: {kept if draw.in_ci() else 'all'} (CURATE_TEST_POINTS={draw.seed()})"


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of real samples (LAION texts, ImageNet and CIFAR images): CURATE_TEST_DATA, or shared/data beside us."""
    place = Path(os.environ.get("CURATE_TEST_DATA", ROOT.parent / "shared/data"))
    if not place.is_dir():
        pytest.skip(f"no real data in {place}; set CURATE_TEST_DATA")
    return place


@pytest.fixture(scope="session")
def tiny_wordnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordNet of two dozen synsets, so that what is tested does not depend on this machine's."""
    from tests.text.wordnet.wordnets import write_wordnet

    return write_wordnet(tmp_path_factory.mktemp("wordnet"))


@pytest.fixture(scope="session")
def ray_session(tiny_wordnet: Path) -> Iterator[Any]:
    """A local Ray of 2 CPUs; each of its processes takes seconds to start, so most tests use the local engine."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_WORDNET", str(tiny_wordnet))  # its workers inherit it
        start = partial(
            ray.init,
            address="local",  # not one that happens to run here
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=256 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
            _system_config={"num_workers_soft_limit": 8, "idle_worker_killing_time_threshold_ms": 600_000},
        )
        for attempt in range(4):
            try:
                start()
                break
            except Exception:  # Ray gives itself 30 s, which a busy machine may not keep
                ray.shutdown()
                if attempt == 3:
                    raise
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def on_ray(ray_session: Any) -> Iterator[Any]:
    """One backend for all: its workers stay from test to test. Stages of one CPU keep them, others replace them."""
    from tests.engine.warm import WarmRay

    made = WarmRay()
    yield made
    made.close()


@pytest.fixture
def on_this_ray(ray_session: Any, on_ray: Any) -> str:
    """Address of the session's Ray, with its CPUs free: for a driver in a separate process."""
    on_ray.release()
    return str(ray_session.get_runtime_context().gcs_address)


@pytest.fixture(scope="session")
def ray_head() -> Iterator[str]:
    """URL of the dashboard of a Ray head with a job server, on its own ports."""
    from tests.engine.heads import started

    with started() as url:
        yield url


@pytest.fixture(scope="session")
def far_head() -> Iterator[Any]:
    """A Ray head in a separate network (`tests.service.faults.heads.Head`)."""
    from tests.service.faults.heads import NotPermittedError, started

    try:
        with started() as made:
            yield made
    except NotPermittedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Any]:
    """An OpenAI-compatible endpoint in a separate process (`tests.servers.scripted.Endpoint`)."""
    from tests.servers.scripted import started

    with started() as made:
        yield made


@pytest.fixture(scope="session")
def real_server(pytestconfig: pytest.Config) -> Iterator[Any]:
    """`transformers serve` with a tiny random model (`tests.servers.transformers_server.RealServer`): 1 GB, 10 s."""
    from tests.servers.transformers_server import started

    with started(pytestconfig.cache.mkdir("tiny_vlm")) as made:  # type: ignore[union-attr]
        yield made


@pytest.fixture(scope="session")
def browser() -> Any:
    """A real browser (`tests.html.browser.Browser`)."""
    from tests.html.browser import found

    return found()


@pytest.fixture(scope="session")
def runner_python() -> Path:
    """Python of img2dataset's environment. Tests that need it skip where no package registry can be reached."""
    from curate.acquire.download.environment import environment
    from curate.core.errors import PreflightError

    try:
        return environment()
    except PreflightError as error:
        if any(sign in str(error) for sign in ("Failed to fetch", "was not found in the cache")):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def object_store_server() -> Iterator[str]:
    """URL of an object store on loopback: moto's server."""
    from tests.core.store.object_store import started

    with started() as url:
        yield url


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server (`tests.servers.postgres.Postgres`). Tests that need it skip where it is not installed."""
    from tests.servers.postgres import folder, started

    if folder() is None:
        pytest.skip("PostgreSQL is not installed: no initdb on PATH or under /usr/lib/postgresql")
    with started() as made:
        yield made


@pytest.fixture
def object_store(object_store_server: str) -> Iterator[Any]:
    """A boto3 client of an object store without buckets, to which the environment of the test leads."""
    from tests.core.store.object_store import used

    with used(object_store_server) as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    if fixturedef.argname in SLOW:
        request.config.stash[RUNNING][SLOW[fixturedef.argname]] = partial(fixturedef.finish, request)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A slow server ends with the last test of its scope: idle, Ray's processes would take 5 % of a core."""
    try:
        yield
    finally:
        if item in item.config.stash[LAST]:
            item.config.stash[RUNNING].pop(scope_of(file_of(item)), bool)()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Hardly anything of 11,000 tests becomes garbage, and later collections need not go through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """In a clean clone pytest compiles 600 files of tests, 20 CPU-s. Every other process begins at the end, so that
    each reads what the others have compiled."""
    report = yield
    if isinstance(collector, pytest.Directory) and int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2:
        report.result.reverse()
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    last = {scope_of(file_of(item)): item for item in session.items}
    session.config.stash[LAST] = set(last.values())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test-long` need not import a file that has no long tests."""
    if config.option.markexpr != "long and not nightly" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.long" not in collection_path.read_text() else None


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Marks the tests that `make test-fast` leaves out. Under xdist they come first, above all those of slow servers,
    then the files with most tests: what begins last should be short, or the other processes wait for it. In CI it draws
    among those that `-m` leaves, unless tests are named."""
    files = {item: file_of(item) for item in items}
    sizes = Counter(files.values())
    heavy = {file: is_heavy(file) for file in sizes}
    for item, file in files.items():
        if heavy[file]:
            item.add_marker("heavy")
    if hasattr(config, "workerinput"):
        order = {file: (scope_of(file) == file, not heavy[file], -size, file) for file, size in sizes.items()}
        items.sort(key=lambda item: order[files[item]])
    yield
    if left := draw.left_out(config, items):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Scopes are files, or all files of a slow server, in the order in which they were collected."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.split("::")[0])

    config.option.loadscopereorder = False
    return Files(config, log)
