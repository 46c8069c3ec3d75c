from curate.kernels.words import words


def test_words_of_any_script_in_their_order():
    assert words("Красная ЗВЕЗДА, the 星星星 of 1999") == ["красная", "звезда", "星星星"]


def test_what_names_nothing_is_no_word():
    assert words("the picture.jpg of an ox, and a House, a house") == ["house", "house"]
