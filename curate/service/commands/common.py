"""Shared by the commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from curate.service.database.migrate import prepare
from curate.service.service import Service
from curate.service.settings import Settings

Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The service's YAML file.", envvar="CURATE_SERVICE_CONFIG")
]


def settings_of(config: Path | None) -> Settings:
    return Settings.read(config) if config is not None else Settings()


@contextmanager
def opened(config: Path | None) -> Iterator[Service]:
    """The service over a database that is up to date. Raises RecipeError if it is not."""
    service = Service.of(settings_of(config))
    try:
        prepare(service.database)
        yield service
    finally:
        service.close()
