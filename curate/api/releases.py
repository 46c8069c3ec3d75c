"""Releases of datasets: written from the records of the run that made one, and fetched again as a pool."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import yaml

from curate.acquire.lists.urls import examine
from curate.api import hub
from curate.api.released import Rows
from curate.codec.listing import open_root
from curate.core import addresses
from curate.core.errors import InputError, did_you_mean
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import tombstones as noun_tombstones
from curate.core.nouns.tombstones import FIELDS, Tombstones
from curate.core.recipe.load import parse
from curate.core.secrets import Secret
from curate.core.store import lease
from curate.core.store.storage import Storage, open_workspace
from curate.engine.record import usage
from curate.engine.record.usage import DatasetInfo
from curate.release import layout
from curate.release.read import Release, open_release, read_removed
from curate.release.write import write

if TYPE_CHECKING:
    from curate.api.workspace import Workspace

_HUB = re.compile(r"hf://datasets/([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})/?")
LIST, POOL = "urls", "pool"
"""Stages of a fetch."""
DENIED = "denied_url"
"""Reason of a row that is not fetched because a `removed.parquet` has it."""


@dataclass
class Fetched:
    """What came of a fetch, in rows of the release. rows = fetched + the sum of gone + repeated."""

    run_id: str
    rows: int
    fetched: int = 0
    digests: int = 0
    """Rows of the release with a digest of the bytes at the URL, with which the bytes that come are compared."""
    repeated: int = 0
    """Rows with the URL and caption of another, such as further texts of one image."""
    gone: Counter[str] = field(default_factory=Counter)
    """By reason: those of `acquire.download`, `no_url`, and `taken_down`."""


def release(
    storage: Storage,
    dataset: str,
    to: str,
    *,
    columns: Sequence[str] = (),
    title: str | None = None,
    license: str = "unknown",
    predecessor: str | None = None,
    allow_networks: Sequence[str] = (),
) -> dict[str, Any]:
    """Write what may be published of a dataset to a new folder or URL; returns what its release.json says.

    dataset: NAME (the newest), NAME/FINGERPRINT, a fingerprint or a pin. columns: further columns, `[NAME=]COLUMN`,
    `[NAME=]STAGE.COLUMN` or `[NAME=]meta.FIELD`. predecessor: folder or URL of an earlier release. allow_networks:
    whose addresses may be published although they are not public. Raises InputError."""
    found = find_dataset(storage, dataset)
    before = None if predecessor is None else open_release(predecessor)
    allowed = _networks(allow_networks)
    title = " ".join((title or "").split()) or found.name
    rows = Rows(storage, found, columns, noun_tombstones.load(storage), before, title, license)
    with lease.hold(storage, f"release {to}", lambda: False):  # another process may write it, then it is complete
        return write(rows.tables(), rows.about, _new(to), before, rows.removed, allowed)


def _new(to: str) -> Storage:
    if not to.strip():
        raise InputError(f"to: {to!r}: expected a new folder or URL")
    place = open_root(to, "to")
    try:
        if place.local:
            os.makedirs(place.root, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"to: {to!r}: {getattr(error, 'strerror', None) or error}; give a new folder") from None
    return place


def find_dataset(storage: Storage, name: str) -> DatasetInfo:
    """A complete dataset, the newest of its name. Raises InputError."""
    known = usage.datasets(storage)
    wanted = name.removeprefix("datasets/").rstrip("/")
    hits = [one for one in known if wanted in (one.name, one.fingerprint, f"{one.name}/{one.fingerprint}", *one.pins)]
    if not hits:
        names = list(dict.fromkeys(one.name for one in known))
        hint = did_you_mean(wanted, names, f"`curate datasets` lists them: {', '.join(names) or 'none'}")
        raise InputError(f"{name!r}: not a dataset of {storage.url}; {hint}")
    return hits[-1]


def _networks(values: Sequence[str]) -> addresses.Networks:
    try:
        return addresses.networks(values)
    except ValueError as error:
        raise InputError(f"allow_networks: {error}") from None


# --- fetch ------------------------------------------------------------------------------------------------------------


def fetch(
    workspace: Workspace,
    source: str,
    contact: str,
    *,
    run_id: str | None = None,
    engine: str = "local",
    address: str | None = None,
    console: Any = None,
    **settings: Any,
) -> Fetched:
    """Make the pool of a release again: download what it lists, and compare digests. The same call resumes a fetch.

    settings: those of `fetch_recipe`. Raises InputError for a release that is damaged."""
    recipe, counts = fetch_recipe(open_workspace(workspace.url), source, contact, **settings)
    pipeline = parse(recipe, file="fetch")
    run = workspace.submit(pipeline, run_id=run_id, engine=engine, address=address, console=console)
    run.wait()
    return _fetched(run.id, run.ledger(), counts)


def fetch_recipe(
    storage: Storage,
    source: str,
    contact: str,
    *,
    namespace: str | None = None,
    removed: Sequence[str] = (),
    **settings: Any,
) -> tuple[str, Counter[str]]:
    """(YAML of a recipe that downloads a release into a workspace, rows of the release in all and with a digest). The
    release is checked first, and nothing of it is run: its rows are a list with a digest for each URL; its other
    columns go into `meta`.

    source: folder or URL of the release. namespace: of the pool; by default the release's, so that a key is the same
    where it is made of URL and caption. removed: later `removed.parquet` files, beside that in the folder: their rows
    are not fetched, and tombstoned. settings: of `acquire.download`."""
    known = open_release(source)
    known.verify()
    known.check()
    urls, counts = _survey(known, _down(known, removed))
    files = [known.storage.url_of(name) for name in known.files]
    columns = {"url": "url", "caption": "caption", "sha256": "sha256", "md5": None}
    media = [medium for medium in ("image", "video") if medium in known.about.get("media", ())] or ["image"]
    given = {name: value for name, value in settings.items() if value is not None}
    given |= {"namespace": namespace or known.about["namespace"], "contact": contact, "media": media}
    if (denied := _denied(storage, known, urls)) is not None:
        given["deny_urls"] = denied
    listed = {"op": "acquire.list", "path": files, "format": "parquet", "columns": columns}
    stages = {LIST: listed, POOL: {"op": "acquire.download", "list": LIST, **given}}
    recipe = yaml.safe_dump({"stages": stages}, sort_keys=False)
    parse(recipe, file="fetch")
    return recipe, counts


def _down(known: Release, removed: Iterable[str]) -> Tombstones:
    """What must not be fetched: of the release's own list, and of later ones."""
    tables = [known.removed()]
    for place in removed:
        folder, name = os.path.split(place)
        tables.append(read_removed(open_root(folder or ".", "removed"), name))
    whole = pa.concat_tables(tables)
    values = {name: tuple(sorted(set(whole.column(name).drop_null().to_pylist()))) for name in FIELDS}
    return Tombstones(values)


def _survey(known: Release, down: Tombstones) -> tuple[set[str], Counter[str]]:
    """(URLs that must not be fetched, rows of the release in all and with a digest)."""
    urls, counts = set[str](), Counter[str]()
    for table in known.rows(list(layout.REQUIRED)):
        counts["rows"] += len(table)
        counts["digests"] += len(table) - table.column("sha256").null_count
        if down:
            urls |= {url for url in table.filter(pa.array(down.mask(table))).column("url").to_pylist() if url}
    return urls, counts


def _denied(storage: Storage, known: Release, urls: set[str]) -> str | None:
    """A file with the URLs that must not be fetched; None if there are none. They are also tombstoned, since an earlier
    fetch may have them."""
    allowed = sorted(url for url in urls if examine(url)[1] is None and "\n" not in url)
    if not allowed:
        return None
    fresh = set(allowed).difference(noun_tombstones.load(storage).values["url"])
    if fresh:
        noun_tombstones.add(storage, sorted(fresh), f"taken down from the release {known.about['name']}")
    path = f"denied/{digest(allowed)}.txt"
    if not storage.exists(path):
        storage.publish_bytes(path, "".join(f"{url}\n" for url in allowed).encode())
    return storage.url_of(path)


def _fetched(run_id: str, ledger: dict[str, Entry], counts: Counter[str]) -> Fetched:
    listed, pool = ledger[LIST], ledger[POOL]
    gone = Counter(pool.lost)
    gone[layout.TAKEN_DOWN] += gone.pop(DENIED, 0)
    repeated = listed.lost.get("duplicate_row", 0)
    gone.update({reason: count for reason, count in listed.lost.items() if reason != "duplicate_row"})
    return Fetched(run_id, counts["rows"], pool.after, counts["digests"], repeated, +gone)


# --- the Hub ----------------------------------------------------------------------------------------------------------


def push(source: str, to: str, token: str | None = None, *, private: bool = False, update: bool = False) -> str:
    """Publish a release, which is checked first, as a dataset on the Hub; returns the URL of the commit.

    source: a folder. to: hf://datasets/OWNER/NAME, which must be free unless `update`. token: reference to a token that
    may write, env:NAME or file:PATH; by default huggingface_hub looks for one. Raises InputError for a name that is
    taken, StorageError if the Hub does not accept the files."""
    name = _HUB.fullmatch(to)
    if name is None:
        raise InputError(f"{to}: expected hf://datasets/OWNER/NAME; `curate release --to` writes to other URLs")
    known = open_release(source)
    if not known.storage.local:
        raise InputError(f"{source}: expected a folder of this machine; copy the release to one first")
    known.verify()
    try:
        secret = None if token is None else Secret(token)
    except ValueError as error:
        raise InputError(f"token: {error}") from None
    names = [*known.sums, layout.SUMS, *([layout.REMOVED] if known.storage.exists(layout.REMOVED) else [])]
    return hub.push(name[1], {one: known.storage.path(one) for one in names}, secret, private=private, update=update)
