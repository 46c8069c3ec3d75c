import pytest

from curate.service.database.models import Registration, WorkspaceRow
from curate.service.policy.rules import Rules, check_registration
from curate.service.problems import InvalidProblem


def _row(workspace: int | None, kind: str, name: str, value: str) -> Registration:
    return Registration(workspace_id=workspace, kind=kind, name=name, value=value, created=0.0)


def test_a_workspace_has_its_own_registrations_and_those_of_all() -> None:
    workspace = WorkspaceRow(name="main", url="/ws", created=0.0)
    workspace.id = 1
    rows = [
        _row(1, "root", "photos", "/mine"),
        _row(None, "root", "photos", "/everybody"),
        _row(None, "root", "shared", "/shared"),
        _row(2, "root", "foreign", "/foreign"),
        _row(None, "encoder", "siglip", "hf:/models/siglip"),
    ]
    rules = Rules.of(workspace, rows)
    assert rules.names("root") == {"photos": "/mine", "shared": "/shared"}
    assert rules.value("encoder", "siglip") == rules.value("encoder", "hf:/models/siglip") == "hf:/models/siglip"
    assert rules.value("encoder", "photos") is None
    assert rules.known("root", "encoder") == "photos, shared, siglip"
    assert rules.known("op") == "none"


VALID = [
    ("root", "/data"), ("root", "s3://bucket/x"), ("root", "file:///data"), ("file", "/etc/prompts/a.yaml"),
    ("endpoints", "s3://bucket/endpoints.yaml"), ("op", "package.module:Class"), ("secret", "env:NAME"),
    ("secret", "file:/run/secrets/x"), ("proxy", "http://proxy:3128"), ("network", "10.1.0.0/16"),
    ("encoder", "hf:/models/siglip"),
]  # fmt: skip
INVALID = [
    ("root", "data"), ("root", "/data/../etc"), ("root", "/data/*"), ("root", "~/data"), ("file", "prompt.yaml"),
    ("endpoints", "a::b"), ("op", "os.system"), ("op", "os:system()"), ("secret", "hunter2"),
    ("proxy", "http://user:pass@proxy:1"), ("proxy", "socks5://proxy:1"), ("network", "everything"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), VALID)
def test_registrations_of_a_valid_form(kind: str, value: str) -> None:
    check_registration(kind, value)  # does not raise


@pytest.mark.parametrize(("kind", "value"), INVALID)
def test_registrations_of_another_form(kind: str, value: str) -> None:
    with pytest.raises(InvalidProblem):
        check_registration(kind, value)
