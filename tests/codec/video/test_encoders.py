"""Our code encodes with few encoders, so that it runs on an FFmpeg without x264 and x265."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.conftest import ROOT

ALLOWED = {"mpeg4", "mjpeg", "libsvtav1", "libvpx-vp9"}


def named() -> Iterator[tuple[str, str]]:
    """(file, encoder) of each call in the code that imports FFmpeg; "?" if the name is not in the call."""
    for folder in ("curate", "distill", "pipelines"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            if "import av" not in text and "from av" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr in ("add_stream", "create"):
                    first = node.args[0] if node.args else None
                    yield file.name, str(first.value) if isinstance(first, ast.Constant) else "?"


def test_encoders() -> None:
    found = dict(named())
    assert found, "the test sees none"
    assert set(found.values()) <= ALLOWED, found
