from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.checks.repetition import (
    LONGEST_PERIOD,
    NGRAM,
    TIMES,
    Loop,
    compression_ratio,
    longest_loop,
    repeated_share,
)
from curate.caption.checks.words import words_of

WORDS = st.lists(st.sampled_from("abcd"), max_size=40)


def simply(words: Sequence[str]) -> int:
    """Words of the longest loop, by its definition."""
    best = 0
    for start in range(len(words)):
        for period in range(1, (len(words) - start) // TIMES + 1):
            end = start + period
            while end < len(words) and words[end] == words[end - period]:
                end += 1
            if end - start >= TIMES * period:
                best = max(best, end - start)
    return best


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("a red car, a red car, a red car, a red", Loop(11, 3)),
        ("no no no no", Loop(4, 1)),
        ("very very good", Loop(0, 0)),
        ("the cat sat. the cat sat.", Loop(0, 0)),
        ("ha" * 30, Loop(60, 2)),
        ("狗" * 9, Loop(9, 1)),
        ("", Loop(0, 0)),
    ],
)
def test_loops(text: str, loop: Loop) -> None:
    assert longest_loop(words_of(text)) == loop


@given(WORDS)
def test_the_longest_loop_by_its_definition(words: list[str]) -> None:
    assert longest_loop(words).words == simply(words)


@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=LONGEST_PERIOD),
    st.integers(TIMES, 5),
    st.lists(st.sampled_from("xyz"), max_size=20),
    st.lists(st.sampled_from("xyz"), max_size=20),
)
def test_a_loop_of_any_period_is_found_anywhere(
    unit: list[str], times: int, before: list[str], after: list[str]
) -> None:
    found = longest_loop([*before, *unit * times, *after])
    assert found.words >= len(unit) * times


def test_repeated_share() -> None:
    once = ["one", "two", "three", "four", "five"]
    assert repeated_share(once) == 0
    assert repeated_share([*once[:NGRAM], *once[:NGRAM]]) == 0.5
    assert repeated_share([*once, "six", *once]) == pytest.approx(15 / 41)
    assert repeated_share([]) == 0


@given(WORDS)
def test_repeated_share_is_a_share(words: list[str]) -> None:
    share = repeated_share(words)
    assert 0 <= share < 1


@given(st.lists(st.characters(codec="ascii", categories=["Ll"]), unique=True, min_size=1))
def test_the_second_of_two_copies_is_repeated(words: list[str]) -> None:
    assert repeated_share(words * 2) == (len(words) - len(words) % NGRAM) / (2 * len(words))


def test_compression_ratio() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio("A dog sits on a sofa.") < 1
    assert compression_ratio("A dog sits on a sofa. " * 9) > 2.4
    assert compression_ratio("a     dog\n" * 1) == compression_ratio("a dog")
    assert compression_ratio("\ud800") > 0


@pytest.mark.parametrize(
    "text",
    [
        "ผู้หญิงสวมเสื้อโค้ทสีแดงกำลังเดินเล่นกับสุนัขตัวเล็กบนถนนที่เปียกฝน ด้านหลังมีอาคารอิฐและรถยนต์จอดอยู่หลายคัน "
        "ท้องฟ้ามีเมฆมากและมีผู้คนเดินผ่านไปมา "
        "ทางด้านขวามีร้านกาแฟเล็กๆ ที่มีโต๊ะไม้และเก้าอี้วางอยู่ด้านหน้า มีป้ายสีเขียวแขวนอยู่เหนือประตู",
        "சிவப்பு கோட் அணிந்த ஒரு பெண் மழை பெய்யும் தெருவில் ஒரு சிறிய நாயுடன் நடந்து செல்கிறார். அவளுக்குப் பின்னால் செங்கல் "
        "கட்டிடம் ஒன்றும் பல கார்களும் நிற்கின்றன. வானத்தில் மேகங்கள் சூழ்ந்துள்ளன.",
        "一个穿着红色外套的女人在下雨的街道上遛着一只小狗,旁边停着几辆汽车,远处有一栋砖砌的建筑。",
        "امرأة ترتدي معطفا أحمر تمشي مع كلب صغير في شارع ممطر، وخلفها مبنى من الطوب وعدة سيارات متوقفة.",
    ],
)
def test_no_script_is_repetitive_by_its_encoding(text: str) -> None:
    assert compression_ratio(text) < 1.6
    assert compression_ratio(f"{text} " * 6) > 2.4


def test_many_different_characters_compress_as_two_bytes_each() -> None:
    assert 0.9 < compression_ratio("".join(map(chr, range(0x4E00, 0x4E00 + 2000)))) < 2.4


@pytest.mark.parametrize("unit", ["a ", "a b ", "go ", "x", "字"])
def test_a_megabyte_takes_a_second(unit: str) -> None:
    words = words_of(unit * (1_000_000 // len(unit)))
    began = time.process_time()
    assert longest_loop(words).words == len(words)
    assert repeated_share(words) > 0.9
    assert time.process_time() - began < 20
