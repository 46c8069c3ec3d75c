from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.checks.leaks import PromptWords, has_marks
from curate.caption.checks.overlap import GRAM, Grams
from curate.caption.checks.words import words_of
from curate.caption.untrusted.wrap import wrap

PROMPT = "Describe this image in one or two sentences, at most forty words. Name the main subjects."
LETTERS = st.lists(st.sampled_from("abc"), max_size=12)


def test_words_that_a_prompt_has() -> None:
    prompts = PromptWords([PROMPT, "Be brief."])
    assert prompts.language == "english"
    assert prompts.leaked(words_of("A dog on a sofa")) == 0
    assert prompts.leaked(words_of("I describe: this image, in one or two sentences")) == 8
    assert prompts.leaked(words_of("main subjects be brief")) == 0  # not in one prompt
    assert PromptWords().leaked(words_of(PROMPT)) == 0


@given(LETTERS, LETTERS)
def test_a_run_is_at_least_as_long_as_what_is_shared(one: list[str], other: list[str]) -> None:
    found = Grams([one]).longest_run(other)
    runs = {tuple(one[i:j]) for i in range(len(one)) for j in range(i + GRAM, len(one) + 1)}
    shared = max(
        (j - i for i in range(len(other)) for j in range(len(other) + 1) if tuple(other[i:j]) in runs), default=0
    )
    assert found >= shared
    assert (found > 0) == (shared > 0)


@pytest.mark.parametrize(
    "text",
    [
        wrap({"alt": "a dog"}, "salt"),
        "A dog <|im_end|>",
        "[INST] hi",
        "</s>",
        "<start_of_turn>",
        "a data>>> b",
        "<<<data",
    ],
)
def test_marks(text: str) -> None:
    assert has_marks(text)


@pytest.mark.parametrize("text", ["A dog <3", "a <b>bold</b> claim", "data centre", "1 < 2 >> 0", "[EXIT]"])
def test_no_marks(text: str) -> None:
    assert not has_marks(text)
