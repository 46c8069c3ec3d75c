"""infra/alerts.yml names metrics that exist, and its rules do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from curate.service.operate.metrics import Metrics
from curate.service.reconcile.targets import Health
from curate.service.service import Service
from tests.conftest import ROOT
from tests.service.people import People

INFRA = ROOT / "infra"
RULES = [rule for group in yaml.safe_load((INFRA / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
RUNS = {"curate_run_alert": {"workspace", "run", "alert"}}
"""Families that have series only while something is wrong."""


class Loop:
    leads, passes, failures = True, 0, 0

    def pass_age(self) -> float | None:
        return 0.0

    def progress(self) -> dict[str, object]:
        return {}


def exported(service: Service) -> dict[str, set[str]]:
    """Name of every family and sample -> labels."""
    metrics = Metrics(service, Loop())  # type: ignore[arg-type]
    metrics.requests.labels("/", "GET", "200").inc()
    metrics.seconds.labels("/", "GET").observe(1.0)
    found: dict[str, set[str]] = {"up": {"job", "instance"}}
    for family in text_string_to_metric_families(metrics.text().decode()):
        found.setdefault(family.name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found | RUNS


def test_rules_name_metrics_and_labels_that_exist(
    service: Service, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Health.model_validate({"healthy": True, "checked": 1.0})
    monkeypatch.setattr(service.targets, "health", {"local": seen}.get)
    known = exported(service)
    assert RULES
    for rule in RULES:
        used = set(re.findall(r"\b(?:curate_\w+|up)\b", rule["expr"]))
        assert used <= known.keys(), (rule["alert"], used - known.keys())
        named = set(re.findall(r"(\w+)=~?\"", rule["expr"])) | set(
            re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"])))
        )
        labels = set().union(*(known[name] for name in used)) | {"le"}
        assert named <= labels, (rule["alert"], named - labels)


def test_every_alert_says_what_is_wrong() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_the_rules_fire_when_they_should() -> None:
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=INFRA, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
