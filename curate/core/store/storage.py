"""Storage of a workspace: one fsspec URL, and the only two ways to write files in it.

`publish` makes a complete object appear under its final name (local: temporary file, fsync, rename; object store: one
PUT or a completed multipart upload, aborted on any exception). `create` does the same for a small object only if the
name is free, which is what commits a noun. Nothing else writes: after an exception, `fs.open(..., "wb")` would publish
half a file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.errors import AlreadyExistsError, StorageError
from curate.core.store import faults

FORMAT = 2
SMALL_BYTES = 1 << 14
"""Tables smaller than this are not compressed."""
EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf"}
"""Scheme of a URL -> the extra that brings its driver."""
TEMPORARY = ".tmp"
UPLOAD = "?uploadId="  # between the path of an object and the id of an unfinished upload of it
SCRATCH = "scratch"
ONE_REQUEST_BYTES = 8 << 20
"""Smaller objects are read by one request."""
FEW_VALUES = 1 << 17
"""Most values of a table that is read with one thread."""


class Storage:
    """Files under a root URL, by relative path. Picklable, and cheap to unpickle in a worker."""

    def __init__(self, url: str) -> None:
        # listings must not be cached: another process may have published a name since
        try:
            self.fs, root = fsspec.core.url_to_fs(str(url), use_listings_cache=False)
        except ImportError:
            scheme = str(url).partition(":")[0]
            package = f"'curate[{EXTRAS[scheme]}]'" if scheme in EXTRAS else f"fsspec's driver for {scheme}"
            raise StorageError(f"{url}: needs a package that is missing; pip install {package}") from None
        self.local = "file" in _protocols(self.fs)
        self.root = str(Path(root).absolute()) if self.local else root.rstrip("/")
        self.url = self.root if self.local else self.fs.unstrip_protocol(self.root)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return open_storage, (self.url,)

    def path(self, relative: str) -> str:
        return f"{self.root.rstrip('/')}/{relative}" if relative else self.root

    def url_of(self, relative: str) -> str:
        return f"{self.url.rstrip('/')}/{relative}"

    # --- reading ---

    def exists(self, relative: str) -> bool:
        with _explain_errors(self.url_of(relative)):
            return bool(self.fs.exists(self.path(relative)))

    def open(self, relative: str) -> BinaryIO:
        with _explain_errors(self.url_of(relative)):
            return self.fs.open(self.path(relative), "rb")

    def read(self, relative: str) -> bytes:
        path = self.path(relative)
        with _explain_errors(self.url_of(relative)):
            found = self._small(path)
            return self.fs.cat_file(path) if found is None else found

    def _small(self, path: str) -> bytes | None:
        """Bytes of an object by one request (`cat_file` and `open` request its size first); None if it is large."""
        if self.local:
            return None
        try:
            start: bytes = self.fs.cat_file(path, start=0, end=ONE_REQUEST_BYTES)
        except OSError as error:
            if error.errno == errno.EINVAL:  # the object is empty
                return None
            raise
        return start if len(start) < ONE_REQUEST_BYTES else None

    def read_range(self, relative: str, start: int, stop: int | None) -> bytes:
        """Bytes start .. stop - 1; a negative start counts from the end, and is clipped to the beginning."""
        if not self.local:
            with _explain_errors(self.url_of(relative)):
                return self.fs.cat_file(self.path(relative), start=start, end=stop)
        with open(self.path(relative), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = max(0, size + start) if start < 0 else start
            file.seek(first)
            return file.read((size if stop is None else stop) - first)

    def read_json(self, relative: str) -> Any:
        return json.loads(self.read(relative))

    def read_table(
        self, relative: str, columns: list[str] | None = None, absent: pa.Schema | None = None, **options: Any
    ) -> pa.Table:
        """A Parquet file, or the named columns. Raises ArrowInvalid if it is corrupt or a column is missing; those of
        `absent`, which files of an older version lack, are null there. `filters` and other `options` of
        `pyarrow.parquet.read_table` take several times as long to open a small file."""
        with _explain_errors(self.url_of(relative)), contextlib.ExitStack() as stack:
            source: Any = self.path(relative)
            if not self.local:
                whole = self._small(source)
                source = stack.enter_context(self.open(relative) if whole is None else pa.BufferReader(whole))
            if options:
                return pq.read_table(source, columns=columns, partitioning=None, **options)
            with pq.ParquetFile(source) as file:
                # for a small file, starting threads takes as long as reading it
                many = file.metadata.num_rows * file.metadata.num_columns > FEW_VALUES
                table = file.read(columns=columns, use_threads=many)
        if columns is None:
            return table
        for name in columns:
            if absent is not None and name in absent.names and name not in table.column_names:
                table = table.append_column(absent.field(name), pa.nulls(len(table), absent.field(name).type))
            if name not in table.column_names:
                raise pa.ArrowInvalid(f"column {name!r} is missing")
        return table.select(columns)

    def list(self, prefix: str) -> dict[str, int]:
        """Files below a prefix, recursively: path relative to the prefix -> bytes. Temporary files are left out."""
        base = self.path(prefix)
        if self.local:
            names = dict(sorted(_walk(base, "")))
        else:
            self.fs.invalidate_cache(base)
            try:
                with _explain_errors(self.url_of(prefix)):
                    found = self.fs.find(base, detail=True)
            except FileNotFoundError:
                return {}
            names = {name[len(base) + 1 :]: int(info["size"]) for name, info in found.items()}
        return {name: size for name, size in names.items() if not name.endswith(TEMPORARY)}

    def temporary(self, prefix: str) -> dict[str, int]:
        """Temporary files below a prefix, which killed processes left on a local disk."""
        found = _walk(self.path(prefix), "") if self.local else ()
        return {name: size for name, size in found if name.endswith(TEMPORARY)}

    def unfinished(self) -> dict[str, tuple[int, float]]:
        """What writers have not finished, alive or killed: path -> (bytes, when it was begun or last written, seconds
        since the epoch). Temporary files of a local disk, and up to 1,000 multipart uploads of S3."""
        found: dict[str, tuple[int, float]] = {}
        for name, size in self.temporary("").items():
            with contextlib.suppress(FileNotFoundError):
                found[name] = size, os.stat(self.path(name)).st_mtime
        if "s3" in _protocols(self.fs):
            bucket, key, _ = self.fs.split_path(self.path(""))
            folder = f"{key}/" if key else ""
            with contextlib.suppress(OSError):  # not permitted, or not implemented
                listed = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=folder)
                for each in listed.get("Uploads", ()):
                    name, upload = each["Key"].removeprefix(folder), each["UploadId"]
                    parts = self.fs.call_s3("list_parts", Bucket=bucket, Key=each["Key"], UploadId=upload)
                    size = sum(part["Size"] for part in parts.get("Parts", ()))
                    found[f"{name}{UPLOAD}{upload}"] = size, each["Initiated"].timestamp()
        return found

    def entries(self, prefix: str) -> dict[str, float | None]:
        """Names directly below a prefix: folder -> None, file -> when it was published, by the storage's own clock
        (0 if it does not tell). Temporary files are left out. On an object store one request for each thousand."""
        base = self.path(prefix)
        try:
            if self.local:
                with os.scandir(base) as entries:
                    found = {each.name: None if each.is_dir() else each.stat().st_mtime for each in entries}
            else:
                with _explain_errors(self.url_of(prefix)):
                    listed = self.fs.ls(base, detail=True, refresh=True)
                found = {each["name"].rstrip("/").rpartition("/")[2]: _published(each) for each in listed}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {name: then for name, then in found.items() if not name.endswith(TEMPORARY)}

    def some_files(self, most: int) -> Iterator[str]:
        """Some files below the root that are not hidden; on S3 one, by one request for one key."""
        found: Iterator[str] = iter(())
        if self.local:
            walked = os.walk(self.root)
            paths = (Path(folder, name) for folder, inner, names in walked for name in (*names, *inner))
            relative = (str(path.relative_to(self.root)) for path in paths if path.is_symlink() or not path.is_dir())
            found = (path for path in relative if "/." not in f"/{path}")
        elif "s3" in _protocols(self.fs):
            bucket, key, _ = self.fs.split_path(self.root)
            prefix = key and f"{key}/"  # a key of this name is an empty folder
            with _explain_errors(self.url):
                listed = self.fs.call_s3(
                    "list_objects_v2", Bucket=bucket, Prefix=prefix, StartAfter=prefix, MaxKeys=1, **self.fs.req_kw
                )
            found = (each["Key"].removeprefix(prefix) for each in listed.get("Contents", ()))
        else:
            found = iter(self.entries(""))
        return itertools.islice(found, most)

    # --- writing ---

    @contextlib.contextmanager
    def publish(self, relative: str) -> Iterator[Path]:
        """Yield a local path to write to; once the block succeeds, the complete file appears under its name."""
        aside = self._aside(relative)
        try:
            with _explain_errors(self.url_of(relative)):
                yield aside
                self._finish(aside, relative, exclusive=False)
        finally:
            _discard(aside)

    @contextlib.contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        """A local path for a file whose final name depends on its content; pass it to `adopt` once complete."""
        aside = self._aside(f"{folder}/{SCRATCH}")
        try:
            with _explain_errors(self.url_of(folder)):
                yield aside
        finally:
            _discard(aside)

    def remove_scratch(self, folder: str) -> None:
        """Remove scratch files of killed processes; for the holder of the lease on what is written there. On an object
        store they were in the temporary folders of workers."""
        if self.local:
            for path in Path(self.path(folder)).glob(f".{SCRATCH}.*{TEMPORARY}"):
                path.unlink(missing_ok=True)

    def adopt(self, aside: Path, relative: str) -> None:
        """Publish a complete scratch file under its final name."""
        self._finish(aside, relative, exclusive=False)

    def create(self, relative: str, data: bytes) -> None:
        """Publish small bytes if the name is free, otherwise raise AlreadyExistsError. At most one caller succeeds."""
        aside = self._aside(relative)
        try:
            with _explain_errors(self.url_of(relative)):
                aside.write_bytes(data)
                self._finish(aside, relative, exclusive=True)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self.url_of(relative)}: exists already") from error
        finally:
            _discard(aside)

    def link(self, source: str, relative: str) -> None:
        """Publish a file under a second name: a hard link on a local disk that has them, else a copy of its bytes."""
        if self.exists(relative):
            return
        try:
            if self.local:
                final = Path(self.path(relative))
                final.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.path(source), final)
                return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
                raise
        with self.open(source) as file, self.publish(relative) as aside, open(aside, "wb") as out:
            shutil.copyfileobj(file, out, 8 << 20)

    def publish_bytes(self, relative: str, data: bytes) -> None:
        with self.publish(relative) as path:
            path.write_bytes(data)

    def publish_table(self, relative: str, table: pa.Table, **options: Any) -> None:
        with self.publish(relative) as path:
            pq.write_table(table, path, **_parquet_options(table, options))

    def create_table(self, relative: str, table: pa.Table, **options: Any) -> int:
        """Publish a table if the name is free, otherwise raise AlreadyExistsError. Returns its bytes."""
        aside = self._aside(relative)
        try:
            with _explain_errors(self.url_of(relative)):
                pq.write_table(table, aside, **_parquet_options(table, options))
                size = aside.stat().st_size
                self._finish(aside, relative, exclusive=True)
                return size
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self.url_of(relative)}: exists already") from error
        finally:
            _discard(aside)

    def create_json(self, relative: str, value: Any) -> None:
        self.create(relative, json.dumps(value, indent=1, sort_keys=True).encode())

    def mark(self, relative: str, data: bytes = b"") -> None:
        """Write a small file without fsync. It is only a hint: a power failure may lose or truncate it."""
        if self.local:
            Path(self.path(relative)).parent.mkdir(parents=True, exist_ok=True)
            Path(self.path(relative)).write_bytes(data)
        else:
            with _explain_errors(self.url_of(relative)):
                self.fs.pipe_file(self.path(relative), data)
        faults.point(f"mark:{relative}")

    def remove(self, relative: str) -> None:
        """Remove a file, a folder or an unfinished upload, if it exists."""
        name, _, upload = relative.partition(UPLOAD)
        with _explain_errors(self.url_of(relative)), contextlib.suppress(FileNotFoundError):
            if upload:
                bucket, key, _ = self.fs.split_path(self.path(name))
                self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)
            elif not self.local:
                self.fs.rm(self.path(relative), recursive=True)
            elif os.path.isdir(self.path(relative)):
                shutil.rmtree(self.path(relative), onerror=_raise_if_fixable)
            else:
                os.unlink(self.path(relative))

    def remove_file(self, relative: str) -> None:
        """Remove a file, if it exists. On an object store one request, while `remove` has to list."""
        with _explain_errors(self.url_of(relative)), contextlib.suppress(FileNotFoundError):
            if self.local:
                os.unlink(self.path(relative))
            else:
                self.fs.rm_file(self.path(relative))

    def _aside(self, relative: str) -> Path:
        if not self.local:
            return Path(tempfile.gettempdir()) / f"curate-{uuid.uuid4().hex}{TEMPORARY}"
        final = Path(self.path(relative))
        with _explain_errors(str(final.parent)):
            final.parent.mkdir(parents=True, exist_ok=True)
        return final.parent / f".{final.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}"

    def _finish(self, aside: Path, relative: str, *, exclusive: bool) -> None:
        final = self.path(relative)
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        faults.point(f"publish:{relative}:written")
        if not self.local:
            self._put(aside, final, exclusive=exclusive)
        elif exclusive:
            os.link(aside, final)
        else:
            os.replace(aside, final)
        if self.local:
            _fsync_folder(os.path.dirname(final))
        faults.point(f"publish:{relative}:published")

    def _put(self, aside: Path, final: str, *, exclusive: bool) -> None:
        """Upload a file. If the response to a creation is lost, the retry finds the name taken; the object's metadata
        then shows whether this upload took it."""
        if not exclusive:
            self.fs.put_file(str(aside), final)
            return
        about = {"Metadata": {"writer": uuid.uuid4().hex}} if "s3" in _protocols(self.fs) else {}
        try:
            self.fs.put_file(str(aside), final, mode="create", **about)
        except FileExistsError:
            if not about or self.fs.metadata(final) != about["Metadata"]:
                raise


def _parquet_options(table: pa.Table, options: dict[str, Any]) -> dict[str, Any]:
    """Parquet options of a table: zstd, unless the table is so small that starting a frame dominates."""
    small = {"compression": "NONE"} if table.nbytes < SMALL_BYTES else {}
    return {"compression": "zstd"} | options | small


@lru_cache(maxsize=64)
def open_storage(url: str) -> Storage:
    return Storage(url)


def open_workspace(url: str, *, create: bool = True) -> Storage:
    """A workspace of this format, created unless `create` is False. Raises StorageError for another format."""
    try:
        storage = open_storage(str(url))
        found = _format_of(storage)
        if found is None and not create:
            raise StorageError(f"{storage.url}: not a workspace; check the path, or create one with `curate run`")
        if found is None:
            others = sorted(storage.some_files(3))
            found = _format_of(storage)  # another process may have created it meanwhile
            if others and found is None:
                raise StorageError(
                    f"{storage.url}: neither a workspace nor empty, since it has {', '.join(others)}; "
                    "give a new or empty folder"
                )
            with contextlib.suppress(AlreadyExistsError):
                storage.create_json("format.json", {"format": FORMAT})
            found = _format_of(storage)
    except StorageError:
        raise
    except Exception as error:  # errors differ by file system: wrong URL, credentials, access
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise StorageError(f"{url}: cannot use this as a workspace ({text}); check URL and credentials") from error
    if found != FORMAT:
        written = "an older" if isinstance(found, int) and found < FORMAT else "another"
        raise StorageError(
            f"{storage.url}: this workspace has format {found}, written by {written} version; this version reads "
            f"format {FORMAT}: choose another workspace and run the recipe there"
        )
    return storage


def _format_of(storage: Storage) -> Any:
    """Format of a workspace; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return storage.read_json("format.json").get("format")


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
    """(path, bytes) of files below a local folder, recursively; those removed meanwhile are left out. Ten times as fast
    as fsspec's `find`."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/")
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield f"{prefix}{entry.name}", entry.stat().st_size


def _published(info: Mapping[str, Any]) -> float | None:
    """From a line of an object store's listing; each has its own word."""
    found = next((info[name] for name in ("LastModified", "updated", "mtime", "created") if info.get(name)), 0.0)
    if info["type"] == "directory":
        return None
    return found.timestamp() if hasattr(found, "timestamp") else found if isinstance(found, float) else 0.0


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _fsync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REMEDIES = {
    errno.ENOSPC: "no space left; free some, or choose another workspace",
    errno.EACCES: "not writable; check its owner and mode",
    errno.EROFS: "read-only file system; choose another workspace",
    errno.EBUSY: "the object store limits requests; wait, or use fewer workers, and rerun the same command",
}


def _raise_if_fixable(_: Any, __: str, raised: tuple[type[BaseException], BaseException, Any]) -> None:
    """Ignore files that others remove or add meanwhile; raise errors that the user can fix."""
    error = raised[1]
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        raise error


_NO_ANSWER = ("aiohttp.", "aiobotocore.", "botocore.", "httpx2.", "huggingface_hub.")
"""Modules of the errors that s3fs and HfFileSystem pass on after some seconds of retries."""


def _discard(aside: Path) -> None:
    """Remove a scratch file. A disk that has become read-only must not hide the error of the write; readers skip such
    files."""
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Turns errors that a user can fix, of the operating system or the object store, into one line."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None and not f"{type(error).__module__}.".startswith(_NO_ANSWER):
            raise
        raise StorageError(f"{url}: {remedy or _unanswered(error)}") from error
    except Exception as error:  # error classes differ by object store; others are re-raised
        if not f"{type(error).__module__}.".startswith(_NO_ANSWER):
            raise
        raise StorageError(f"{url}: {_unanswered(error)}") from error


def _unanswered(error: Exception) -> str:
    return f"the object store does not answer ({type(error).__name__}); check it, and rerun the same command"
