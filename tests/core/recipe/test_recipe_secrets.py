"""Secrets in recipes and in `--set`: a reference goes through, a value is refused in a line that does not repeat it."""

from __future__ import annotations

import pytest

from curate.core.recipe import load as recipe
from tests.core.recipe.test_load import GOOD, changed, refusal, refuses

ASK = (
    GOOD
    + """\
  ask:
    op: tests.core.recipe.test_secrets:Ask
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
    """However it is given: one line with its place, and nothing of the value."""
    message = "ask.api_key: expected a reference to a secret, env:NAME or file:PATH, not the secret itself"
    refuses(ASK.replace("env:TOY_KEY", value), f"r.yaml:24: {message}")
    refuses(ASK, f"r.yaml:24: {message}", f"ask.api_key={value}")
    text = ASK.replace("seed: 1", f"seed: {value}").replace("${seed}-place", "place")
    refuses(text.replace("env:TOY_KEY", "${seed}"), f"r.yaml:24: {message}")
    refuses(ASK.replace("env:TOY_KEY", "${dark}"), f"r.yaml:24: {message}", f"dark={value}", "bright.shift=1")


@pytest.mark.parametrize("override", ["ask.api_key:sk-123", "sk-123", "ask.api_key sk-123==", "ak.api_key=sk-123"])
def test_a_set_that_does_not_fit_hides_its_value(override: str) -> None:
    assert "sk-123" not in (refusal(ASK, override) or "sk-123")


@pytest.mark.parametrize("value", ["*sk-123", "!sk-123", "!!sk-123 x", "!e!sk-123 x", "!!int sk-123"])
def test_yaml_s_own_words_hide_it_too(value: str) -> None:
    for said in (refusal(ASK.replace("env:TOY_KEY", value)), refusal(ASK, f"ask.api_key={value}")):
        assert said is not None and "not YAML" in said and "sk-123" not in said


def test_a_reference_that_would_enter_the_fingerprint() -> None:
    message = "env:X would enter the fingerprint; only parameters of type Secret take a reference"
    refuses(changed("${dark}", "3\n    column: env:X"), f"r.yaml:14: bright.column: {message}")
    refuses(ASK + "    labels: {a: [x, env:X]}", f"r.yaml:25: ask.labels: {message}")
    refuses(ASK + "    header: {name: env:X}", f"r.yaml:25: ask.header: {message}")
    refuses(ASK, f"r.yaml:21: ask.prompt: {message}", "ask.prompt=env:X")


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "x-${oc.env:KEY,sk-123}", "${oc.decode:${oc.env:KEY}}"])
def test_the_environment_in_a_recipe(value: str) -> None:
    message = (
        "${oc.env:…} would store the variable's value in the workspace; give env:NAME to a parameter of type Secret, "
        "or the value by --set if it is not a secret"
    )
    refuses(ASK.replace("env:TOY_KEY", f'"{value}"'), f"r.yaml:24: ask.api_key: {message}")
    refuses(ASK.replace("seed: 1", f'seed: "{value}"'), f"r.yaml:4: seed: {message}")
    refuses(ASK.replace("${seed}-place", value), f"r.yaml:5: workspace: {message}")
    refuses(ASK + f'    labels: {{a: [1, "{value}"]}}', f"r.yaml:25: ask.labels.a: {message}")
    refuses(ASK, f"--set seed: {message}", f"seed={value}")
