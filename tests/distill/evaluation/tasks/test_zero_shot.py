import numpy as np
import pytest

from curate.core.errors import InputError
from distill.evaluation.tasks.knn import unit
from distill.evaluation.tasks.prompts import names_of, read_names, read_templates
from distill.evaluation.tasks.zero_shot import class_scores, class_vectors


def letters(texts):
    """A text encoder that counts letters."""
    return np.array([[text.count(letter) for letter in "abcdefgh"] for text in texts], dtype=np.float32) + 0.01


def test_a_class_is_the_mean_direction_of_its_names_in_all_sentences():
    found = class_vectors(letters, [["aa", "b"], ["h"]], ["{}", "c {}"])
    own = unit(unit(letters(["aa", "c aa", "b", "c b"])).mean(0, keepdims=True))
    assert found[0] == pytest.approx(own[0], abs=1e-6)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert class_scores(letters(["aaaa", "hhhh"]), found).argmax(1).tolist() == [0, 1]


def test_names_come_from_the_label_or_from_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("# comment\nn01440764\ttench, a big fish\n")
    assert names_of(["n01440764", "bell_pepper", "tench, Tinca tinca", "_"], read_names(path)) == [
        ["tench", "a big fish"], ["bell pepper"], ["tench", "Tinca tinca"], ["_"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_names, "cat\n", "'cat' is not 'label<TAB>name"),
        (read_templates, "a photo\n", "'a photo' does not have exactly one {}"),
        (read_templates, "# nothing\n", "no templates"),
        (read_names, None, "cannot read"),
    ],
)
def test_bad_text_files_are_one_line(tmp_path, read, text, message):
    path = tmp_path / "file.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as error:
        read(path)
    assert message in str(error.value)


def test_the_packaged_templates_are_valid():
    templates = read_templates()
    assert len(templates) == len(set(templates)) >= 20


def test_templates_of_open_clip_are_those_of_its_package():
    found = read_templates("open_clip:OPENAI_IMAGENET_TEMPLATES")
    assert len(found) == 80 and found[0] == "a bad photo of a {}."
    assert all(template.count("{}") == 1 for template in found)
