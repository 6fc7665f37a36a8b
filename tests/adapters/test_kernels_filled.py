"""The adapter of kernels where it fills up what a kernel lacks: widths, tokens, silent tokens, gates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.sources import sources
from tests.support import fla_kernel, member_kernel
from tests.support.close import assert_close, reordered

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import kernels  # noqa: E402

#: Members that have a token which leaves every state as it is.
STILL = [name for name in MEMBERS if name not in ("retention", "momentum_delta")]

#: Members with a beta for each value, those whose keys or whose beta are something else excluded.
NOT_FLOATS = ("in/reset", "in/active", "in/y_bar", "in/M_bar")


def case(member: str, changes: Any = None, parameters: Any = None, **request: Any) -> Any:
    """A small case with a first memory and cotangents of reads and of the last memory."""
    own = {"member": member, **(parameters or {})}
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "cotangent": True}
    sizes["state"] = False
    drawn = new(Request(rule="dplr", parameters=own, **(sizes | request)))
    inputs, draw = dict(drawn.inputs), np.random.default_rng(7)
    v, k = inputs["in/v"], inputs["in/k"]
    for name in ("M0", "M_bar"):
        inputs[f"in/{name}"] = draw.standard_normal((*v.shape[:-2], v.shape[-1], k.shape[-1]))
    inputs |= changes(inputs) if changes else {}
    kept = {name: value for name, value in inputs.items() if value is not None}
    return atlas_ref.make(drawn.header.plain(), kept, name="drawn")


def kernel(member: str, width: int = 1, tokens: int = 1, **how: Any) -> kernels.Kernel:
    """A kernel of these widths alone, behind an adapter that fills them up."""
    strict = member_kernel.Strict(member, width, tokens, **how.pop("parameters", {}))
    how.setdefault("pad", (width, width, tokens))
    return kernels.Kernel(
        strict, member_kernel.arguments(member), member, strict.gradients, grouped=True, **how
    )


def checked(one: Any, asked: kernels.Kernel, **options: Any) -> list[Any]:
    return atlas_ref.check(one, source=lambda each: sources.respond(asked, each), **options)


def passes(one: Any, asked: kernels.Kernel) -> None:
    """Every result and every gradient, all compared and right."""
    rows = checked(one, asked)
    assert [(r.tensor, r.verdict, r.error, r.why) for r in rows if r.verdict != "PASS"] == []
    floats = {f"grad/{name[3:]}" for name in one.inputs if name not in NOT_FLOATS}
    results = {row.tensor for row in rows}
    assert results == {"out/y", "out/M"} | floats


def refused(one: Any, asked: kernels.Kernel) -> str:
    (row,) = checked(one, asked)
    assert (row.tensor, row.verdict) == ("-", "NOT SUPPORTED")
    return str(row.why)


@pytest.mark.clause("SRC-6")
@pytest.mark.sample(8)
@pytest.mark.parametrize("member", MEMBERS)
def test_widths_are_filled_up_for_every_member_with_all_gradients(member: str) -> None:
    passes(case(member), kernel(member, 4))


@pytest.mark.clause("SRC-6")
@pytest.mark.sample(8)
@pytest.mark.parametrize("member", STILL)
def test_tokens_are_filled_up_where_one_stands_still(member: str) -> None:
    steps = 2 if member == "gated_delta_product" else 1
    one = case(member, parameters={"steps": steps})
    passes(one, kernel(member, 1, 4, parameters={"steps": steps}, settings={"steps": steps}))


@pytest.mark.clause("SRC-6")
@pytest.mark.sample(8)
@pytest.mark.parametrize("member", STILL)
def test_a_kernel_without_silent_tokens_is_asked_for_them(member: str) -> None:
    steps = 2 if member == "gated_delta_product" else 1
    one = case(member, parameters={"steps": steps}, pulse=2)
    assert "in/active" in one.inputs
    passes(one, kernel(member, parameters={"steps": steps}, settings={"steps": steps}))


@pytest.mark.clause("SRC-6", "DPLRCASE-27")
@pytest.mark.sample(6)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("member", STILL)
def test_rows_of_a_batch_are_silenced_by_their_own_masks(member: str, width: int) -> None:
    """Padded in front or behind, with steps, with key heads of several value heads."""
    steps = 2 if member == "gated_delta_product" else 1
    for side in ("left", "right"):
        one = case(member, parameters={"steps": steps}, batch=3, padded=side)
        assert one.inputs["in/active"].shape == (3, 5)
        settings = {"parameters": {"steps": steps}, "settings": {"steps": steps}}
        passes(one, kernel(member, width, **settings))


@pytest.mark.clause("SRC-1")
def test_resets_of_rows_and_other_reads_of_masked_tokens_are_refused_by_name() -> None:
    each = case("kda", batch=2, packed=True, padded="left")
    assert each.inputs["in/reset"].ndim == 2
    takes = kernel("kda")
    takes = takes._replace(arguments={**takes.arguments, "cu_seqlens": "cu_seqlens"})
    assert refused(each, takes) == "in/reset for each row of the batch: it takes one"
    zero = case("kda", parameters={"masked_read": "zero"}, pulse=2)
    assert refused(zero, kernel("kda")) == "parameters.masked_read zero: it computes memory"
    queries = case("kda", parameters={"query_groups": 2})
    assert refused(queries, kernel("kda")) == "parameters.query_groups 2: it computes 1"


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("member", ["gated_delta", "precond_kda"])
@pytest.mark.parametrize("axes", [1, 2])
def test_what_key_heads_have_is_repeated_for_value_heads(member: str, axes: int) -> None:
    """Keys, queries, and what makes a preconditioner of them; a batch or none in front."""
    one = case(member, parameters={"groups": 2}, heads=1, batch=axes)
    passes(one, kernel(member)._replace(grouped=False))


@pytest.mark.clause("SRC-1")
@pytest.mark.parametrize("member", ["retention", "momentum_delta"])
def test_no_token_stands_still_where_gates_are_fixed_or_a_momentum_goes_on(member: str) -> None:
    assert refused(case(member, pulse=2), kernel(member)) == "in/active: it takes none"
    why = "5 tokens: it takes multiples of 4, and none stands still"
    assert refused(case(member), kernel(member, 1, 4)) == why
    passes(case(member, tokens=4), kernel(member, 1, 4))


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("state", ["(d_in, d_out)", "(d_out, d_in)"])
@pytest.mark.parametrize("head_axis", [1, 2])
@pytest.mark.parametrize("grouped", [False, True])
def test_packed_groups_of_silent_tokens_are_filled_up_in_every_layout(
    state: str, head_axis: int, grouped: bool
) -> None:
    def rows(inputs: dict[str, Any]) -> dict[str, Any]:
        bare = ("in/reset", "in/active")
        return {n: x if n in bare else np.stack([x, 0.5 * x]) for n, x in inputs.items()}

    one = case("kda", rows, {"groups": 2}, reset=3, pulse=2, heads=1)
    seen = []

    def call(**x: Any) -> Any:
        seen.append((x["v"].shape, x["initial_state"].shape, x["cu_seqlens"].tolist()))
        return fla_kernel.kda(**x)

    options = {"head_first": head_axis == 1, "state_v_first": state == "(d_out, d_in)"}
    asked = kernels.Kernel(call, kernels.KDA, "kda", fla_kernel.by_complex_step, pad=(2, 3, 4))
    asked = asked._replace(head_axis=head_axis, state=state, options=options, grouped=grouped)
    passes(one, asked)
    shape, first, starts = seen[0]
    assert sorted(shape) == [1, 2, 3, 16]
    assert first == ((4, 2, 4, 3) if state == "(d_in, d_out)" else (4, 2, 3, 4))
    assert starts == [0, 3, 8, 11, 16]


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("stated", [None, 1, "1/sqrt(d_in)"])
@pytest.mark.parametrize("takes", [False, True])
def test_reads_have_the_scale_of_the_width_of_the_case(stated: Any, takes: bool) -> None:
    """The default of a kernel is of the width that was filled up; one that is an argument is given."""
    one = case("kda", parameters={} if stated is None else {"query_scale": stated})
    seen = []

    def scaled(scale: Any = None, **x: Any) -> Any:
        seen.append(scale)
        y, M = fla_kernel.kda(**x)
        return (y if scale is None else y * scale * x["k"].shape[3] ** 0.5), M

    def gradients(x: Any, *bars: Any) -> Any:
        return fla_kernel.by_complex_step(x, *bars, kernel=scaled)

    own = kernels.KDA | ({"scale": "query_scale"} if takes else {})
    asked = kernels.Kernel(scaled, own, "kda", gradients, grouped=True, pad=4)
    if stated == 1 and not takes:
        assert refused(one, asked) == "parameters.query_scale 1: it computes 1/sqrt(d_in)"
        return
    passes(one, asked)
    assert set(seen) == ({1.0 if stated == 1 else 3**-0.5} if takes else {None})


@pytest.mark.clause("SRC-6")
def test_numbers_of_16_bits_are_filled_up_as_they_are() -> None:
    kinds = set()

    def call(**x: Any) -> Any:
        kinds.update(f"{name} {a.dtype.name}" for name, a in x.items())
        wide = {name: a.astype(np.float32) for name, a in x.items()}
        return fla_kernel.kda(**wide)

    asked = kernels.Kernel(call, kernels.KDA, "kda", grouped=True, pad=4)
    rows = checked(case("kda", pulse=2), asked, dtype="bfloat16")
    assert {row.verdict for row in rows} == {"PASS"}
    assert {"q bfloat16", "v bfloat16", "g float32"} <= kinds


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("channels", [False, True])
def test_a_case_without_a_gate_is_one_of_gates_of_1(channels: bool) -> None:
    one = case("kda", lambda x: {"in/retain": None})
    assert not any("retain" in name for name in one.inputs)
    shapes = []

    def call(*, g: Any, **x: Any) -> Any:
        assert (g == 0).all()
        shapes.append(g.shape)
        wide = g if channels else np.repeat(g[..., None], 3, -1)
        return fla_kernel.kda(g=wide, **x)

    def gradients(x: Any, *bars: Any) -> Any:
        fixed = {name: a for name, a in x.items() if name != "g"}
        return fla_kernel.by_complex_step(fixed, *bars, kernel=lambda **y: call(g=x["g"], **y))

    passes(one, kernels.Kernel(call, kernels.KDA, "kda", gradients, channels=channels))
    assert set(shapes) == {(1, 5, 2, 3) if channels else (1, 5, 2)}


def of_values(inputs: dict[str, Any]) -> dict[str, Any]:
    """A step size for each value in place of one for each row."""
    drawn = np.random.default_rng(3).uniform(0.2, 0.9, inputs["in/v"].shape)
    return {"in/beta": drawn}


@pytest.mark.clause("SRC-1", "DPLR-18")
def test_a_step_size_of_each_value_is_refused_by_name_where_the_kernel_has_one_a_head() -> None:
    asked = kernel("delta")
    assert refused(case("delta", of_values), asked) == "in/beta for each value: it takes one a head"
    wide = asked._replace(rates="value", pad=4)
    passes(case("delta", of_values), wide)
    ranks = []

    def call(**x: Any) -> Any:
        ranks.append(x["beta"].ndim)
        return asked.call(**x)

    passes(case("delta"), wide._replace(call=call))  # one of a head is repeated
    assert ranks == [4]
    passes(case("iplr"), kernel("iplr", 4))  # its beta is a vector of keys


@pytest.mark.clause("SRC-6")
def test_what_is_filled_up_wrongly_is_wrong() -> None:
    """The negative twins: a kernel that writes at silent tokens, or reads what was filled up."""

    def forgets(**x: Any) -> Any:
        return fla_kernel.kda(**{**x, "g": x["g"] - 0.1})

    def shifted(**x: Any) -> Any:
        return fla_kernel.kda(**{**x, "k": np.roll(x["k"], 1, axis=-1)})

    for one, call in ((case("kda", pulse=2), forgets), (case("kda"), shifted)):
        rows = checked(one, kernels.Kernel(call, kernels.KDA, "kda", pad=4))
        assert "WRONG" in {row.verdict for row in rows}


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("rows", [1, 2])
def test_a_packed_sequence_that_starts_from_the_memory_of_another_is_wrong(rows: int) -> None:
    """The sequences of a row share a memory, so one row alone has a guard of another beside it."""

    def batched(inputs: dict[str, Any]) -> dict[str, Any]:
        return {n: x if n == "in/reset" else np.stack([x, 0.5 * x]) for n, x in inputs.items()}

    def of_first(*, initial_state: Any, **x: Any) -> Any:
        first = np.repeat(initial_state[:1], len(initial_state), axis=0)
        return fla_kernel.kda(initial_state=first, **x)

    def in_reverse(*, initial_state: Any, **x: Any) -> Any:
        return fla_kernel.kda(initial_state=initial_state[::-1], **x)

    def handed_over_first(**x: Any) -> Any:
        y, M = fla_kernel.kda(**x)
        return y, np.repeat(M[:1], len(M), axis=0)

    one = case("kda", batched if rows == 2 else None, reset=3)
    asked = kernels.Kernel(fla_kernel.kda, kernels.KDA, "kda", fla_kernel.by_complex_step)
    passes(one, asked)
    passes(one, asked._replace(gradients=fla_kernel.by_complex_step, pad=(4, 4, 8)))
    for call in (of_first, in_reverse, handed_over_first):
        found = checked(one, asked._replace(call=call, gradients=None))
        assert {row.tensor: row.verdict for row in found}["out/M"] == "WRONG"


@pytest.mark.clause("SRC-6")
def test_a_kernel_that_goes_on_from_the_sequence_before_is_one_without_resets() -> None:
    """The guard hands over the memory of the case, so that the mistake keeps its name."""

    def goes_on(*, cu_seqlens: Any, **x: Any) -> Any:
        y, last = fla_kernel.kda(**{**x, "initial_state": x["initial_state"][:1]})
        return y, np.repeat(last, len(cu_seqlens) - 1, axis=0)

    one = case("kda", reset=3)
    found = sources.respond(kernels.Kernel(goes_on, kernels.KDA, "kda"), one).tensors
    bare = {name: x for name, x in one.inputs.items() if name != "in/reset"}
    truth = atlas_ref.evaluate(atlas_ref.make(one.header.plain(), bare)).tensors
    for name in ("out/y", "out/M"):
        assert_close(name, found[name], truth[name], reordered(64))
