"""The adapter of kernels: which parameters ask for something else, and what a sweep has to fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import members, parameters
from atlas_ref.oracle.sources import sources
from atlas_ref.oracle.sweep import draw
from tests.support import fla_kernel, member_kernel, swept_kernels

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"
sys.path.insert(0, str(ADAPTERS))
import kernels  # noqa: E402

KDA = kernels.Kernel(fla_kernel.kda, kernels.KDA, "kda", grouped=True)

GATES = {False: "none", True: "tensor", "heads": "heads"}

#: Norms of keys and queries, of a kernel whose member has none.
NORMED = {"q_norm": "l2", "k_norm": "l2"}


def case(own: dict[str, Any], changes: Any = None, **request: Any) -> Any:
    sizes = {"tokens": 3, "d_in": 3, "d_out": 2, "heads": 2, "seed": 5, "state": False}
    drawn = new(Request(rule="dplr", parameters=own, **(sizes | request)))
    inputs = {**drawn.inputs, **(changes or {})}
    kept = {name: value for name, value in inputs.items() if value is not None}
    return atlas_ref.make(drawn.header.plain(), kept, name="drawn")


def refusal(kernel: kernels.Kernel, one: Any) -> str:
    inputs = {name[3:]: value for name, value in one.inputs.items()}
    found: str = kernel.refusal(one.header.plain(), inputs)
    return found


@pytest.mark.parametrize("name", [None, *members.MEMBERS])
def test_the_defaults_of_a_member_are_those_of_the_rule(name: str | None) -> None:
    row = members.of(name)
    own = kernels.Defaults(
        decay=row.decay,
        query_scale=row.query_scale,
        norm=row.norm,
        erase=row.erase,
        gate=GATES[row.gated],
        second=row.second,
        floor=row.floor > 0,
    )
    assert own == kernels.MEMBERS[name]
    assert kernels.MEMBERS.keys() == {None, *members.MEMBERS}


def test_what_is_in_force_is_what_the_parameters_of_a_case_say() -> None:
    """Every parameter that is resolved, for every member: the adapter and the package agree."""
    for name in members.MEMBERS:
        said = parameters.Parameters(member=name)
        norms = {"q_norm": said.norm("in/q"), "k_norm": said.norm("in/k")}
        own = {"decay": said.order, "query_scale": said.scale, "norm_eps": said.norm_eps}
        same = ("steps", "query_groups", "group_order", "masked_read")
        own |= {each: getattr(said, each) for each in same}
        found = kernels.in_force(kernels.MEMBERS[name], {})
        assert found == {**norms, **own, "gate_normalizer": 1}
    # and every parameter is about layout, tolerance, or compared
    known = {*kernels.CONVERTED, *kernels.TOLERATED}
    assert known < set(parameters.Parameters.model_fields)


#: Parameters that state what the member does anyway, or that have no effect: member, parameters,
#: and tensors in place of the drawn.
SAID = {
    "decay": ("kda", {"decay": "before_error"}, {}),
    "decay without a gate": ("kda", {"decay": "after_error"}, {"in/retain": None}),
    "decay without an erase": ("gla", {"decay": "before_error"}, {}),
    "scale": ("kda", {"query_scale": "1/sqrt(d_in)"}, {}),
    "scale of rwkv7": ("rwkv7", {"query_scale": 1}, {}),
    "norms": ("kda", {"q_norm": "none", "k_norm": "none"}, {}),
    "norms of the member": ("qwen3_next", NORMED, {}),
    "eps": ("qwen3_next", {"norm_eps": 1e-6}, {}),
    "eps without a norm": ("kda", {"norm_eps": 1e-2}, {}),
    "eps of a floor": ("precond_gated_delta", {"norm_eps": 1e-2}, {}),
    "steps": ("kda", {"steps": 1}, {}),
    "groups": ("kda", {"groups": 1, "group_order": "blocks", "query_groups": 1}, {}),
    "masked reads without a mask": ("kda", {"masked_read": "zero"}, {}),
    "log_chunk": ("kda", {"log_chunk": 64}, {}),
    "state": ("kda", {"state_dtype": "bfloat16", "state_every": 4}, {}),
}


@pytest.mark.clause("SRC-1", "DPLRCASE-5")
@pytest.mark.parametrize("name", SAID)
def test_a_parameter_that_says_what_the_kernel_does_asks_for_nothing(name: str) -> None:
    member, own, changes = SAID[name]
    asked = KDA._replace(member=member, arguments=member_kernel.arguments(member))
    assert refusal(asked, case({"member": member, **own}, changes)) == ""


@pytest.mark.clause("SRC-1")
def test_a_scale_of_one_channel_is_1() -> None:
    own = {"member": "kda", "query_scale": 1}
    assert refusal(KDA, case(own, d_in=1)) == ""
    assert refusal(KDA, case(own)) == "parameters.query_scale 1: it computes 1/sqrt(d_in)"
    rows = atlas_ref.check(case(own, d_in=1), source=lambda each: sources.respond(KDA, each))
    assert {row.verdict for row in rows} == {"PASS"}


#: Parameters of the case, settings of the kernel, and what is said; empty where it is asked.
STATED = {
    "another decay": ({"decay": "after_error"}, {}, "decay after_error: it computes before_error"),
    "the kernel's": ({"decay": "after_error"}, {"decay": "after_error"}, ""),
    "not that of the case": ({}, {"decay": "after_error"}, "decay before_error: it computes after"),
    "a norm": ({"k_norm": "l2"}, {}, "k_norm l2: it computes none"),
    "one norm": ({"k_norm": "l2"}, NORMED, "q_norm none: it computes l2"),
    "both norms": (NORMED, NORMED, ""),
    "an epsilon": (NORMED | {"norm_eps": 1e-3}, NORMED, "norm_eps 0.001: it computes 1e-06"),
    "its epsilon": (NORMED | {"norm_eps": 1e-3}, NORMED | {"norm_eps": 1e-3}, ""),
    "steps": ({"steps": 2}, {}, "steps 2: it computes 1"),
    "a declaration": ({"log_chunk": 64}, {"log_chunk": 64}, ""),
    "round robin": ({"group_order": "round_robin"}, {}, "group_order round_robin: it computes b"),
    "without it": ({}, {"log_chunk": 64}, "log_chunk none: it computes 64"),
    "a formula": ({"gate_formula": "softplus"}, {}, "gate_formula softplus: it computes none"),
}


@pytest.mark.clause("SRC-1")
@pytest.mark.parametrize("name", STATED)
def test_a_parameter_that_says_something_else_is_refused_by_name(name: str) -> None:
    own, settings, words = STATED[name]
    found = refusal(KDA._replace(settings=settings), case({"member": "kda", **own}))
    assert found.startswith(f"parameters.{words}" if words else "")
    assert bool(found) == bool(words)


@pytest.mark.clause("SRC-1")
def test_how_a_program_takes_its_gates_is_taken_and_another_formula_is_not() -> None:
    asked = KDA._replace(arguments=kernels.KDA_WITH_GATE, settings={"gate_formula": "softplus"})
    own = {"member": "kda", "gate_formula": "softplus"}
    for said in ({"gate_dtype": "bfloat16"}, {"gate_softplus": "log(1+exp)"}):
        assert refusal(asked, case(own | said)) == ""
    words = "parameters.gate_threshold 20.0: it computes none"
    assert refusal(asked, case(own | {"gate_threshold": 20.0})) == words
    log_sigmoid = {"member": "kda", "gate_formula": "log_sigmoid"}
    asked = asked._replace(settings={"gate_formula": "log_sigmoid"})
    assert refusal(asked, case(log_sigmoid | {"gate_normalizer": 1.0})) == ""
    words = "parameters.gate_normalizer 16.0: it computes 1"
    assert refusal(asked, case(log_sigmoid | {"gate_normalizer": 16.0})) == words


# -- sweeps ----------------------------------------------------------------------------------------

#: Kernels, each of which answers every case of a sweep that fixes what it states.
SWEPT = {
    "packed": KDA,
    "a gate a head": KDA._replace(member="gated_delta", channels=False),
    "norms": KDA._replace(settings=NORMED | {"norm_eps": 1e-5}),
    "formula": KDA._replace(
        arguments=kernels.KDA_WITH_GATE, settings={"gate_formula": "softplus"}, channels=False
    ),
    "qkv": KDA._replace(
        member="linear_attn", arguments={n: n for n in "qkv"}, returns_state=False, chunk=4
    ),
    **{
        name: KDA._replace(member=name, arguments=member_kernel.arguments(name), rates="value")
        for name in members.MEMBERS
    },
}


@pytest.mark.clause("SWEEP-16")
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SWEPT)
def test_every_case_of_a_sweep_that_fixes_what_a_kernel_states_is_asked(name: str) -> None:
    kernel = SWEPT[name]
    choices = draw.checked_choices("dplr", kernel.sweep_settings())
    cases = [draw.draw_case("dplr", 0, number, choices).case for number in range(15)]
    assert {refusal(kernel, one) for one in cases} == {""}


@pytest.mark.clause("SWEEP-16")
def test_what_is_fixed_is_what_the_kernel_has() -> None:
    """Nothing more than needed: silent tokens, groups, layouts, packed sequences are drawn."""
    scale = (None, "1/sqrt(d_in)")
    none = (None, "none")
    bare = {
        "member": ("gated_delta",),
        "steps": (1,),
        "decay": (None, "before_error"),
        "query_scale": scale,
        "q_norm": none,
        "k_norm": none,
        "rates": ("row",),
        "gate": ("token", "log_token", "absent"),
    }
    assert SWEPT["a gate a head"].sweep_settings() == bare
    own = {"q": "q", "k": "k", "v": "v", "s": "query_scale", "n": "steps"}
    little = KDA._replace(member="simple_gla", arguments=own, returns_state=False, chunk=4)
    assert little.sweep_settings() == {
        "member": ("simple_gla",),
        "q_norm": none,
        "k_norm": none,
        "rates": ("row",),
        "gate": ("absent",),
        "state": ("absent",),
        "state_bar": (False,),
        "pulse": (1,),
        "reset": (0,),
        "tokens": (4, 8, 12),
    }
    assert (
        "tokens"
        not in little._replace(arguments=own | {"g": "log_retain"}, pad=(1, 1, 8)).sweep_settings()
    )
    settings = {"gate_formula": "bounded", "gate_lower_bound": -5.0, "log_chunk": 16}
    fixed = KDA._replace(arguments=kernels.KDA_WITH_GATE, settings=settings).sweep_settings()
    assert {name: fixed[name] for name in settings} == {n: (x,) for n, x in settings.items()}
    assert (fixed["gate"], fixed["pulse"]) == (("channel",), (1,))


@pytest.mark.clause("SWEEP-19")
@pytest.mark.parametrize("name", ["kda", "gated_delta"])
def test_a_sweep_for_a_kernel_compares_every_case(name: str, tmp_path: Path, cli: Any) -> None:
    """Of 100 cases each is asked; some of them are compared, by the command, and right."""
    kernel = getattr(swept_kernels, name)
    choices = draw.checked_choices("dplr", kernel.sweep_settings())
    cases = [draw.draw_case("dplr", 0, number, choices).case for number in range(100)]
    assert [refusal(kernel, one) for one in cases] == [""] * 100
    words = ["--for", f"tests.support.swept_kernels:{name}", "--fix", "dtype=float64", "--json"]
    ran = cli("sweep", "dplr", *words, "--cases", "10", "-o", tmp_path / "out")
    assert (ran.code, ran.json["counts"], ran.json["refused"]) == (0, {"PASS": 10}, {})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("state", "(K, V)", r"state: '\(K, V\)', needed is one of '\(d_in, d_out\)'"),
        ("member", "kdaa", "member: 'kdaa', needed is one of "),
        ("rates", "values", "rates: 'values', needed is one of 'row', 'value'"),
        ("head_axis", 3, "head_axis: 3, needed is 1 or 2"),
        ("chunk", 0, "chunk: 0, needed is a whole number from 1"),
        ("pad", -1, "pad: -1, needed is one, two or three whole numbers from 1"),
        ("pad", (64,), r"pad: \(64,\)"),
        ("pad", "64", "pad: '64'"),
    ],
)
def test_a_field_that_no_kernel_has_is_refused_by_name(field: str, value: Any, words: str) -> None:
    """In the row of a check, and where a sweep asks what to fix."""
    kernel, one = KDA._replace(**{field: value}), case({"member": "kda"})
    inputs = {name[3:]: x for name, x in one.inputs.items()}
    with pytest.raises(ValueError, match=words):
        kernel(one.header.plain(), inputs)
    with pytest.raises(ValueError, match=words):
        kernel.sweep_settings()
