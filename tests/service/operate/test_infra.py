"""The service's files in infra/ agree with its settings, its commands and its routes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.engine import make_url
from typer.main import get_command

from curate.service.auth.dependency import PUBLIC
from curate.service.commands import app
from curate.service.settings import Limits, Settings
from tests.conftest import ROOT

INFRA = ROOT / "infra"
COMPOSE = yaml.safe_load((INFRA / "service-compose.yaml").read_text())
CONFIG_MAP, DEPLOYMENT, SERVICE = yaml.safe_load_all((INFRA / "service.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
SETTINGS = {
    "compose": COMPOSE["configs"]["service"]["content"],
    "kubernetes": CONFIG_MAP["data"]["service.yaml"],
}
COMMANDS = {"compose": COMPOSE["services"]["service"]["command"], "kubernetes": POD["containers"][0]["command"]}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_valid_and_safe(name: str, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(SETTINGS[name])
    settings = Settings.read(file)
    url = make_url(settings.database)
    assert settings.secure and settings.proxies and url.drivername == "postgresql+psycopg"
    assert settings.database_password is not None and url.password is None


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_exist(name: str) -> None:
    words = COMMANDS[name]
    assert words[:3] == ["curate", "service", "serve"]
    options = {option for one in get_command(app).commands["serve"].params for option in one.opts}  # type: ignore[attr-defined]
    assert {word for word in words if word.startswith("--")} <= options


def test_commands_in_comments_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for file in ("service.yaml", "service-compose.yaml"):
        text = (INFRA / file).read_text()
        assert set(re.findall(r"curate service (\w+)", text)) <= set(commands), file


def test_probes_need_no_token() -> None:
    (box,) = POD["containers"]
    paths = {box[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")}
    assert paths == {"/healthz"} <= PUBLIC
    assert "/healthz" in COMPOSE["services"]["service"]["healthcheck"]["test"][-1]


def test_all_files_use_the_same_image() -> None:
    images = {box["image"] for box in POD["containers"]} | {COMPOSE["services"]["service"]["image"]}
    cluster = yaml.safe_load((INFRA / "raycluster.yaml").read_text())
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert images == {head["image"]}
    assert {"secretName": cluster["metadata"]["name"]} in [one.get("secret") for one in POD["volumes"]]


def test_ports_lead_to_the_service() -> None:
    port = Settings().port
    assert POD["containers"][0]["ports"] == [{"containerPort": port, "name": "http"}]
    assert [one["targetPort"] for one in SERVICE["spec"]["ports"]] == ["http"]
    assert f"server 127.0.0.1:{port};" in (INFRA / "nginx.conf").read_text()
    published: list[Any] = COMPOSE["services"]["service"]["ports"]
    assert published == ["80:80", "443:443"]


def test_the_proxy_lets_the_service_answer_bodies_that_are_too_large() -> None:
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", (INFRA / "nginx.conf").read_text())
    assert int(megabytes) << 20 >= Limits().body_bytes
