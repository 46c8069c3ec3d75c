"""The stages that ask, with a real server: `transformers serve` and a tiny random model."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.caption.generate import Generate
from curate.caption.rewrite import Rewrite
from curate.engine.run import run
from curate.engine.state import Options
from tests.caption.test_run import pool, rows
from tests.servers.transformers_server import RealServer

ROWS = 5

pytestmark = pytest.mark.long


def test_images_are_captioned_and_captions_rewritten(real_server: RealServer, tmp_path: Path) -> None:
    asked = {"endpoints": {"real": real_server.endpoint.model_dump(by_alias=True, exclude_defaults=True)}}
    made = pool(ROWS).add("generate", Generate(**asked), "pool").add("rewrite", Rewrite(**asked), "generate").check()
    result = run(made, str(tmp_path), options=Options(failure_budget=1.0))
    assert result.ledger["generate"].after == result.ledger["rewrite"].after == ROWS
    generated = rows(tmp_path, "caption.generate")
    assert len({row["generated"] for row in generated}) == ROWS
    for row in generated:
        assert row["generated_outcome"] in ("ok", "truncated")
        assert row["generated_model"].startswith(real_server.model)
        assert row["generated_prompt_tokens"] > 16 and row["generated_completion_tokens"] > 0
    assert all(row["rewritten_prompt"].startswith("vivid@") for row in rows(tmp_path, "caption.rewrite"))
    assert run(made, str(tmp_path)).reused["generate"]
