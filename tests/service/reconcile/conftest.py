"""A world per test."""

from __future__ import annotations

import pytest

from curate.service.service import Service
from tests.service.people import People
from tests.service.reconcile.worlds import World


@pytest.fixture
def world(service: Service, people: People) -> World:
    return World(service, people)
