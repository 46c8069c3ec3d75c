"""Pictures and texts -> vectors: `load("timm:…")`, `identity` and `problems` without loading. See `base` and `spec`."""

from curate.encoders.base import PRECISIONS, Encoder, Features, identity, load, problems, text_problems
from curate.encoders.spec import Spec, parse_spec

__all__ = ["PRECISIONS", "Encoder", "Features", "Spec", "identity", "load", "parse_spec", "problems", "text_problems"]
