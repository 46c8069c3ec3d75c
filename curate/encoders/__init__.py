"""Encoders turn images and texts into vectors: `load("timm:…")`; `identity` and `problems` without loading a model.

`base` is their contract, `spec` says how they are named, and `families` finds the module of each kind.
"""

from curate.encoders.base import Encoder, Features
from curate.encoders.families import PRECISIONS, identity, load, problems, text_problems
from curate.encoders.spec import Spec, parse_spec

__all__ = ["PRECISIONS", "Encoder", "Features", "Spec", "identity", "load", "parse_spec", "problems", "text_problems"]
