"""What recipes are made of: templates to start from, and ops."""

from __future__ import annotations

from curate.service.shapes.common import Shape


class Template(Shape):
    """A recipe to start from."""

    name: str
    description: str
    text: str
    """YAML."""


class ParameterShape(Shape):
    name: str
    type: str
    """In the notation of recipes: `int | null`, `random | closest`."""
    default: str
    """JSON, or `required`."""
    kind: str
    """semantic, runtime, secret or input."""
    description: str
    leads_to: str
    """What the value leads to, which has to be registered: path, file, endpoints, prompt, encoder, proxy, network,
    secret; "" for a plain value."""


class OpShape(Shape):
    """A stage that recipes can use."""

    name: str
    contract: str
    summary: str
    """One line."""
    doc: str
    parameters: list[ParameterShape]
