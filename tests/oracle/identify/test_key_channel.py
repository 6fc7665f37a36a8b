"""What identify and check say about a kernel whose gates are per key channel, as those of KDA."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.identify.identify import identify

T, D = 11, 8
WORDS = (
    "in/{} were a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of M"
)
STATED = {"gate": "retain", "decay": "before_error", "query_scale": "1/sqrt(d_in)"}


def kda(k, v, q, w, step_size, M):
    """M <- M diag(w_t); M <- M - beta_t (M k_t - v_t) k_t^T; y_t = M q_t / sqrt(K)."""
    reads = []
    for t in range(len(k)):
        M = M * w[t][None, :]
        M = M - step_size[t] * np.outer(M @ k[t] - v[t], k[t])
        reads.append(M @ q[t] / np.sqrt(k.shape[-1]))
    return np.stack(reads), M


def drawn(columns=D):
    draw = np.random.default_rng(3)
    k, q = draw.standard_normal((2, T, columns))
    return {
        "in/k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "in/q": q / np.linalg.norm(q, axis=-1, keepdims=True),
        "in/v": draw.standard_normal((T, D)),
        "in/retain": 1.0 / (1.0 + np.exp(draw.standard_normal((T, columns)))),
        "in/step_size": draw.uniform(0.0, 1.0, T),
        "in/M0": 0.3 * draw.standard_normal((D, columns)),
    }


def case_and_results(convention, dtype="float64", log=False):
    """A case that says its gates are per output dimension, and what KDA computes from it."""
    x = drawn()
    y, M = kda(x["in/k"], x["in/v"], x["in/q"], x["in/retain"], x["in/step_size"], x["in/M0"])
    if log:
        x["in/log_retain"] = np.log(x.pop("in/retain"))
    header = {"schema": 1, "rule": "delta", "convention": convention, "gate_axis": "d_out"}
    case = atlas_ref.make(header, x)
    return case, {"out/y": y.astype(dtype), "out/M": M.astype(dtype)}


@pytest.mark.sample(2)
@pytest.mark.clause("IDENT-14", "GATES-15")
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("convention", [STATED, {"gate": "retain"}, "spec"], ids=str)
def test_identify_names_a_gate_per_key_channel(convention, dtype, log):
    """Under the case's own convention, and under the one that KDA has where the case states another."""
    case, results = case_and_results(convention, dtype, log)
    answer = identify(case, results)
    assert answer.verdict == "NO MATCH"
    named = [each for each in answer.departures if each.ratio < 1.0]
    assert [each.words for each in named] == [WORDS.format("log_retain" if log else "retain")]
    assert named[0].own == (convention is STATED)
    assert named[0].words in answer.why


@pytest.mark.clause("IDENT-14", "SRC-14", "GATES-15")
@pytest.mark.parametrize("convention", [STATED, "spec"], ids=str)
def test_check_names_it_in_the_failure_message(convention, tmp_path, cli):
    case, results = case_and_results(convention)
    file = tmp_path / "kda.safetensors"
    atlas_ref.save(file, case.header, {**case.inputs, **results})
    ran = cli("check", file)
    assert ran.code == 1
    assert f"as if {WORDS.format('retain')}" in " ".join(ran.out.split())
    assert "then this would be right" in " ".join(ran.out.split())


@pytest.mark.clause("IDENT-14", "GATES-15")
def test_gradients_that_come_along_do_not_hide_it():
    case, results = case_and_results(STATED)
    x = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    y_bar = np.random.default_rng(5).standard_normal((T, D))
    case = atlas_ref.make(case.header.plain(), {**case.inputs, "in/y_bar": y_bar})

    gradient = np.zeros((T, D))
    for place in np.ndindex(T, D):
        moved = x["retain"].astype(complex)
        moved[place] += 1e-30j
        y, _ = kda(x["k"], x["v"], x["q"], moved, x["step_size"], x["M0"])
        gradient[place] = np.sum(y * y_bar).imag / 1e-30
    answer = identify(case, {**results, "grad/retain": gradient})
    assert [each.words for each in answer.departures] == [WORDS.format("retain")]


@pytest.mark.clause("IDENT-14", "GATES-15")
def test_a_kernel_that_scales_rows_is_the_cases_own():
    """The negative twin: nothing is named where gates are what the case says."""
    case, _ = case_and_results(STATED)
    answer = identify(case, dict(atlas_ref.evaluate(case).tensors))
    assert answer.own
    assert answer.departures == ()


@pytest.mark.clause("GATES-15", "CASE-6")
def test_the_gates_of_kda_are_never_taken_for_rows_in_silence():
    """K = V = 8 and nothing stated, beside results of KDA; and K = 6, told by shape."""
    for columns, words in (
        (D, "has two readings where M is 8 by 8"),
        (6, "is a gate per key channel"),
    ):
        header = {"schema": 1, "rule": "delta", "convention": STATED}
        with pytest.raises(atlas_ref.CaseError, match=words):
            atlas_ref.make(header, drawn(columns))
