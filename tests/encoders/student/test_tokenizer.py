import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError
from curate.encoders.student.tokenizer import END, PAD, SMALLEST, Tokenizer

TEXTS = ["A red flag", "a red frog", "the frog in the red swamp", "flag of France", "Été: a blue flag"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 320)


def test_the_order_of_texts_changes_nothing(tokenizer):
    assert Tokenizer.train(reversed(TEXTS), 320).json() == tokenizer.json()
    assert Tokenizer.train([*TEXTS[:-1], "something else"], 320).digest() != tokenizer.digest()


def test_it_learns_pairs_up_to_the_requested_size(tokenizer):
    assert SMALLEST < len(tokenizer) <= 320
    assert len(Tokenizer.train(["ab"], 5000)) == SMALLEST  # nothing occurs twice
    assert tokenizer.encode(["a red flag"], 32).shape[1] < len("a red flag")


def test_case_and_forms_of_letters_do_not_matter(tokenizer):
    rows = tokenizer.encode(["A RED  FLAG".replace("  ", " "), " a red flag ", "ａ red ﬂag"], 32)
    assert (rows == rows[0]).all()


def test_texts_end_and_are_padded(tokenizer):
    rows = tokenizer.encode(["", "frog", "the frog in the red swamp"], 6)
    assert rows.shape == (3, 6) and rows.dtype == np.int64
    assert rows[0].tolist() == [END] + [PAD] * 5
    assert rows[2, -1] == END  # cut
    assert (rows[1] == END).sum() == 1 and PAD not in rows[1, : list(rows[1]).index(END)]


@given(st.text(max_size=40))
def test_any_text_is_encoded_without_special_tokens(tokenizer, text):
    row = tokenizer.encode([text], 10_000)[0]
    assert (row[:-1] > END).all() and row[-1] == END
    assert (tokenizer.encode([tokenizer.decode(row[:-1])], 10_000)[0] == row).all()


def test_names_of_special_tokens_in_a_text_are_plain_characters(tokenizer):
    assert (tokenizer.encode(["<pad><end>"], 64)[0][:-1] > END).all()


@pytest.mark.parametrize(
    "text", ["red flag " * 90, "frog " * 300, " " * 9000 + "the frog ", "e\u0301 " * 900, "\ufdfa" * 99]
)
def test_long_texts_are_truncated_before_tokenisation(tokenizer, text, monkeypatch):
    given = []

    class Pieces:
        def encode_batch(self, texts):
            given.extend(texts)
            return tokenizer._pieces.encode_batch(texts)

    whole = tokenizer.encode([text.strip() + " red"], 10_000)[0]
    cut = Tokenizer.parse(tokenizer.json())
    monkeypatch.setattr(cut, "_pieces", Pieces())
    row = cut.encode([text + "red flag " * 20_000], 8)[0]
    assert row[:7].tolist() == whole[:7].tolist() or len(whole) < 9
    assert len(given[0]) <= 4 * 8 * max(len(token) for token in tokenizer._pieces.get_vocab())


def test_a_saved_tokenizer_is_the_same(tokenizer):
    copy = Tokenizer.parse(tokenizer.json())
    assert copy.digest() == tokenizer.digest()
    assert (copy.encode(TEXTS, 16) == tokenizer.encode(TEXTS, 16)).all()


def test_corrupt_files_and_small_vocabularies_are_errors_in_one_line(tokenizer, tmp_path):
    (tmp_path / "words").write_bytes(b"\xff\xfe words")
    for name in ("words", "nothing"):
        with pytest.raises(InputError, match=rf"cannot read .*{name} \(.*\); export the run again$"):
            Tokenizer.read(tmp_path / name)
    remedy = "remove it and the finished.json beside it, then train again to refit it"
    for content in (b"\xff\xfe words", b"{}"):
        (tmp_path / "words").write_bytes(content)
        with pytest.raises(InputError, match=rf"words .*; {remedy}$"):
            Tokenizer.of_run(tmp_path / "words")
    assert Tokenizer.of_run(tmp_path / "nothing") is None
    with pytest.raises(InputError, match=r"^model/tokenizer.json is not a tokenizer \(.*\); export the run again$"):
        Tokenizer.parse("{}", "model/tokenizer.json")
    with pytest.raises(InputError, match=r"the first tokens must be <pad> and <end>"):
        Tokenizer.parse(tokenizer.json().replace("<end>", "<eos>"))
    with pytest.raises(InputError, match=r"^student.text.vocabulary: 100 is too small for all bytes; give 258"):
        Tokenizer.train(TEXTS, 100)
