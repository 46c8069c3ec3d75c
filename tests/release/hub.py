"""The routes of the Hub that huggingface_hub asks for when it creates a dataset, commits files to it and reads them.

POST /api/repos/create
POST /api/validate-yaml                      the header of README.md
GET  /api/datasets/NAME, /api/datasets/NAME/revision/REV
POST /api/datasets/NAME/preupload/REV        which files are large
POST /datasets/NAME.git/info/lfs/objects/batch, PUT /upload/SHA256, POST /verify
POST /api/datasets/NAME/commit/REV           lines of JSON: header, file (base64), lfsFile, deletedFile
GET  /api/datasets/NAME/tree/REV/PATH        ?recursive, ?expand
POST /api/datasets/NAME/paths-info/REV
HEAD, GET /datasets/NAME/resolve/REV/PATH    with ranges
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_SUFFIX = ".parquet"
TOKEN = "hf_only_a_test"


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.before_commit: Callable[[dict[str, bytes]], None] = lambda repo: None
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def answer(self, value: object = None, status: int = 200, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps({} if value is None else value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), "X-Repo-Commit": self.commit(), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.server.repos.items())).encode()).hexdigest()

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {path}")
        words = path.strip("/").split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and words[0] != "upload":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            self.create(json.loads(self.body))
        elif words[0] == "upload":
            self.server.uploads[words[1]] = self.body
            self.answer()
        elif path == "/api/validate-yaml":
            header = json.loads(self.body)["content"].split("---")[1]
            bad = [] if "license:" in header else [{"message": "license is missing"}]
            self.answer({"errors": bad, "warnings": []})
        elif words[0] == "verify":
            self.answer()
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.batch(json.loads(self.body))
        else:
            offset = 2 if words[0] == "api" else 1
            repo = self.server.repos.get("/".join(words[offset : offset + 2]))
            if repo is None:
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            else:
                self.of_repo(repo, words[offset + 2 :], query)

    do_GET = do_POST = do_PUT = do_HEAD = handle_any

    def create(self, order: dict) -> None:
        name = f"{order.get('organization') or 'me'}/{order['name']}"
        url = f"{self.server.url}/datasets/{name}"
        if name in self.server.repos:
            self.answer({"error": "You already created this dataset repo", "url": url}, 409)
        else:
            self.server.repos[name] = {}
            self.answer({"url": url, "name": name, "id": name})

    def batch(self, order: dict) -> None:
        objects = [
            {"oid": one["oid"], "size": one["size"], "actions": {
                "upload": {"href": f"{self.server.url}/upload/{one['oid']}"},
                "verify": {"href": f"{self.server.url}/verify"}}}
            for one in order["objects"]
        ]  # fmt: skip
        self.answer({"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def of_repo(self, repo: dict[str, bytes], words: list[str], query: dict[str, list[str]]) -> None:
        what, rest = (words[0], "/".join(words[2:])) if words else ("info", "")
        if what in ("info", "revision"):
            name = next(name for name, files in self.server.repos.items() if files is repo)
            files = [{"rfilename": path} for path in sorted(repo)]
            self.answer({"id": name, "sha": self.commit(), "siblings": files, "private": False, "tags": []})
        elif what == "preupload":
            asked = json.loads(self.body)["files"]
            modes = [{"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(LARGE_SUFFIX) else "regular",
                      "shouldIgnore": False} for one in asked]  # fmt: skip
            self.answer({"files": modes})
        elif what == "commit":
            self.take(repo)
        elif what == "tree":
            self.answer(tree(repo, rest, bool(query.get("recursive", ["false"])[0].lower() == "true")))
        elif what == "paths-info":
            asked = (
                json.loads(self.body)["paths"] if self.body.startswith(b"{") else parse_qs(self.body.decode())["paths"]
            )
            whole = {one["path"]: one for one in tree(repo, "", True)}
            self.answer([whole[path] for path in asked if path in whole])
        elif what == "resolve" and rest in repo:
            self.file(repo[rest])
        else:
            self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")

    def take(self, repo: dict[str, bytes]) -> None:
        self.server.before_commit(repo)
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repo[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo[value["path"]] = self.server.uploads[value["oid"]]
                assert hashlib.sha256(repo[value["path"]]).hexdigest() == value["oid"]
            elif line["key"] == "deletedFile":
                del repo[value["path"]]
        name = next(name for name, files in self.server.repos.items() if files is repo)
        url = f"{self.server.url}/datasets/{name}/commit/{self.commit()}"
        self.answer({"success": True, "commitOid": self.commit(), "commitUrl": url})

    def file(self, data: bytes) -> None:
        etag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            self.answer(data, **etag)
            return
        start, _, last = asked.partition("-")
        stop = min(len(data), int(last) + 1) if last else len(data)
        span = {"Content_Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self.answer(data[int(start) : stop], 206, **span, **etag)


def tree(repo: dict[str, bytes], below: str, recursive: bool) -> list[dict]:
    prefix = f"{below}/" if below else ""
    found: dict[str, dict] = {}
    for path, data in sorted(repo.items()):
        if not path.startswith(prefix):
            continue
        inner = path.removeprefix(prefix).split("/")
        for depth in range(1, len(inner)):
            folder = prefix + "/".join(inner[:depth])
            if depth == 1 or recursive:
                found.setdefault(folder, {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
        if len(inner) == 1 or recursive:
            found[path] = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}
    return list(found.values())


@contextmanager
def started() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
