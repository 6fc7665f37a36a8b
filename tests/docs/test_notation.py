"""Names and ways of counting: the notation against the package, its files and its specs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from atlas_ref.conventions import AXES, NEWTON_SCHULZ_KEYS
from atlas_ref.forms.support import FORMS
from atlas_ref.layers import projection
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.cases.tensors import COTANGENTS
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.subjects.memory_tensors import PROJECTED
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import delta, hebbian, omega, titans_lmm
from docs.clauses import specs
from tests.support.close import ANALYTIC, EXACT, assert_close

ROOT = Path(__file__).parents[2]
CLAUSES = specs.read(ROOT)
GREEK = {"alpha", "beta", "gamma", "delta", "eta", "theta", "lambda", "mu", "sigma", "omega"}


def rows(clause: str) -> list[list[str]]:
    """The cells of a clause's table, without its head."""
    lines = [line for line in CLAUSES[clause].text.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.clause("NOTATION-1")
def test_every_role_of_the_table_is_a_name_of_the_package() -> None:
    states = set().union(
        *(module.State.model_fields for module in (omega, titans_lmm, delta, hebbian))
    )
    inside = {"rate_in", "rate_out", "residual", "gradient", "update"}  # roles within a step
    text = "".join(
        (ROOT / f"atlas_ref/{name}.py").read_text()
        for name in ("rules/omega", "engine/group/coefficients", "forms/atlas_parallel")
    )
    known = (
        states
        | set(Gates.model_fields)
        | set(Header.model_fields)
        | set(AXES)
        | set(NEWTON_SCHULZ_KEYS)
        | {"k", "v", "q", "phi"}
    )
    known |= {name for name in inside if re.search(rf"\b{name}\b", text)}
    named = [name for row in rows("NOTATION-1") for name in in_code(row[0])]
    assert len(named) > 20
    assert [name for name in named if name not in known] == []
    (forms,) = (row for row in rows("NOTATION-1") if row[0] == "`form`")
    assert set(re.findall(r"\w+", forms[1])) == set(FORMS) - {"tnt"}


def one_step(**convention: object) -> dict[str, np.ndarray]:
    """A token of Titans from M0 = 0: keys and values of length one, retain 0.5 and step size
    0.25.
    """
    header = {"schema": 1, "rule": "titans_lmm", "convention": convention}
    gates = {
        "in/retain": np.full(2, 0.5),
        "in/step_size": np.full(2, 0.25),
        "in/momentum": np.full(2, 0.5),
    }
    inputs = {
        "in/k": np.array([[1.0], [2.0]]),
        "in/v": np.array([[4.0], [1.0]]),
        "in/q": np.ones((2, 1)),
        "in/M0": np.full((1, 1), 8.0),
        **gates,
    }
    return evaluate(make(header, inputs)).tensors


@pytest.mark.clause("NOTATION-2")
def test_the_momentum_holds_the_gradient_and_residuals_are_prediction_minus_value() -> None:
    # e_1 = 8 * 1 - 4 = 4, S_1 = 0.25 * 4 = 1, M_1 = 4 - 1 = 3; e_2 = 6 - 1 = 5, S_2 = 0.5 + 0.25 *
    # 10 = 3, M_2 = 1.5 - 3
    plus, minus = one_step(), one_step(momentum_sign="minus")
    assert_close("S", plus["out/S"], np.array([[3.0]]), EXACT)
    assert_close("M", plus["out/M"], np.array([[-1.5]]), EXACT)
    assert_close("S of Titans", minus["out/S"], -plus["out/S"], EXACT)
    assert_close("M of Titans", minus["out/M"], plus["out/M"], EXACT)


@pytest.mark.clause("NOTATION-3")
def test_retain_multiplies_the_memory_after_the_axis_gate() -> None:
    given = one_step(gate="retain")
    assert_close(
        "retain = 1 - forget at one half", one_step(gate="forget")["out/M"], given["out/M"], EXACT
    )
    case = new(Request(rule="delta", tokens=5, convention={"gate": "forget"}))
    inputs = {**case.inputs, "in/retain": 1.0 - case.inputs["in/retain"]}
    want = evaluate(
        make({"schema": 1, "rule": "delta", "convention": {"gate": "retain"}}, inputs)
    ).tensors
    assert_close("M", evaluate(case).tensors["out/M"], want["out/M"], ANALYTIC)


@pytest.mark.clause("NOTATION-4")
def test_fields_have_these_names_and_no_greek_letter_is_one() -> None:
    assert tuple(Gates.model_fields) == (
        "retain",
        "momentum",
        "step_size",
        "step_size_memory",
        "window_weights",
    )
    assert {"M", "S", "keys", "values"} <= set(omega.State.model_fields)
    assert {"W_K", "W_V", "W_Q"} <= set(projection.Params.model_fields)
    greek = []
    for package in ("atlas_ref", "tape"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Name)
                    and isinstance(node.ctx, ast.Store)
                    and node.id in GREEK
                ):
                    greek.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}")
                elif isinstance(node, ast.arg) and node.arg in GREEK:
                    greek.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.arg}")
    assert greek == []


@pytest.mark.clause("NOTATION-7")
def test_every_tensor_of_the_table_is_one_of_the_format() -> None:
    known = set(PROJECTED) | set(COTANGENTS) | {"out/y", "out/M", "out/S", "grad/NAME"}
    named = [
        name for row in rows("NOTATION-7") for name in re.findall(r"\b(?:in|out|grad)/\w+", row[0])
    ]
    assert len(named) > 20
    assert [name for name in named if name not in known] == []


@pytest.mark.clause("NOTATION-8")
def test_tokens_count_from_zero_and_weights_by_lag_with_the_newest_first() -> None:
    T, keys = 3, np.eye(3)
    header = {
        "schema": 1,
        "rule": "omega",
        "window": 2,
        "convention": {"newton_schulz": "none", "reference": "zero"},
    }
    weights = np.tile([1.0, 0.0], (T, 1))
    weights[2] = [0.0, 1.0]  # the last token weighs the one before it alone
    gates = {"in/retain": np.ones(T), "in/step_size": np.ones(T), "in/window_weights": weights}
    inputs = {"in/k": keys, "in/v": np.array([[1.0], [2.0], [4.0]]), "in/q": keys, **gates}
    found = evaluate(make(header, inputs)).tensors
    # token 1 twice, token 2 never
    assert_close("M", found["out/M"], np.array([[1.0, 4.0, 0.0]]), EXACT)
    assert_close(
        "y at index 0 reads the memory after token 1", found["out/y"][0], np.array([1.0]), EXACT
    )
    assert_close("rows from the oldest on", found["out/window_v"], np.array([[4.0]]), EXACT)


@pytest.mark.clause("NOTATION-10")
def test_every_symbol_of_the_chunks_stands_in_the_clause_that_its_row_names() -> None:
    lost = []
    for row in rows("NOTATION-10"):
        ids = [each for each in specs.ID.findall(row[3]) if each in CLAUSES]
        texts = " ".join(
            CLAUSES[each].text
            + " ".join(one.text for one in CLAUSES.values() if one.path == CLAUSES[each].path)
            for each in ids
        )
        assert ids, row
        lost += [
            symbol
            for symbol in re.findall(r"\$([^$]+)\$", row[0])
            if symbol.replace(" ", "") not in texts.replace(" ", "")
        ]
    assert lost == []
