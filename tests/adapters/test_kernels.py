"""The adapter of kernels of the linear family: every layout that it converts, and what it refuses."""

import sys
from pathlib import Path

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.sources import sources
from tests.support import fla_kernel
from tests.support.close import EXACT, assert_close

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import kernels  # noqa: E402

KDA = kernels.Kernel(
    fla_kernel.kda, kernels.KDA, member="kda", gradients=fla_kernel.by_complex_step, grouped=True
)


def case(member="kda", changes=None, parameters=None, **request):
    """A small case with a first memory and cotangents of all results.

    `changes` are tensors in place of the drawn, None for none.
    """
    own = {"member": member, **(parameters or {})}
    sizes = {"tokens": 4, "d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "cotangent": True}
    drawn = new(Request(rule="dplr", draw=1, parameters=own, **(sizes | request)))
    inputs = {**drawn.inputs, **states(drawn), **(changes or {})}
    kept = {name: value for name, value in inputs.items() if value is not None}
    return atlas_ref.make(drawn.header.plain(), kept, name="drawn")


def states(drawn):
    """A first memory and the cotangent of the last, in the layout of a case."""
    k, v = drawn.inputs["in/k"], drawn.inputs["in/v"]
    shape = (*v.shape[:-2], v.shape[-1], k.shape[-1])
    if drawn.header.parameters.get("state_layout") == "(d_in, d_out)":
        shape = (*shape[:-2], shape[-1], shape[-2])
    draw = np.random.default_rng(7)
    return {f"in/{name}": draw.standard_normal(shape) for name in ("M0", "M_bar")}


def passes(one, kernel, *, but=()):
    """Every result and every gradient of a kernel, all compared and right."""
    rows = atlas_ref.check(one, source=lambda each: sources.respond(kernel, each))
    assert [
        (row.tensor, row.verdict, row.error, row.why) for row in rows if row.verdict != "PASS"
    ] == []
    masks = ("in/reset", "in/active", "in/y_bar", "in/M_bar")
    floats = {f"grad/{name[3:]}" for name in one.inputs if name not in masks}
    assert {row.tensor for row in rows} == {"out/y", "out/M"} | floats - set(but)
    return rows


def with_axes(one, build):
    """The same case with other leading axes of every tensor but the mask."""
    inputs = {n: x if n == "in/reset" else build(x) for n, x in one.inputs.items()}
    return atlas_ref.make(one.header.plain(), inputs, name="axes")


AXES = {
    "heads": lambda x: x,
    "none": lambda x: x[0],
    "batch": lambda x: np.stack([x, 0.5 * x]),
    "three": lambda x: np.stack([x, 0.5 * x])[:, None],
}


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("head_first", [False, True])
def test_time_before_heads_or_behind_and_packed_sequences_of_a_batch(axes, packed, head_first):
    one = with_axes(case(reset=3 if packed else 0, heads=1 if axes == "none" else 2), AXES[axes])
    assert ("in/reset" in one.inputs) == packed
    options = {"head_first": head_first}
    passes(one, KDA._replace(head_axis=1 if head_first else 2, options=options))


@pytest.mark.parametrize("of_kernel", ["(d_in, d_out)", "(d_out, d_in)"])
@pytest.mark.parametrize("of_case", ["(d_in, d_out)", "(d_out, d_in)"])
@pytest.mark.parametrize("packed", [False, True])
def test_states_of_either_layout(of_kernel, of_case, packed):
    one = case(parameters={"state_layout": of_case}, reset=3 if packed else 0)
    assert {"in/M0", "in/M_bar"} <= set(one.inputs)
    options = {"state_v_first": of_kernel == "(d_out, d_in)"}
    passes(one, KDA._replace(state=of_kernel, options=options))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_shared_keys_are_handed_over_shared_or_repeated(grouped, packed):
    one = case(parameters={"groups": 2}, reset=3 if packed else 0)
    assert one.inputs["in/v"].shape[0] == 2 * one.inputs["in/k"].shape[0]
    seen = []

    def counted(**arguments):
        seen.append(arguments["k"].shape[2])
        return fla_kernel.kda(**arguments)

    passes(one, KDA._replace(call=counted, grouped=grouped))
    assert seen == [one.inputs["in/k" if grouped else "in/v"].shape[0]]


def of_gate(kind):
    """The kernel under an argument that is the gate, or its log to another base."""
    back = {"retain": np.log, "log_retain": lambda g: g, "log2_retain": lambda g: g * np.log(2.0)}

    def call(*, g, **arguments):
        return fla_kernel.kda(g=back[kind](g), **arguments)

    def gradients(arguments, y_bar, M_bar):
        inner = {**arguments, "g": back[kind](arguments["g"])}
        found = fla_kernel.by_complex_step(inner, y_bar, M_bar)
        slope = {"retain": 1 / arguments["g"], "log_retain": 1.0, "log2_retain": np.log(2.0)}
        return {**found, "g": found["g"] * slope[kind]}

    return KDA._replace(call=call, gradients=gradients, arguments=kernels.KDA | {"g": kind})


@pytest.mark.parametrize("kind", ["retain", "log_retain", "log2_retain"])
@pytest.mark.parametrize("given", ["retain", "log_retain"])
@pytest.mark.parametrize("channels", [True, False])
def test_a_gate_or_its_logarithm_for_each_channel_or_for_the_head(kind, given, channels):
    one = case()
    gate = one.inputs["in/retain"] if channels else one.inputs["in/retain"][..., 0]
    named = {"in/retain": None} | {f"in/{given}": np.log(gate) if given == "log_retain" else gate}
    passes(case(changes=named), of_gate(kind))


def test_a_gate_of_zero_has_a_logarithm_and_no_gradient_by_it():
    gate = case().inputs["in/retain"].copy()
    gate[0, 1, 2] = 0.0
    one = case(changes={"in/retain": gate})
    quiet = KDA._replace(gradients=lambda given, *bars: finite(given, *bars))
    passes(one, quiet, but=["grad/retain"])
    # where the kernel takes the gate itself, its gradient is the case's
    inputs = {name[3:]: value for name, value in one.inputs.items()}
    assert "grad/retain" not in quiet(one.header.plain(), inputs)


def finite(given, y_bar, M_bar):
    """Gradients but that by the gate, where a step from -inf leads nowhere."""
    found = fla_kernel.by_complex_step(
        {name: x for name, x in given.items() if name != "g"} | {"g": np.maximum(given["g"], -745)},
        y_bar,
        M_bar,
    )
    return found


def test_a_kernel_without_a_backward_answers_values():
    rows = atlas_ref.check(
        case(), source=lambda each: sources.respond(KDA._replace(gradients=None), each)
    )
    assert {row.tensor for row in rows} == {"out/y", "out/M"}
    assert {row.verdict for row in rows} == {"PASS"}


def test_a_wrong_layout_is_wrong():
    """The negative twins: a transposed state, a gate of the neighbour, keys shared round robin."""
    one = case(parameters={"groups": 2, "state_layout": "(d_in, d_out)"}, d_out=3)

    def round_robin(*, q, k, **arguments):
        q, k = (np.concatenate([x, x], axis=2) for x in (q, k))
        return fla_kernel.kda(q=q, k=k, **arguments)

    for wrong in (KDA._replace(state="(d_out, d_in)"), KDA._replace(call=round_robin)):
        rows = atlas_ref.check(one, source=lambda each, w=wrong: sources.respond(w, each))
        verdicts = {row.tensor: row.verdict for row in rows}
        assert verdicts["out/M"] == "WRONG"
        assert verdicts["out/y"] == "WRONG"


def test_cumulated_lengths_of_a_batch_are_one_behind_the_other():
    one = with_axes(case(reset=3), AXES["batch"])
    seen = []

    def looked(**arguments):
        seen.append(arguments)
        return fla_kernel.kda(**arguments)

    passes(one, KDA._replace(call=looked))
    (arguments,) = seen
    assert arguments["cu_seqlens"].tolist() == [0, 3, 4, 7, 8]
    assert arguments["q"].shape == (1, 8, 2, 3)
    assert arguments["initial_state"].shape == (4, 2, 3, 2)
    assert_close("row 1", arguments["q"][0, 4:], arguments["q"][0, :4] / 2, EXACT)


REFUSED = {
    "member": ("gla", {}, {}, {}, "it computes kda of rule dplr"),
    "norm": ("kda", {"k_norm": "l2"}, {}, {}, "parameters.k_norm l2: it computes none"),
    "steps": ("kda", {"steps": 2}, {}, {}, "parameters.steps 2: it computes 1"),
    "silent": (
        "retention",
        {},
        {"pulse": 2},
        {"member": "retention"},
        "in/active: it takes none",
    ),
    "packed": (
        "kda",
        {},
        {"reset": 3},
        {"arguments": {n: x for n, x in kernels.KDA.items() if n != "cu_seqlens"}},
        "in/reset: it takes none",
    ),
    "channels": (
        "kda",
        {},
        {},
        {"channels": False},
        "in/retain for each key channel: it takes one gate a head",
    ),
    "chunk": ("kda", {}, {"tokens": 6}, {"chunk": 4}, "6 tokens: it takes multiples of 4"),
    "state": ("kda", {}, {}, {"returns_state": False}, "in/M_bar: it returns no final state"),
    "setting": (
        "kda",
        {},
        {},
        {"settings": {"k_norm": "l2"}},
        "parameters.k_norm none: it computes l2",
    ),
}


@pytest.mark.clause("SRC-1")
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kernel_does_not_take_is_not_supported(name):
    member, parameters, request, changes, words = REFUSED[name]
    one = case(member, parameters=parameters, **request)
    (row,) = atlas_ref.check(
        one, source=lambda each: sources.respond(KDA._replace(**changes), each)
    )
    assert (row.tensor, row.verdict) == ("-", "NOT SUPPORTED")
    assert words in row.why


def test_a_case_of_another_rule_is_not_supported():
    from tests.support.casefiles import some

    header, inputs = some("delta")
    bare = {name.removeprefix("in/"): value for name, value in inputs.items()}
    with pytest.raises(NotImplementedError, match=r"^delta : it computes kda of rule dplr$"):
        KDA(header, bare)
