"""PyTorch on the same GPU: eager formulas, fla-core's kernels and atlas-rnn's cell, as calls of one
shape.

Inputs are our arrays, passed on without a copy where the layout allows it. fla-core takes (1, T,
heads, d), gates in log space and, but for the gated delta rule, no float32: there keys, values,
queries and rates are in bfloat16, retain and momentum are not. Its momentum delta rule has no
kernel of its own: what it calls its chunk form is PyTorch under a backward that runs it again.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from benchmarks import public
from benchmarks.gpu import eager
from benchmarks.gpu.devices import Array, Device
from benchmarks.gpu.plan import Candidate, Group
from benchmarks.gpu.storage import STORED
from benchmarks.public import Call, Missing, module


def call(
    candidate: Candidate, group: Group, arrays: dict[str, Array], bar: Array, device: Device
) -> Call:
    """A reference on given inputs.

    Raises:
        Missing: a package that is not there, or that cannot run on this device.
    """
    torch = module("torch")
    if device.torch is None:
        raise Missing("PyTorch sees no GPU")
    if candidate.peer == "eager":
        leaves = {name: device.tensor(array).requires_grad_() for name, array in arrays.items()}
        memory = group.memory
        return Call(
            leaves,
            lambda x: eager.reads(memory, x),
            device.tensor(bar),
            lambda y: y,
            lambda found: found,
        )
    if candidate.peer == "atlas-rnn":
        return _cell(candidate, group, arrays, bar, device)
    if not device.measured:
        raise Missing("its Triton kernels need a GPU")
    _tune_briefly()
    storage = getattr(torch, candidate.storage)
    leaves = {name: _theirs(device.tensor(array)) for name, array in arrays.items()}
    leaves = {
        name: (leaf.to(storage) if name in STORED else leaf.clone()).requires_grad_()
        for name, leaf in leaves.items()
    }
    reads = FLA[str(candidate.peer)]
    return Call(
        leaves,
        reads(),
        _theirs(device.tensor(bar)).to(storage),
        _ours,
        lambda found: {name: _ours(each) for name, each in found.items()},
    )


def results(made: Call, device: Device) -> tuple[Array, dict[str, Array]]:
    """Reads and gradients as arrays of ours, in our layout and in float32 or wider."""
    y, gradients = made.both()
    found = {name: device.array(_wide(each)) for name, each in gradients.items()}
    return made.plain(device.array(_wide(y.detach()))), made.gradients(found)


def _wide(tensor: Any) -> Any:
    return tensor.float() if tensor.element_size() < 4 else tensor


def _theirs(tensor: Any) -> Any:
    """(heads, T, ...) -> (1, T, heads, ...), contiguous."""
    return tensor.transpose(0, 1)[None].contiguous()


def _ours(array: Array) -> Array:
    return array[0].swapaxes(0, 1)


def _cell(
    candidate: Candidate, group: Group, arrays: dict[str, Array], bar: Array, device: Device
) -> Call:
    """The cell, on columns of its input in place of its projections (`benchmarks.public`)."""
    host = {name: device.host(array) for name, array in arrays.items()}
    options = {
        **candidate.options,
        "window": group.memory.config.window,
        "device": device.torch_name,
    }
    cell: Call = public.call("atlas-rnn", host, device.host(bar), options)
    return cell


@functools.cache
def _tune_briefly() -> None:
    """Let Triton time each configuration of a kernel for 20 ms, not for 100.

    There are some hundred configurations for each size.
    """
    with contextlib.suppress(Missing):
        testing = module("triton.testing")
        testing.do_bench = functools.partial(testing.do_bench, warmup=5, rep=20)


def _delta() -> Any:
    kernel = module("fla.ops.delta_rule").chunk_delta_rule

    def reads(x: dict[str, Any]) -> Any:
        return kernel(q=x["q"], k=x["k"], v=x["v"], beta=x["step_size"])[0]

    return reads


def _gated_delta() -> Any:
    kernel = module("fla.ops.gated_delta_rule").chunk_gated_delta_rule

    def reads(x: dict[str, Any]) -> Any:
        return kernel(q=x["q"], k=x["k"], v=x["v"], g=x["retain"].log(), beta=x["step_size"])[0]

    return reads


def _momentum_delta() -> Any:
    """The kernel without norms of keys, and with residuals under the memory before decay, as in our
    rule.
    """
    kernel = module("fla.ops.momentum_delta_rule").chunk_momentum_delta_rule

    def reads(x: dict[str, Any]) -> Any:
        return kernel(
            q=x["q"],
            k=x["k"],
            v=x["v"],
            log_alpha=x["retain"].log(),
            log_mu=x["momentum"].log(),
            eta=x["step_size"],
            beta=x["step_size_memory"],
            use_qk_l2norm_in_kernel=False,
            use_p_times_alpha=False,
        )[0]

    return reads


#: The function that loads each kernel, where a missing package is noticed.
FLA = {"fla delta": _delta, "fla gated delta": _gated_delta, "fla momentum delta": _momentum_delta}
