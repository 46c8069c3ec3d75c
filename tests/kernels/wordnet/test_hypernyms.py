import pytest

from curate.kernels.wordnet.hypernyms import Taxonomy, taxonomy
from tests.text.wordnet.wordnets import real  # noqa: F401  (a fixture)

ABOVE = {
    "dog": ("canine", "pet"),
    "canine": ("animal",),
    "pet": ("animal",),
    "animal": ("entity",),
    "entity": (),
    "ring": ("chain",),
    "chain": ("ring",),
}
KNOWN = Taxonomy({}, ABOVE)


def test_kinds_come_nearest_first_and_once():
    assert KNOWN.kinds("dog") == ["dog", "canine", "pet", "animal", "entity"]
    assert KNOWN.kinds("unknown") == ["unknown"]
    assert set(KNOWN.kinds("ring")) == {"ring", "chain"}


def test_paths_follow_the_first_hypernym_and_end():
    assert KNOWN.path("dog") == ["entity", "animal", "canine", "dog"]
    assert KNOWN.path("ring") == ["chain", "ring"]


@pytest.mark.usefixtures("real")
def test_wordnets_own():
    known = taxonomy()
    lemon = known.by_offset["07749582"]
    assert lemon == "lemon.n.01"
    assert known.path(lemon)[-3:] == ["edible_fruit.n.01", "citrus.n.01", lemon]
    assert "fruit.n.01" in known.kinds(lemon) and "fruit.n.01" not in known.kinds("lemon.n.03")
