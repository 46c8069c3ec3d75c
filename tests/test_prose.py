"""docs/tools/prose.py finds idioms in what people read, and leaves code alone."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from tests.scopes import ROOT

SCRIPT = ROOT / "docs/tools/prose.py"
findings = runpy.run_path(str(SCRIPT))["findings"]


@pytest.mark.parametrize(
    ("name", "source", "lines"),
    [
        ("a.py", '"""Reads a file.\n\nA run goes on where\nit stopped."""\n', [3]),
        ("a.py", 'raise ValueError(f"{name!r} is no "\n    "folder; give one")\n', [1]),
        ("a.py", "x = 1  # its value lies\n# in a file\n", [1]),
        ("a.py", "say(f\"{count} found: {'nobody asked' if none else count}\")\n", [1]),
        ("a.py", 'help = "two or\\npictures"\n', [1]),
        ("a.py", "def test_a_row_is_refused(row: Row) -> None: ...\n", [1]),
        ("a.py", "\nasync def test_of_two_the_first_stays():\n    pass\n", [2]),
        ("a.md", "# Title\n\nEach picture is\nrefused once.\n", [3, 4]),
        ("a.md", "```\nmake all  # looks at the pictures\n```\n", [2]),
        ("a.html", "<p>{{ count }} pictures</p>\n<img alt='x' title=\"a picture\">\n", [1, 2]),
        ("a.yaml", "images: photos\n# your pictures\n", [2]),
        ("a.js", "// shows a picture\nconst text = `no pictures`\n", [1, 2]),
        ("Makefile", "run:  ## pictures in, dataset out\n", [1]),
    ],
)
def test_an_idiom_is_found_in_prose(name: str, source: str, lines: list[int]) -> None:
    assert [found.line for found in findings(name, source)] == lines


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", 'picture = anew(refused, picture="picture")\n'),
        ("a.py", '"""What `picture` and ``nobody`` are; see `is no`, my.picture and --refuse picture=1."""\n'),
        ("a.py", "say(f\"{picture} of {pictures['picture']} images in {a} is {no} {b}\")\n"),
        ("a.py", 'x = "this is"; y = "no string"\n'),
        ("a.py", "def of_pictures(nobody): ...\ntest_a_picture(1)\ndef test_this_is(no: str): ...\n"),
        ("a.py", 'x = b"a picture of bytes"\n'),
        ("a.py", '"""There is no such file: the network is no longer up. Connection refused."""\n'),
        ("a.md", "See [images](docs/picture.md).\n\n```python\npicture = refused(picture)  # an image\n```\n"),
        ("a.html", '<script>let picture = "a picture"</script><p class="picture of">{{ picture }}</p>\n'),
        ("a.yaml", "pictures: own\n"),
        ("curate/text/stopwords.py", 'WORDS = """\nsomebody somehow whoever\n"""\n'),
    ],
)
def test_code_is_not_prose(name: str, source: str) -> None:
    assert findings(name, source) == []


def test_the_command_names_line_idiom_and_plain_words() -> None:
    """On the idioms themselves there are no findings; `--help` says how to allow one."""
    done = subprocess.run([sys.executable, SCRIPT, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    (found,) = findings("a.py", "# a picture\n")
    assert (found.words, found.plain) == ("picture", "image")
