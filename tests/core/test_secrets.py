"""Secrets: only `value()` returns them. Everything else that a stage or an error shows has the reference."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from curate.core import secrets
from curate.core.contracts import Map, Runtime, Secret, kind_of
from curate.core.errors import InputError, PreflightError, Reject
from curate.core.secrets import redact, redacted, references

VALUE = 'sk-123/+"é %<v'
"""A secret with characters that are escaped in JSON, URLs, HTML and reprs."""


class Header(BaseModel):
    name: str = "x"
    values: list[str] = []


class Ask(Map):
    op: ClassVar[str] = "toy.ask"
    api_key: Secret = Field(Secret("env:TOY_KEY"), description="key of the endpoint")
    other: Secret | None = None
    prompt: str = "what?"
    labels: dict[str, list[str]] = {}
    header: Header = Header()
    anything: Any = None
    endpoint: Annotated[str, Runtime()] = "http://localhost"

    def schema(self) -> pa.Schema:
        return pa.schema([("answer", pa.string())])


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not read any secret."""
    monkeypatch.setattr(secrets, "_read", {})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TOY_KEY", VALUE)
    return Secret("env:TOY_KEY").value()


# --- references -------------------------------------------------------------------------------------------------------


def test_a_variable_and_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOY_KEY", " abc ")
    (tmp_path / "my key").write_text("def\n")
    assert Secret("env:TOY_KEY").value() == " abc "
    assert Secret(f"file:{tmp_path}/my key").value() == Secret(f"file://{tmp_path}/my key").value() == "def"
    assert Secret("env:TOY_KEY").problem() is None


def test_a_secret_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOY_KEY", raising=False)
    monkeypatch.setenv("TOY_EMPTY", " ")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    end = "; every machine that runs this stage needs it"
    for reference, problem in (
        ("env:TOY_KEY", "the environment variable is not set"),
        ("env:TOY_EMPTY", "the environment variable is empty"),
        (f"file:{tmp_path}/none", "the file cannot be read (No such file or directory)"),
        (f"file:{tmp_path}", "the file cannot be read (Is a directory)"),
        (f"file:{tmp_path}/binary", "the file is not UTF-8 text"),
    ):
        assert Secret(reference).problem() == f"{reference}: {problem}{end}"
        with pytest.raises(PreflightError) as caught:
            Secret(reference).value()
        assert str(caught.value) == f"{reference}: {problem}{end}"
        assert caught.value.__context__ is None  # the codec's error holds the file's bytes


@pytest.mark.parametrize(
    "given", ["sk-123", "", "env:", "env:sk-123", "file:", "file: x", "Env:X", "env:A\nB", "x env:X"]
)
def test_a_value_that_is_not_a_reference_is_not_repeated(given: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a reference to a secret, env:NAME or file:PATH, not the secret"):
        Secret(given)


def test_a_variable_that_ray_would_store() -> None:
    with pytest.raises(ValueError, match=r"^variables named CURATE_… are forwarded to workers in clear"):
        Secret("env:CURATE_LOGIN")


def test_only_the_reference_is_shown_and_pickled(read: str) -> None:
    stage = Ask()
    assert stage.api_key == pickle.loads(pickle.dumps(stage)).api_key == Secret("env:TOY_KEY")
    assert hash(stage.api_key) == hash(Secret("env:TOY_KEY")) and stage.api_key != Secret("env:OTHER")
    shown = [repr(stage), str(stage), stage.model_dump_json(), json.dumps(Ask.model_json_schema()), str(stage.api_key)]
    assert [text for text in (*shown, str(pickle.dumps(stage))) if "sk-123" in text or "TOY_KEY" not in text] == []


# --- where a secret may stand -----------------------------------------------------------------------------------------


def test_kinds_of_parameters() -> None:
    kinds = {name: kind_of(info) for name, info in Ask.model_fields.items()}
    assert [name for name, kind in kinds.items() if kind == "secret"] == ["api_key", "other"]
    assert [name for name, kind in kinds.items() if kind == "runtime"] == ["endpoint"]

    class Named(Map):
        kind: Literal["Secret", "open"] = "Secret"
        key: Annotated[Secret, Field(description="key of the endpoint"), Runtime()]
        maybe: Annotated[Secret | None, Field()] = None

    assert [kind_of(info) for info in Named.model_fields.values()] == ["semantic", "secret", "secret"]
    assert Named(key="env:X").parameters() == {"kind": "Secret"}  # type: ignore[arg-type]


def test_secrets_are_not_among_the_semantic_parameters() -> None:
    stage = Ask(api_key="env:A", other="file:/b")  # type: ignore[arg-type]
    assert stage.parameters() == Ask(api_key=Secret("env:C")).parameters()
    assert set(stage.parameters()) == {"prompt", "labels", "header", "anything"}
    assert stage.secrets() == {"api_key": Secret("env:A"), "other": Secret("file:/b")}
    assert set(Ask().secrets()) == {"api_key"}


class Login(BaseModel):
    user: str = ""
    key: Secret


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (list[Secret], []),
        (dict[str, Secret], {}),
        (Secret | str, Secret("env:X")),
        (Login | None, None),
        (Annotated[list[Login], Runtime()], []),
        (Annotated[str, Secret], "x"),
        (Secret, "env:X"),
    ],
)
def test_a_secret_must_be_a_separate_parameter(annotation: Any, default: Any) -> None:
    """A secret nested in another parameter would exclude that parameter from the fingerprint, or enter it."""
    with pytest.raises(AssertionError, match=r"^Wrong.field: write `field: Secret` or"):
        type("Wrong", (Map,), {"__annotations__": {"field": annotation}, "field": default, "__module__": __name__})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "env:X"),
        ("labels", {"a": ["b", "env:X"]}),
        ("labels", {"env:X": []}),
        ("header", {"values": ["env:X"]}),
        ("header", Header(name="env:X")),
        ("anything", [{"deep": ("env:X",)}]),
        ("anything", {"deep": {Secret("env:X")}}),
    ],
)
def test_a_reference_that_would_enter_the_fingerprint(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Ask(**{name: value})
    (error,) = caught.value.errors()
    message = "env:X would enter the fingerprint; only parameters of type Secret take a reference"
    assert (error["loc"], error["msg"]) == ((name,), message)


def test_values_that_resemble_references() -> None:
    Ask(prompt="file:///a/photo.jpg", labels={"a": ["env: what?", "file: x", "env:", "my file:x"]}, endpoint="env:X")
    assert list(references("file:x")) == ["file:x"]


def test_pydantic_does_not_repeat_a_secret() -> None:
    for values in ({"api_key": "sk-123"}, {"other": "sk-123"}, {"api_key": ["sk-123"]}, {"api_kye": "sk-123"}):
        with pytest.raises(ValidationError) as caught:
            Ask(**values)  # type: ignore[arg-type]
        assert "sk-123" not in str(caught.value)


# --- messages of others -----------------------------------------------------------------------------------------------


@given(before=st.binary(max_size=5), after=st.binary(max_size=5), secret=st.text(min_size=8, max_size=40))
def test_every_encoding_of_a_secret_is_redacted(before: bytes, after: bytes, secret: str) -> None:
    secrets._read.clear()
    if not secret.strip() or not secret.isprintable():
        secret = f"sk{len(secret)}-long-enough"
    secrets._read[secret] = "env:X"
    data = secret.encode()
    whole = base64.b64encode(before + data + after).decode(), base64.urlsafe_b64encode(before + data + after).decode()
    for text in (secret, repr(secret), json.dumps(secret), quote(secret, safe=""), data.hex(), *whole):
        said = redact(f"401 from <{text}>")
        assert said.startswith("401 from <") and said.endswith(">") and "[env:X]" in said
        assert secret not in said and data.hex() not in said
    for encoded in whole:
        start = (len(before) + 2) // 3 * 4  # of the first group of four that is the secret's alone
        assert encoded[start : start + 8] not in redact(encoded)


def test_secrets_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN-----\nabc\ndef\n-----END-----\n")
    value = Secret(f"file:{tmp_path}/key").value()
    assert redact(" ".join(f"bad {value}!".split())) == redact(f"bad {value}!") == f"bad [file:{tmp_path}/key]!"


def test_unread_secrets_are_redacted_only_if_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", VALUE)
    assert redact(f"bad {VALUE}") == f"bad {VALUE}"
    assert redact(f"bad {VALUE}", [Secret("env:TOY_KEY"), Secret("env:TOY_NONE")]) == "bad [env:TOY_KEY]"


def test_exceptions_lose_the_secret_and_nothing_else(read: str) -> None:
    def answer() -> None:
        try:
            raise KeyError(read, {"Authorization": f"Bearer {read}"}, 401)
        except KeyError as error:
            raise Reject("no_answer", f"GET http://x/?key={quote(read)}") from error

    with pytest.raises(Reject) as caught:
        answer()
    error = redacted(caught.value)
    assert isinstance(error, Reject) and error.reason == "no_answer"
    assert error.detail == "GET http://x/?key=[env:TOY_KEY]" and str(error) == f"no_answer: {error.detail}"
    assert error.__cause__ is not None and error.__cause__.args[0] == "[env:TOY_KEY]" and error.__cause__.args[2] == 401
    assert str(pickle.loads(pickle.dumps(error))) == str(error) and "sk-123" not in str(error.__cause__)


def test_causes_that_cannot_be_changed_are_removed(read: str) -> None:
    class Stubborn(Exception):
        def __str__(self) -> str:
            return f"told {read}"

    first, second = InputError("a"), InputError("b")
    first.__cause__, second.__context__ = second, first  # as `raise` makes it: a ring
    second.__cause__ = Stubborn()
    assert redacted(first).__cause__ is second and second.__cause__ is None
