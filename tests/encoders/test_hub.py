from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from curate import encoders
from curate.encoders import hub


class Dripping:
    """A hub that takes connections and answers with a header that does not end."""

    def __init__(self) -> None:
        self.asked, self.came = 0, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._over.is_set():
            connection, _ = self._listening.accept()
            self.asked += not self._over.is_set()
            self.came.set()
            threading.Thread(target=self._drip, args=[connection], daemon=True).start()

    def _drip(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nETag: ")
            while not self._over.wait(0.02):
                connection.sendall(b"x")

    def close(self) -> None:
        self._over.set()
        socket.create_connection(self._listening.getsockname()).close()
        self._listening.close()


@pytest.fixture
def dripping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dripping]:
    made = Dripping()
    template = f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", made.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    close_session()
    yield made
    made.close()
    close_session()


def test_a_hub_that_does_not_end_its_answer_gets_one_question_within_a_deadline(
    dripping: Dripping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own time limit is one of each read."""
    monkeypatch.setattr(hub, "_DEADLINE_SECONDS", 2.0)
    assert encoders.identity("hf:a/b")["weights"] == "hub:a/b@main"
    assert encoders.problems("hf:a/c")
    assert dripping.came.wait(60) and dripping.asked == 1


def test_cached_weights_have_the_digest_of_their_blob(tmp_path, monkeypatch):
    """In the Hugging Face cache, a snapshot links to a blob named by the hub's digest."""
    repo = tmp_path / "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    blob, snapshot = "ab" * 32, repo / "snapshots" / "c0ffee"
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "blobs" / blob).write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(repo / "blobs" / blob)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert encoders.identity("timm:vit_tiny_patch16_224")["weights"] == blob
    assert encoders.problems("timm:vit_tiny_patch16_224") == []
