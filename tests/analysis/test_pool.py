"""Assumed data flow: the patterns it must get right, and how far it was measured to be right."""

import json
from pathlib import Path

from fusionadvisor.analysis.facts import Facts
from fusionadvisor.rules import engine
from tests.builders import Call, T, call, timeline
from tests.rules.cases import ROWS, TOK, add, layer_norm, linear

MEASURED = json.loads((Path(__file__).parents[2] / "benchmarks" / "flow_inference.json").read_text())
HEADS = T((16, 8, 512, 128), strides=(524288, 128, 1024, 1))
COS = T((512, 128))


def sources(*calls: Call) -> list[tuple[int, ...]]:
    return [n.sources for n in Facts(timeline(calls)).nodes]


def test_query_key_and_value_read_the_norm_not_each_other() -> None:
    found = sources(layer_norm(), linear(), linear(), linear())
    assert [f[1] for f in found[1:]] == [0, 0, 0]


def test_what_is_done_to_the_query_is_then_done_to_the_key() -> None:
    """norm, q, k; q·cos; k·cos: the second product reads k, though the first one's result fits as well."""
    product = call("aten::mul", HEADS, COS)
    found = sources(layer_norm(), linear(), linear(), product, product)
    assert (found[3][0], found[4][0]) == (1, 2)


def test_a_slice_is_of_what_was_read_just_before() -> None:
    """neg of half the query's columns, after q·cos."""
    half = T((16, 8, 512, 64), strides=HEADS.strides)
    found = sources(layer_norm(), linear(), linear(), call("aten::mul", HEADS, COS), call("aten::neg", half))
    assert found[4] == (1,)


def test_a_residual_reads_the_running_sum() -> None:
    """x1 = x + a; h = norm(x1); y = linear(h); x2 = x1 + y: the second operand of x2 is x1, not h."""
    found = sources(linear(), add(TOK), layer_norm(), linear(), add(TOK))
    assert 0 in found[1]
    assert set(found[4]) == {1, 3}


def test_dtypes_must_agree() -> None:
    found = sources(call("aten::relu", TOK), call("aten::exp", T(TOK.shape, "float32")))
    assert found[1] == (-1,)


def test_in_place_writes_replace_the_state() -> None:
    found = sources(call("aten::relu", TOK), call("aten::add_", TOK, TOK, "1"), call("aten::sigmoid", TOK))
    assert found[2] == (1,)


def test_parameters_are_not_taken_for_activations() -> None:
    """A weight of as many elements as a recent result."""
    square = T((1024, 1024))
    found = sources(
        call("aten::relu", square),
        call("aten::mm", ROWS, T((1024, 1024), strides=(1, 1024)), kind="gemm", outer="aten::linear"),
    )
    assert found[1] == (-1, -1)


def test_rules_that_trust_assumed_flow_are_those_measured_above_95_percent() -> None:
    """On models the inference was not written with, and on the others too."""

    def right(models: str, fewest: int) -> set[str]:
        rules = MEASURED[models]["rules"]
        return {r for r, f in rules.items() if f["edges"] >= fewest and f["precision"] >= 0.95}

    assert {rule.id for rule in engine.rules() if rule.trusted} == right("held_out", 5) & right("tuned", 1)
    assert len(MEASURED["tuned"]["models"]) == 21
    assert len(MEASURED["held_out"]["models"]) >= 20
    assert not set(MEASURED["tuned"]["models"]) & set(MEASURED["held_out"]["models"])
