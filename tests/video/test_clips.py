from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import LedgerError
from curate.core.hashing import canonical, make_child_key
from curate.video.clips import Piece, Rules, divide, ledger, windows

TIMES = st.integers(-500, 30_000)
RULES = st.builds(
    lambda least, more, trim, longer: Rules(least, 2 * max(1, least) + more, trim, longer),
    st.integers(0, 4_000),
    st.integers(0, 9_000),
    st.integers(0, 900),
    st.sampled_from(["windows", "reject"]),
)
VIDEOS = st.tuples(st.integers(0, 25_000), st.lists(TIMES, max_size=12), st.lists(st.tuples(TIMES, TIMES), max_size=5))


@given(VIDEOS, RULES)
def test_every_millisecond_has_one_fate(video: tuple, rules: Rules) -> None:
    duration, cuts, black = video
    pieces = divide(duration, cuts, black, rules)
    assert sum(ledger(duration, pieces).values()) == duration  # raises unless the pieces tile the video
    for piece in pieces:
        length = piece.stop_ms - piece.start_ms
        is_black = [any(a <= time < b for a, b in black) for time in (piece.start_ms, piece.stop_ms - 1)]
        assert all(is_black) if piece.fate == "black" else not any(is_black)
        if piece.fate == "kept":
            assert max(1, rules.least_ms) <= length <= rules.most_ms
            assert not any(piece.start_ms < cut < piece.stop_ms for cut in cuts)
        if piece.fate == "rejected":
            assert length > rules.most_ms and rules.longer == "reject"
        if piece.fate == "trimmed":
            assert length == rules.trim_ms


@given(VIDEOS, RULES, st.randoms(use_true_random=False))
def test_the_order_of_what_was_found_does_not_matter(video: tuple, rules: Rules, random: object) -> None:
    duration, cuts, black = video
    again = [*cuts, *cuts[:3]], [*black, *black[:2]]
    for found in again:
        random.shuffle(found)  # type: ignore[attr-defined]
    assert divide(duration, *again, rules) == divide(duration, cuts, black, rules)


@given(st.integers(0, 9_000), st.integers(1, 50_000), st.integers(1, 9_000))
def test_windows_are_the_fewest_and_nearly_equal(start: int, length: int, most: int) -> None:
    found = windows(start, start + length, most)
    lengths = [b - a for a, b in found]
    assert found[0][0] == start and found[-1][1] == start + length
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert max(lengths) <= most and max(lengths) - min(lengths) <= 1
    assert len(found) == 1 or length > most * (len(found) - 1)


def test_a_video_of_shots() -> None:
    rules = Rules(least_ms=1_000, most_ms=4_000, trim_ms=100)
    pieces = divide(20_000, [3_000, 3_500, 8_000, 18_000], [(8_000, 9_000)], rules)
    assert pieces == [
        (0, 2_900, "kept"),  # not trimmed at the start of the video
        (2_900, 3_000, "trimmed"),
        (3_000, 3_500, "short"),
        (3_500, 3_600, "trimmed"),
        (3_600, 5_750, "kept"),  # 4.3 s in two windows
        (5_750, 7_900, "kept"),
        (7_900, 8_000, "trimmed"),
        (8_000, 9_000, "black"),
        (9_000, 9_100, "trimmed"),
        (9_100, 12_033, "kept"),
        (12_033, 14_966, "kept"),
        (14_966, 17_900, "kept"),
        (17_900, 18_000, "trimmed"),
        (18_000, 18_100, "trimmed"),
        (18_100, 20_000, "kept"),
    ]
    assert ledger(20_000, pieces) == {"kept": 17_900, "short": 500, "trimmed": 600, "black": 1_000, "rejected": 0}
    assert ledger(20_000, divide(20_000, [], [], replace(rules, longer="reject")))["rejected"] == 20_000


def test_a_clip_keeps_its_key_while_its_span_stays() -> None:
    rules = Rules(least_ms=1_000, most_ms=10_000)

    def keys(cuts: list[int]) -> set[str]:
        pieces = divide(12_000, cuts, [], rules)
        return {make_child_key("00" * 16, "clip", piece.span) for piece in pieces if piece.fate == "kept"}

    assert len(keys([3_000, 8_000]) & keys([3_000, 7_960])) == 1
    assert canonical(Piece(0, 3_000, "kept").span) == '{"start_ms":0,"stop_ms":3000}'


@pytest.mark.parametrize(
    "pieces", [[(0, 500)], [(0, 600), (500, 1_000)], [(0, 400), (500, 1_000)], [(0, 1_000), (1_000, 1_000)], []]
)
def test_pieces_that_overlap_or_leave_a_gap_are_an_error(pieces: list[tuple[int, int]]) -> None:
    with pytest.raises(LedgerError, match="expected"):
        ledger(1_000, [Piece(start, stop, "kept") for start, stop in pieces])
