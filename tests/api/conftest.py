"""Fixtures of the engine's tests."""

from tests.engine.conftest import gate, memory, workspace

__all__ = ["gate", "memory", "workspace"]
