"""Texts as byte-pair tokens of a small vocabulary, learned from the texts that a student is trained on.

A vocabulary of a large model is larger than a small student: 49,152 tokens of width 192 are 9.4M weights. Byte-level
pairs (Sennrich et al. 2016; bytes as in GPT-2) have no unknown token, whatever is asked later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Pieces
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from curate.core.errors import InputError
from curate.core.hashing import digest_bytes

PAD, END = 0, 1
_SPECIAL = ["<pad>", "<end>"]
_LONGEST = 4096
"""Letters of a text that is learned from."""
_MARKS = 4
"""Letters that NFKC may make one of."""
SMALLEST = 256 + len(_SPECIAL)
"""A token for every byte, and the special ones."""


class Tokenizer:
    """Lower-cased, compatibility forms composed (NFKC); case says little of what is in a picture."""

    def __init__(self, pieces: Pieces) -> None:
        pieces.encode_special_tokens = True  # as letters: a text cannot end itself
        self._pieces = pieces
        self._longest = max(map(len, pieces.get_vocab()), default=1)

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        """At most `vocabulary` tokens; fewer where the texts have no more pairs. The order of texts changes nothing."""
        if vocabulary < SMALLEST:
            raise InputError(
                f"student.text.vocabulary: {vocabulary} has no place for all bytes; give {SMALLEST} or more"
            )
        pieces = Pieces(models.BPE())
        pieces.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        pieces.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=2, special_tokens=_SPECIAL, show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )  # fmt: skip
        pieces.train_from_iterator(sorted(_whole(text[:_LONGEST]) for text in texts), trainer)
        return cls(pieces)

    @classmethod
    def read(cls, path: Path, remedy: str = "export the run again") -> Tokenizer:
        """Raises InputError for a file that cannot be read, with what to do about it."""
        try:
            return cls.parse(path.read_text("utf-8"), str(path), remedy)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read ({error}); {remedy}") from None

    @classmethod
    def of_run(cls, path: Path) -> Tokenizer | None:
        """What a run has fitted; None where it has not yet. Raises InputError as `read` does."""
        remedy = "remove it and the finished.json beside it, and train again: it is fitted anew"
        return cls.read(path, remedy) if path.is_file() else None

    @classmethod
    def parse(cls, text: str, place: str = "tokenizer.json", remedy: str = "export the run again") -> Tokenizer:
        """The inverse of `json`. Raises InputError, naming `place`."""
        try:
            pieces = Pieces.from_str(text)
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise InputError(f"{place} is no tokenizer ({error}); {remedy}") from None
        if [pieces.token_to_id(token) for token in _SPECIAL] != [PAD, END]:
            raise InputError(f"{place} has no {' and '.join(_SPECIAL)} as its first tokens; {remedy}")
        return cls(pieces)

    def json(self) -> str:
        """What tokenizer.json holds; `tokenizers` and `transformers` read it, too."""
        return self._pieces.to_str(pretty=False)

    def digest(self) -> str:
        return digest_bytes([self.json().encode()])

    def __len__(self) -> int:
        return self._pieces.get_vocab_size()

    def encode(self, texts: Sequence[str], context: int) -> NDArray[np.int64]:
        """(B, L) with L <= context: as long as the longest; padded with PAD. Each text ends with END, also when cut.

        Of a long text only as many letters are looked at as `context` of the longest tokens have.
        """
        most = _MARKS * context * self._longest
        cut = [_whole(text.lstrip()[:most]) for text in texts]
        rows = [[*encoding.ids[: context - 1], END] for encoding in self._pieces.encode_batch(cut)]
        out = np.full((len(rows), max(map(len, rows), default=1)), PAD, dtype=np.int64)
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return out

    def decode(self, tokens: Sequence[int]) -> str:
        return self._pieces.decode([int(token) for token in tokens]).removeprefix(" ")


def _whole(text: str) -> str:
    """Halves of characters (lone surrogates), which JSON may hold and UTF-8 may not, become question marks."""
    return text.encode("utf-8", "replace").decode()
