from __future__ import annotations

import re
from hashlib import sha256

import pytest

from curate.html.page import data_uri, printable, render, sentence


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "toy.html").write_text(
        '{% extends "base.html" %}{% from "kit.html" import bars %}'
        "{% block main %}{{ text }}<table><tr>{{ bars([('after', 40)]) }}</tr></table>{% endblock %}"
    )
    (tmp_path / "toy.css").write_text(".toy > b { color: red }")
    (tmp_path / "toy.js").write_text("toy(1 < 2);")
    return tmp_path


def test_values_are_escaped_and_styles_and_scripts_are_not(folder):
    page = render(folder, "toy", title="<b>", text="<i>\x00\ud800").decode()
    assert "<title>&lt;b&gt;</title>" in page
    assert "&lt;i&gt;\ufffd?" in page
    assert ".toy > b" in page and "toy(1 < 2);" in page and 'width="40.00%"' in page


def test_the_policy_allows_the_page_its_own_script_only(folder):
    page = render(folder, "toy", title="", text="").decode()
    [script] = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    [digest] = re.findall("sha256-([^&]*)&#39;", page)
    assert data_uri(sha256(script.encode()).digest(), "x") == f"data:x;base64,{digest}"


def test_pages_of_a_folder_share_styles(folder):
    (folder / "shared.css").write_text("p { margin: 0 } b { color: blue }")
    page = render(folder, "toy", styles=("shared",), title="", text="").decode()
    assert 0 < page.index("b { color: blue }") < page.index(".toy > b")  # the page's own style comes last, and wins


def test_texts():
    assert printable("a\x00b\nc") == "a\ufffdb\nc"
    assert printable(3) == 3
    assert sentence("kNN of ImageNet") == "KNN of ImageNet"
