"""Tokenizers of texts: byte-pair tokens of a small vocabulary, learned from the texts that a student is trained on, and
CLIP's own.

The vocabulary of a large model outweighs a small student: 49,152 tokens of width 192 are 9.4M weights. Byte-level pairs
(Sennrich et al. 2016; bytes as in GPT-2) can encode every text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Pieces
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from curate.core.errors import InputError
from curate.core.hashing import digest_bytes
from curate.encoders.student.config import CLIP_VOCABULARY, TextConfig

PAD, END = 0, 1
_SPECIAL = ["<pad>", "<end>"]
_LONGEST = 4096
"""Characters of a text used for training."""
_MARKS = 4
"""Maximum number of characters that NFKC composes into one."""
SMALLEST = 256 + len(_SPECIAL)
"""Size of the smallest vocabulary: every byte, and the special tokens."""


class Tokenizer:
    """Text is lower-cased and normalised (NFKC): case says little about the content of an image."""

    def __init__(self, pieces: Pieces) -> None:
        pieces.encode_special_tokens = True  # as plain characters: a text cannot contain END
        self._pieces = pieces
        self._longest = max(map(len, pieces.get_vocab()), default=1)

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        """At most `vocabulary` tokens, fewer if the texts have no more pairs; independent of the order of texts.

        Raises InputError for a vocabulary that cannot hold all bytes.
        """
        if vocabulary < SMALLEST:
            raise InputError(
                f"student.text.vocabulary: {vocabulary} is too small for all bytes; give {SMALLEST} or more"
            )
        pieces = Pieces(models.BPE())
        pieces.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        pieces.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, min_frequency=2, special_tokens=_SPECIAL, show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )  # fmt: skip
        pieces.train_from_iterator(sorted(_encodable(text[:_LONGEST]) for text in texts), trainer)
        return cls(pieces)

    @classmethod
    def read(cls, path: Path, remedy: str = "export the run again") -> Tokenizer:
        """Raises InputError with the `remedy` if the file cannot be read."""
        try:
            return cls.parse(path.read_text("utf-8"), str(path), remedy)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path} ({error}); {remedy}") from None

    @classmethod
    def of_run(cls, path: Path) -> Tokenizer | None:
        """The tokenizer that a run has fitted; None before that. Raises InputError like `read`."""
        remedy = "remove it and the finished.json beside it, then train again to refit it"
        return cls.read(path, remedy) if path.is_file() else None

    @classmethod
    def parse(cls, text: str, place: str = "tokenizer.json", remedy: str = "export the run again") -> Tokenizer:
        """The inverse of `json`. Raises InputError that names `place`."""
        try:
            pieces = Pieces.from_str(text)
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise InputError(f"{place} is not a tokenizer ({error}); {remedy}") from None
        if [pieces.token_to_id(token) for token in _SPECIAL] != [PAD, END]:
            raise InputError(f"{place}: the first tokens must be {' and '.join(_SPECIAL)}; {remedy}")
        return cls(pieces)

    def json(self) -> str:
        """Content of tokenizer.json, which `tokenizers` and `transformers` read too."""
        return self._pieces.to_str(pretty=False)

    def digest(self) -> str:
        return digest_bytes([self.json().encode()])

    def __len__(self) -> int:
        return self._pieces.get_vocab_size()

    def encode(self, texts: Sequence[str], context: int) -> NDArray[np.int64]:
        """(B, L) with L <= context, the length of the longest text; padded with PAD. Every text ends with END, also a
        truncated one.

        Reads no more characters of a text than `context` of the longest tokens can have.
        """
        most = _MARKS * context * self._longest
        cut = [_encodable(text.lstrip()[:most]) for text in texts]
        rows = [[*encoding.ids[: context - 1], END] for encoding in self._pieces.encode_batch(cut)]
        out = np.full((len(rows), max(map(len, rows), default=1)), PAD, dtype=np.int64)
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return out

    def decode(self, tokens: Sequence[int]) -> str:
        return self._pieces.decode([int(token) for token in tokens]).removeprefix(" ")


class ClipTokenizer:
    """CLIP's tokens, by open_clip: lower-cased, with a token before and one after each text."""

    def __init__(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer  # takes seconds

        self._pieces = SimpleTokenizer()

    def __len__(self) -> int:
        return CLIP_VOCABULARY

    def digest(self) -> str:
        return CLIP_TOKENIZER

    def encode(self, texts: Sequence[str], context: int) -> NDArray[np.int64]:
        """(B, L) with L <= context, padded with 0, which is also the token of "!" within a text. Every text ends with
        the largest token, also a truncated one.

        Reads 16 characters per token: open_clip takes quadratic time in the length of a word.
        """
        if not texts:
            return np.zeros((0, 1), dtype=np.int64)
        cut = [_encodable(text[: _CHARACTERS * context]) for text in texts]
        rows = self._pieces(cut, context_length=context).numpy()
        return rows[:, : rows.argmax(1).max() + 1].astype(np.int64)


CLIP_TOKENIZER = "CLIP"
_CHARACTERS = 16
AnyTokenizer = Tokenizer | ClipTokenizer


def known_tokenizer(text: TextConfig | None, read: Callable[[], Tokenizer | None]) -> AnyTokenizer | None:
    """The tokenizer of a text tower; None if there is no tower or it reads no texts. read: of one that was fitted."""
    if text is None or not text.tokenizes:
        return None
    return ClipTokenizer() if text.tower == "clip" else read()


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and UTF-8 cannot, by question marks."""
    return text.encode("utf-8", "replace").decode()
