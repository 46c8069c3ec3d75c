"""What every stage must declare: docs, parameters, ports and one contract."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from curate.core.contracts import (
    Collect,
    Derive,
    Filter,
    Fit,
    Map,
    Pack,
    Reduce,
    Report,
    Select,
    Source,
    Stage,
    is_as_before,
    is_runtime,
)
from curate.core.errors import CurateError
from curate.core.recipe import registry
from curate.core.rows import CHILDREN
from tests.engine import contract

OPS = sorted(registry.OPS)
CONTRACTS = (Collect, Source, Map, Filter, Derive, Reduce, Fit, Select, Pack, Report)
KINDS = {op: next(base for base in CONTRACTS if issubclass(registry.resolve(op), base)) for op in OPS}


@pytest.fixture(scope="module", autouse=True)
def words(tiny_wordnet: Path) -> Iterator[None]:
    """As where the goldens were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURATE_WORDNET", str(tiny_wordnet))
        yield


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return contract.stage_of(request.param, tmp_path)


every = pytest.mark.parametrize("stage", OPS, indirect=True, ids=str)


@every
def test_a_stage_describes_itself(stage: Stage) -> None:
    op, cls = stage.op, type(stage)
    assert registry.resolve(op) is cls
    assert cls.version >= 1
    assert inspect.getdoc(cls) and cls.__doc__ != cls.__mro__[1].__doc__, f"{op}: no docstring; `curate ops` shows it"
    bare = [name for name, field in cls.model_fields.items() if not field.description and name not in inherited(cls)]
    assert not bare, f"{op}: no description of {', '.join(bare)}; write Field(..., description=...)"


def inherited(cls: type[Stage]) -> set[str]:
    """Parameters that are the contract's, with the contract's description."""
    own = set(vars(cls).get("__annotations__", {}))
    return set(cls.model_fields) - own


@every
def test_its_constructor_only_stores(stage: Stage) -> None:
    declared = {name: attribute.get_default() for name, attribute in stage.__private_attributes__.items()}
    plain = {name: value for name, value in declared.items() if value is not PydanticUndefined}
    assert (stage.__pydantic_private__ or {}) == plain, f"{stage.op}: {stage.__pydantic_private__} set before `setup`"
    assert all(value in (None, "") or isinstance(value, (int, float)) for value in plain.values()), stage.op
    assert type(stage)(**stage.model_dump()) == stage
    with pytest.raises(ValueError, match="frozen"):
        stage.op_ = 1  # type: ignore[attr-defined]


@every
def test_it_travels(stage: Stage) -> None:
    again = pickle.loads(pickle.dumps(stage))
    assert again == stage and again.parameters() == stage.parameters()


@every
def test_its_parameters_are_what_decides(stage: Stage) -> None:
    parameters = stage.parameters()
    assert json.loads(json.dumps(parameters)) == parameters
    execution = {name for name, field in type(stage).model_fields.items() if is_runtime(field.metadata)}
    assert not execution & set(parameters)
    as_before = {name for name, field in type(stage).model_fields.items() if is_as_before(field, getattr(stage, name))}
    given = set(type(stage).model_fields) - execution - as_before
    assert set(parameters) == given | set(stage.earlier)
    assert all(parameters[name] == value for name, value in stage.earlier.items() if name not in given)
    assert json.loads(json.dumps(stage.identity())) == stage.identity()
    assert stage.resources().cpus > 0 and isinstance(stage.preflight(), list)


def test_every_stage_is_of_one_contract() -> None:
    for op in OPS:
        assert len([base for base in CONTRACTS if issubclass(registry.resolve(op), base)]) == 1, op
        assert KINDS[op] is not Filter or not registry.resolve(op).ports, f"{op}: a filter has no ports"


def test_every_port_has_a_maker() -> None:
    kinds = {getattr(registry.resolve(op), "kind", None) for op in OPS}
    ports = {(op, port, kind) for op in OPS for port, kind in registry.resolve(op).ports.items()}
    assert [port for port in ports if port[2] not in {*kinds, CHILDREN}] == []


def test_ops_that_are_tested_elsewhere() -> None:
    assert all((Path(__file__).parents[2] / file).is_file() for file, _ in contract.ELSEWHERE.values())


@pytest.mark.parametrize("op", sorted(contract.SOURCES))
def test_source_names_a_missing_path(op: str, tmp_path: Path) -> None:
    source = contract.stage_of(op, tmp_path)
    gone = source.model_copy(update={"path": str(tmp_path / "nowhere")})
    assert isinstance(gone, (Collect, Source))
    with pytest.raises(CurateError, match="nowhere"):
        gone.plan()
