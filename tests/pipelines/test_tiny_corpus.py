"""Texts of images from three sources, without the real packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from pipelines import tiny_corpus
from pipelines.tiny_corpus import MAX_CHARACTERS, clipart_lines, emoji_lines, plain, stamp_lines, texts


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), "red").save(path)


def test_an_image_has_title_folder_description_and_keywords():
    found = texts("x", "A_red  frog 02", "animals/amphibian", ["frog", "swamp", "frog", " "], "It sits")
    assert found["caption"] == "A red frog" and found["category"] == "animals/amphibian"
    assert found["texts"][:4] == ["A red frog", "A red frog, amphibian animals", "It sits", "A red frog: It sits"]
    assert set(found["texts"][4:]) <= {"frog, swamp", "swamp, frog"} and len(found["texts"]) > 4


def test_texts_are_not_empty_repeated_or_too_long():
    assert texts("x", "", "", [], "") == {"caption": "", "texts": [], "category": ""}
    assert texts("x", "", "food", [], "")["texts"] == ["food"]
    assert texts("x", "sun", "", ["sun"], "sun")["texts"] == ["sun"]
    long = texts("x", "a " * 200, "food", [], "")["texts"]
    assert all(len(text) <= MAX_CHARACTERS for text in long) and len(set(long)) == len(long)


def test_a_hash_of_the_name_chooses_keywords():
    words = [f"word {chr(97 + n)}" for n in range(9)]
    assert texts("x", "t", "c", words, "") == texts("x", "t", "c", words, "")
    assert texts("x", "t", "c", words, "") != texts("y", "t", "c", words, "")


@pytest.mark.parametrize(
    ("given", "expected"), [("a_b  c\n", "a b c"), ("star 02", "star"), ("copy (3)", "copy"), ("mp3", "mp3"), ("7", "")]
)
def test_plain_words(given, expected):
    assert plain(given) == expected


def test_the_file_name_replaces_a_title_of_many_images(tmp_path):
    source, images = tmp_path / "source", tmp_path / "images"
    lines = []
    for n in range(tiny_corpus.SHARED + 1):
        name = f"icons/green_ball_{n}.png"
        write_image(source / name)
        shared = {"title": "Part of a collection", "description": "", "keywords": [], "category": "icons"}
        lines.append({"file_name": name, **shared})
    write_image(source / "one.png")
    lines.append({"file_name": "one.png", "title": "An owl", "description": "", "keywords": [], "category": ""})
    (source / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = list(clipart_lines(source, images))
    assert [line["caption"] for line in found] == ["green ball"] * (tiny_corpus.SHARED + 1) + ["An owl"]
    assert all((images / line["file_name"]).is_file() for line in found)


def test_stamps_have_a_sentence_and_are_not_mirrored(tmp_path):
    stamps = tmp_path / "stamps"
    for name in ("animals/frog", "animals/frog_mirror", "animals/silent"):
        write_image(stamps / f"{name}.png")
    (stamps / "animals/frog.txt").write_text("A tree frog.\nde.utf8=Ein Laubfrosch.\n", encoding="utf-8")
    (stamps / "animals/frog_mirror.txt").write_text("A tree frog.\n")
    lines = list(stamp_lines(stamps, tmp_path / "images"))
    assert [line["file_name"] for line in lines] == ["stamps/animals/frog.png"]
    assert lines[0]["texts"] == ["A tree frog", "A tree frog, animals", "frog"]


def test_emoji_have_unicodes_names(tmp_path, monkeypatch):
    annotations = tmp_path / "en.xml"
    annotations.write_text(
        "<ldml><annotations>"
        '<annotation cp="🐸">face | frog</annotation><annotation cp="🐸" type="tts">frog</annotation>'
        '<annotation cp="☃">cold | snow</annotation><annotation cp="☃" type="tts">snowman</annotation>'
        '<annotation cp="{" type="tts">open curly bracket</annotation>'
        '<annotation cp="👨‍🚀" type="tts">man astronaut</annotation>'
        "</annotations></ldml>"
    )
    monkeypatch.setattr(tiny_corpus.ImageFont, "truetype", lambda *_, **__: None)
    drawn = {"🐸": Image.new("RGB", (4, 4), "green"), "☃": None, "\U000e0fff": None}
    monkeypatch.setattr(tiny_corpus, "_draw", lambda _, character: drawn[character])
    (line,) = emoji_lines(tmp_path / "font.ttf", annotations, tmp_path / "images")
    assert line["file_name"] == "emoji/1f438.png" and line["texts"][0] == "frog"
    assert set(line["texts"][2:]) <= {"face, frog", "frog, face"}
    with Image.open(tmp_path / "images/emoji/1f438.png") as written:
        assert written.size == (4, 4)
