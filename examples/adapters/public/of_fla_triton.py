"""The Triton kernels of fla-core as answers to cases of rule dplr: on a GPU, or by Triton's interpreter.

    atlas-ref new dplr -o kda.safetensors --parameter member=kda --cotangent
    PYTHONPATH=examples/adapters/public atlas-ref check kda.safetensors --impl of_fla_triton:kda --dtype float32

Each name is that of an op; `_recurrent` ends the names of those that go token by token. Without a
GPU the same sources run on NumPy, program by program (`interpreted`), so that their steps are
judged, and neither their speed nor their tensor cores; but not on bfloat16, which the interpreter
does not compute, and `delta` and `gated_delta_product` take nothing else. First states are passed
in float32, as the ops want. The chunk ops of preconditioned rules are left out: they scan by an
operator of their own, which the interpreter does not run.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch_calls  # puts the folder of `kernels` on the path
from kernels import KDA, Kernel

Function = Callable[..., Any]

QKV = {"q": "q", "k": "k", "v": "v"}
STATES = {"initial_state": "M0", "cu_seqlens": "cu_seqlens"}
GATED = QKV | STATES | {"g": "log_retain", "beta": "beta"}
HEAD = {"channels": False}
RWKV7 = {"r": "q", "w": "log_retain", "k": "k", "v": "v", "kk": "kk", "a": "a"} | STATES
PRECOND = {"g_atk": "log_retain_precond", "beta_atk": "beta_precond", "initial_A_state": "A0"}
UNNORMED = {"use_qk_l2norm_in_kernel": False}


FIRST_STATES = ("initial_state", "initial_A_state")


class Op(NamedTuple):
    """A kernel of fla-core, imported when it is first asked.

    Attributes:
        place, function: module of fla.ops and name in it.
        arguments, member, how: of `kernels.Kernel`.
        options: further arguments, as of `kernels.Kernel`.
        before: what makes the function of `arguments` of that of fla.
        backward: whether it has one.
    """

    place: str
    function: str
    arguments: Mapping[str, str]
    member: str
    how: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    before: Callable[[Function], Function] = lambda function: function
    backward: bool = True

    def kernel(self) -> Kernel:
        """The kernel that `--impl` calls."""
        device = place_of_kernels()
        kernels = torch_calls.imported("torch_kernels")
        found = getattr(import_module(f"fla.ops.{self.place}"), self.function)
        if device == "cpu":
            interpretable()
        kernel: Kernel = kernels.of(
            _with_wide_states(self.before(found)),
            self.arguments,
            member=self.member,
            device=device,
            backward=self.backward,
            options={"output_final_state": True, **self.options},
            **self.how,
        )
        return kernel

    def __call__(self, case: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
        """Results of a case.

        Raises:
            NotImplementedError: the case asks for what the op does not compute.
        """
        return self.kernel()(case, inputs)


@functools.cache
def place_of_kernels() -> str:
    """Where kernels run: cuda, or cpu, by Triton's interpreter, which is chosen before Triton loads."""
    found = "cuda" if torch_calls.pytorch().cuda.is_available() else "cpu"
    if found == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    _first_configuration_alone()
    return found


def interpretable() -> None:
    """Make what the kernels of fla do outside Triton's own names known to its interpreter.

    Its loops count in integers, which have no `to`, where compiled ones count in tensors; and it
    finds what it stands in for as attributes of `triton.language`, not under the names that a
    module gave them when it was imported.
    """
    language = import_module("triton.language")
    built_in = {
        getattr(language, name): name for name in dir(language) if _is_built_in(language, name)
    }
    for place, module in list(sys.modules.items()):
        if not place.startswith("fla.ops"):
            continue
        held = vars(module)
        held.setdefault("range", _tensors_of_range)
        for name, value in list(held.items()):
            if isinstance(value, types.FunctionType) and value in built_in:
                held[name] = _found_late(language, built_in[value])


def _is_built_in(language: Any, name: str) -> bool:
    return isinstance(getattr(language, name), types.FunctionType)


def _found_late(language: Any, name: str) -> Function:
    return lambda *x, **more: getattr(language, name)(*x, **more)


def _tensors_of_range(*bounds: Any) -> Iterator[Any]:
    tensor = import_module("triton.runtime.interpreter")._implicit_cvt
    for number in range(*map(int, bounds)):
        yield tensor(number)


def _first_configuration_alone() -> None:
    """Let each Triton kernel take its first configuration: the hundred others differ in speed alone,
    and compile for minutes.
    """
    autotuner = import_module("triton.runtime.autotuner").Autotuner
    made = autotuner.__init__

    def short(
        self: Any, fn: Any, arg_names: Any, configs: list[Any], *rest: Any, **more: Any
    ) -> None:
        made(self, fn, arg_names, configs[:1], *rest, **more)

    autotuner.__init__ = short


def _with_wide_states(function: Function) -> Function:
    """A function that gets its first states in float32, whatever the inputs are in."""

    def wide(**x: Any) -> Any:
        firsts = {name: x[name].float() for name in FIRST_STATES if x.get(name) is not None}
        return function(**{**x, **firsts})

    return wide


def _with_erased_and_written(function: Function) -> Function:
    """RWKV-7's function of a = -kk and b = kk a, of kk and a."""

    def of_kk(*, kk: Any, a: Any, **x: Any) -> Any:
        return function(**x, a=-kk, b=kk * a)

    return of_kk


linear_attn = Op(
    "linear_attn", "chunk_linear_attn", QKV | STATES, "linear_attn", options={"normalize": False}
)
linear_attn_recurrent = linear_attn._replace(function="fused_recurrent_linear_attn")
retention = Op("retention", "chunk_retention", QKV | STATES, "retention")
retention_recurrent = retention._replace(function="fused_recurrent_retention")
simple_gla = Op(
    "simple_gla", "chunk_simple_gla", QKV | STATES | {"g": "log_retain"}, "simple_gla", HEAD
)
simple_gla_recurrent = simple_gla._replace(function="fused_recurrent_simple_gla")
gla = Op("gla", "chunk_gla", QKV | STATES | {"g": "log_retain"}, "gla")
gla_recurrent = Op("gla", "fused_recurrent_gla", QKV | STATES | {"gk": "log_retain"}, "gla")
rwkv6 = Op(
    "rwkv6",
    "chunk_rwkv6",
    {"r": "q", "k": "k", "v": "v", "w": "log_retain", "u": "bonus"} | STATES,
    "rwkv6",
)
rwkv6_recurrent = rwkv6._replace(function="fused_recurrent_rwkv6")
delta = Op("delta_rule", "chunk_delta_rule", QKV | STATES | {"beta": "beta"}, "delta")
delta_recurrent = delta._replace(function="fused_recurrent_delta_rule")
gated_delta = Op("gated_delta_rule", "chunk_gated_delta_rule", GATED, "gated_delta", HEAD)
gated_delta_recurrent = gated_delta._replace(
    function="fused_recurrent_gated_delta_rule", backward=False
)
gated_delta_product = Op(
    "gated_delta_product",
    "chunk_gated_delta_product",
    GATED | {"num_householder": "steps", "scale": "query_scale"},
    "gated_delta_product",
    HEAD,
)
kda = Op("kda", "chunk_kda", KDA, "kda", {"grouped": True})
kda_recurrent = kda._replace(function="fused_recurrent_kda", backward=False)
gdn2 = Op(
    "gdn2",
    "chunk_gdn2",
    QKV | STATES | {"g": "log_retain", "b": "erase_gate", "w": "write_gate"},
    "gdn2",
)
gdn2_recurrent = gdn2._replace(function="fused_recurrent_gdn2", backward=False)
comba = Op("comba", "chunk_comba", GATED | {"p": "erase_key"}, "comba_decay_after_erase", HEAD)
comba_recurrent = comba._replace(function="fused_recurrent_comba", backward=False)
rwkv7 = Op("rwkv7", "chunk_rwkv7", RWKV7, "rwkv7", before=_with_erased_and_written)
rwkv7_recurrent = Op("rwkv7", "fused_mul_recurrent_rwkv7", RWKV7, "rwkv7", backward=False)
dplr = Op(
    "generalized_delta_rule",
    "chunk_dplr_delta_rule",
    QKV | STATES | {"a": "alpha", "b": "beta", "gk": "log_retain"},
    "dplr",
)
dplr_recurrent = dplr._replace(function="fused_recurrent_dplr_delta_rule", backward=False)
iplr = Op(
    "generalized_delta_rule",
    "chunk_iplr_delta_rule",
    QKV | STATES | {"a": "alpha", "b": "beta"},
    "iplr",
    backward=False,
)
iplr_recurrent = iplr._replace(function="fused_recurrent_iplr_delta_rule", backward=True)
precond_kda_recurrent = Op(
    "precond_kda",
    "fused_recurrent_precond_kda",
    KDA | PRECOND,
    "precond_kda",
    {"grouped": True, "second": True},
    UNNORMED,
    backward=False,
)
precond_gated_delta_recurrent = Op(
    "precond_gated_delta_rule",
    "fused_recurrent_precond_gated_delta_rule",
    GATED | PRECOND,
    "precond_gated_delta",
    {**HEAD, "second": True},
    backward=False,
)

NAMES = tuple(name for name, each in list(globals().items()) if isinstance(each, Op))
