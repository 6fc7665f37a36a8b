"""Operations of ggml as kernels: the conversions with operations in NumPy, and the library where it
is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.linear_attention import KINDS, Array, asked, linear_attention, verdicts

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "adapters"))
import ggml_kernels

PASSED = {"out/y": ("PASS", ""), "out/M": ("PASS", "")}
TABLE = ggml_kernels.TABLE


def turned(state: Array) -> Array:
    return np.swapaxes(state, -1, -2)


def stand_in(operation: str, tensors: Sequence[Array], numbers: Sequence[float] = ()) -> Array:
    """The operations in NumPy, from what their sources say."""
    if operation == "ggml_gated_delta_net":
        q, k, v, g, beta, state = tensors
        (count,) = numbers
        assert (count, g.shape[:3], beta.shape) == (1, v.shape[:3], (*v.shape[:3], 1))
        heads = np.arange(v.shape[2]) % k.shape[2]  # round robin
        y, last = linear_attention(
            q[:, :, heads],
            k[:, :, heads],
            v,
            turned(state),
            scale=k.shape[-1] ** -0.5,
            retain=np.exp(g),
            beta=beta[..., 0],
        )
        return np.concatenate([y.ravel(), turned(last).ravel()])
    *rows, state = tensors
    B, D = len(state), rows[0].shape[-1]
    shape = (B, -1, *rows[0].shape[1:])
    u = rows.pop(3) if operation == "ggml_rwkv_wkv6" else None
    rows = [x.reshape(shape) for x in rows]
    first = state.reshape(B, -1, D, D)
    if operation == "ggml_rwkv_wkv7":
        assert D % 64 == 0
        r, w, k, v, a, b = rows
        y, last = linear_attention(r, k, v, turned(first), scale=1.0, retain=w, erase=(a, b))
        return np.concatenate([y.ravel(), turned(last).ravel()])
    k, v, q, g = rows
    scale = 1.0 if u is not None else numbers[0]
    y, last = linear_attention(q, k, v, first, scale=scale, retain=g, bonus=u)
    return np.concatenate([y.ravel(), last.ravel()])


def case_of(name: str, kind: str = "heads", **request: Any) -> Any:
    """A case of a kernel of the table, in the order of key heads that it states."""
    member, _, robin = name.partition("_round")
    order = {"group_order": "round_robin"} if robin else {}
    request = {"heads": 4} | request if kind == "groups" else request
    channels = member != "gated_delta"
    return asked(member, kind, channels=channels, parameters=order, **request)


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLE)
def test_an_operation_gets_its_layout_and_its_results_come_back(name: str, kind: str) -> None:
    one = TABLE[name].kernel(stand_in)
    assert verdicts(case_of(name, kind, d_out=3), one) == PASSED
    assert verdicts(case_of(name, kind, first=False), one) == PASSED


@pytest.mark.clause("DPLRCASE-26")
@pytest.mark.parametrize("member", ["gated_delta", "kda"])
def test_key_heads_of_the_other_order_are_wrong(member: str) -> None:
    """The negative twin: blocks answered by the order of the operation."""
    one = TABLE[f"{member}_round_robin"].kernel(stand_in)._replace(settings={})
    assert verdicts(case_of(member, "groups"), one)["out/y"][0] == "WRONG"
    assert verdicts(case_of(member, "groups"), one._replace(grouped=False)) == PASSED


def test_a_state_of_the_other_layout_is_wrong() -> None:
    one = TABLE["kda"].kernel(stand_in)._replace(state="(d_in, d_out)")
    assert verdicts(case_of("kda"), one)["out/M"][0] == "WRONG"


@pytest.mark.clause("SRC-1")
def test_what_the_operations_do_not_take_is_not_supported() -> None:
    narrow = {name: each.kernel(stand_in)._replace(pad=1) for name, each in TABLE.items()}
    assert verdicts(case_of("kda"), narrow["kda"]) == PASSED
    found = [
        verdicts(case_of("kda", d_out=3), narrow["kda"]),
        verdicts(case_of("rwkv7"), narrow["rwkv7"]),
        verdicts(case_of("kda", reset=2), narrow["kda"]),
    ]
    assert [each["-"] for each in found] == [
        ("NOT SUPPORTED", "width 3 of values, 4 of keys: it takes one width"),
        ("NOT SUPPORTED", "width 4: it takes multiples of 64"),
        ("NOT SUPPORTED", "in/reset: it takes none"),
    ]


def test_without_the_library_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GGML_LIBRARY", raising=False)
    monkeypatch.setattr(ggml_kernels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install xllamacpp=="):
        ggml_kernels.libraries()
    monkeypatch.setenv("GGML_LIBRARY", "one.so:two.so")
    assert ggml_kernels.libraries() == ["one.so", "two.so"]


@pytest.mark.clause("SRC-6")
@pytest.mark.parametrize("name", TABLE)
def test_the_library_is_right_where_it_is_installed(name: str) -> None:
    try:
        ggml_kernels.libraries()
    except ImportError as error:
        pytest.skip(str(error))
    for kind in KINDS:
        one = getattr(ggml_kernels, name)
        assert verdicts(case_of(name, kind, d_out=3), one) == PASSED, kind
        assert verdicts(case_of(name, kind, first=False), one) == PASSED, kind
