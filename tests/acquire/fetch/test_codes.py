import re

import pytest

from curate.acquire.fetch.codes import CODES, Failure, http_code


def test_codes_are_reject_reasons() -> None:
    for code, (status, meaning) in CODES.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", code)
        assert meaning and not meaning.endswith(".")
        assert (status == "done") == (code == "done")


@pytest.mark.parametrize("number", [408, 425, 429, 500, 503, 599])
def test_these_may_pass(number: int) -> None:
    assert Failure(http_code(number)).status == "error"


@pytest.mark.parametrize("number", [206, 302, 400, 401, 403, 404, 410, 451, 600, 999])
def test_these_do_not(number: int) -> None:
    assert Failure(http_code(number)).status == "unusable"


def test_a_failure_is_one_line() -> None:
    assert str(Failure("dns", "no address")) == "dns: no address"
    assert str(Failure("dns")) == "dns"
