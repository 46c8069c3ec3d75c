"""Secrets in recipes and in `--set`: references are accepted; values are rejected without repeating them."""

from __future__ import annotations

import pytest

from curate.core.recipe import load as recipe
from tests.core.recipe.test_load import GOOD, changed, error_of, rejects

ASK = (
    GOOD
    + """\
  ask:
    op: tests.core.test_secrets:Ask
    from: bright
    api_key: env:TOY_KEY
"""
)


def test_a_reference_to_a_secret() -> None:
    for overrides in ([], ["dark=env:TOY_KEY", "ask.api_key=${dark}", "bright.shift=1"]):
        pipeline = recipe.parse(ASK, overrides)
        assert str(pipeline.nodes["ask"].stage.secrets()) == "{'api_key': Secret('env:TOY_KEY')}"
        assert "TOY_KEY" not in str(pipeline.nodes["ask"].stage.parameters())


@pytest.mark.parametrize("value", ["sk-123", "[sk-123]", "{sk: sk-123}", "env:sk-123", "'!sk-123'", "sk=123"])
def test_a_secret_in_place_of_its_reference(value: str) -> None:
    """The error is one line with the place, without the value."""
    message = "ask.api_key: expected a reference to a secret, env:NAME or file:PATH, not the secret itself"
    rejects(ASK.replace("env:TOY_KEY", value), f"r.yaml:24: {message}")
    rejects(ASK, f"r.yaml:24: {message}", f"ask.api_key={value}")
    text = ASK.replace("seed: 1", f"seed: {value}").replace("${seed}-place", "place")
    rejects(text.replace("env:TOY_KEY", "${seed}"), f"r.yaml:24: {message}")
    rejects(ASK.replace("env:TOY_KEY", "${dark}"), f"r.yaml:24: {message}", f"dark={value}", "bright.shift=1")


@pytest.mark.parametrize("override", ["ask.api_key:sk-123", "sk-123", "ask.api_key sk-123==", "ak.api_key=sk-123"])
def test_an_invalid_set_does_not_show_its_value(override: str) -> None:
    assert "sk-123" not in (error_of(ASK, override) or "sk-123")


@pytest.mark.parametrize("value", ["*sk-123", "!sk-123", "!!sk-123 x", "!e!sk-123 x", "!!int sk-123"])
def test_yaml_errors_do_not_show_the_value(value: str) -> None:
    for message in (error_of(ASK.replace("env:TOY_KEY", value)), error_of(ASK, f"ask.api_key={value}")):
        assert message is not None and "not YAML" in message and "sk-123" not in message


def test_a_reference_that_would_enter_the_fingerprint() -> None:
    message = "env:X would enter the fingerprint; only parameters of type Secret take a reference"
    rejects(changed("${dark}", "3\n    column: env:X"), f"r.yaml:14: bright.column: {message}")
    rejects(ASK + "    labels: {a: [x, env:X]}", f"r.yaml:25: ask.labels: {message}")
    rejects(ASK + "    header: {name: env:X}", f"r.yaml:25: ask.header: {message}")
    rejects(ASK, f"r.yaml:21: ask.prompt: {message}", "ask.prompt=env:X")


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "x-${oc.env:KEY,sk-123}", "${oc.decode:${oc.env:KEY}}"])
def test_the_environment_in_a_recipe(value: str) -> None:
    message = (
        "${oc.env:…} would store the variable's value in the workspace; give env:NAME to a parameter of type Secret, "
        "or the value by --set if it is not a secret"
    )
    rejects(ASK.replace("env:TOY_KEY", f'"{value}"'), f"r.yaml:24: ask.api_key: {message}")
    rejects(ASK.replace("seed: 1", f'seed: "{value}"'), f"r.yaml:4: seed: {message}")
    rejects(ASK.replace("${seed}-place", value), f"r.yaml:5: workspace: {message}")
    rejects(ASK + f'    labels: {{a: [1, "{value}"]}}', f"r.yaml:25: ask.labels.a.1: {message}")
    rejects(ASK, f"--set seed: {message}", f"seed={value}")
