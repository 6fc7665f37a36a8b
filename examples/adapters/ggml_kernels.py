"""Operations of ggml, the library under llama.cpp, on the CPU, by ctypes.

    pip install xllamacpp==2026.10.11549
    atlas-ref new dplr -o one.safetensors --parameter member=kda
    PYTHONPATH=examples/adapters atlas-ref check one.safetensors --impl ggml_kernels:kda --dtype float32

`GGML_LIBRARY` names another shared library, or several (libggml-base and libggml-cpu) as a search
path does. Without it the one inside xllamacpp is taken, which has all of ggml. Everything is
float32. A state of the delta rules is (d_out, d_in), that of the others (d_in, d_out). There is no
backward, and no packed sequence. Widths are filled up to multiples of 64; `kda._replace(pad=1)` asks
them as they are. `gated_delta` has the keys of shared heads repeated; `gated_delta_round_robin` has
them as ggml shares them, h mod H_k. Nothing is loaded before a kernel is called.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kernels import Kernel

Array = np.ndarray[Any, Any]
Pointer = ctypes.c_void_p

#: (operation, its tensors, what it takes behind them) -> all numbers of its result, one behind the
#: other: o, then the final state. The last axis of an array is the first of ggml.
Compute = Callable[[str, Sequence[Array], Sequence[float]], Array]

#: Types of what an operation takes behind its tensors.
OPERATIONS: Mapping[str, tuple[int, tuple[Any, ...]]] = {
    "ggml_gated_delta_net": (6, (ctypes.c_int64,)),
    "ggml_gated_linear_attn": (5, (ctypes.c_float,)),
    "ggml_rwkv_wkv6": (6, ()),
    "ggml_rwkv_wkv7": (7, ()),
}

#: What widths are filled up to multiples of: the operations take one width for keys and values, and
#: ggml_rwkv_wkv7 reads whole vectors of the machine, of up to so many numbers.
WIDTH = 64

#: Bytes beside the tensors: the graph, and what the operations work in.
ROOM = 16 << 20


class Parameters(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", Pointer),
        ("no_alloc", ctypes.c_bool),
    ]


def libraries() -> list[str]:
    """Paths of the shared libraries that have ggml.

    Raises:
        ImportError: there is none.
    """
    if named := os.environ.get("GGML_LIBRARY"):
        return named.split(os.pathsep)
    spec = importlib.util.find_spec("xllamacpp")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if found := sorted(Path(folder).glob("xllamacpp*.so")):
            return [str(found[0])]
    raise ImportError("ggml is not installed: pip install xllamacpp==2026.10.11549")


@functools.cache
def functions() -> dict[str, Any]:
    """The functions of ggml that are called here."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    loaded = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in libraries()]
    int64, size, int32 = ctypes.c_int64, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, tuple[Any, ...]] = {
        "ggml_cpu_init": (None,),
        "ggml_init": (Pointer, Parameters),
        "ggml_free": (None, Pointer),
        "ggml_new_tensor_4d": (Pointer, Pointer, int32, int64, int64, int64, int64),
        "ggml_get_data": (Pointer, Pointer),
        "ggml_nbytes": (size, Pointer),
        "ggml_new_graph": (Pointer, Pointer),
        "ggml_build_forward_expand": (None, Pointer, Pointer),
        "ggml_graph_compute_with_ctx": (int32, Pointer, Pointer, int32),
        **{
            name: (Pointer, Pointer, *[Pointer] * count, *last)
            for name, (count, last) in OPERATIONS.items()
        },
    }
    found = {}
    for name, (result, *arguments) in signatures.items():
        library = next(each for each in loaded if hasattr(each, name))
        found[name] = getattr(library, name)
        found[name].restype, found[name].argtypes = result, arguments
    found["ggml_cpu_init"]()
    return found


def compute(operation: str, tensors: Sequence[Array], numbers: Sequence[float] = ()) -> Array:
    """One operation of ggml on one thread, in a context of its own.

    Raises:
        ImportError: ggml is not installed.
        RuntimeError: ggml failed.
    """
    ggml = functions()
    bytes_needed = ROOM + 4 * sum(x.size * 4 for x in tensors)
    context = ggml["ggml_init"](Parameters(bytes_needed, None, False))
    try:
        node = ggml[operation](context, *(_tensor(ggml, context, x) for x in tensors), *numbers)
        graph = ggml["ggml_new_graph"](context)
        ggml["ggml_build_forward_expand"](graph, node)
        if status := ggml["ggml_graph_compute_with_ctx"](context, graph, 1):
            raise RuntimeError(f"{operation} ended with status {status}")
        pointer = ctypes.cast(ggml["ggml_get_data"](node), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (ggml["ggml_nbytes"](node) // 4,)).copy()
    finally:
        ggml["ggml_free"](context)


def _tensor(ggml: Mapping[str, Any], context: int, x: Array) -> int:
    """A float32 tensor of an array of at most four axes."""
    x = np.ascontiguousarray(x, np.float32)
    sizes = [*x.shape[::-1], *[1] * (4 - x.ndim)]
    tensor: int = ggml["ggml_new_tensor_4d"](context, 0, *sizes)
    ctypes.memmove(ggml["ggml_get_data"](tensor), x.ctypes.data, x.nbytes)
    return tensor


# -- operations as kernels ---------------------------------------------------------------------------


def _gated_delta_net(
    compute: Compute,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    initial_state: Array | None = None,
) -> tuple[Array, Array]:
    """ggml_gated_delta_net; g (B, T, H) or (B, T, H, K), logs, and one beta a head."""
    state = _square(k, v, initial_state)
    g = g if g.ndim == v.ndim else g[..., None]
    # the number behind the tensors is how many of the last states come back
    return _split(
        compute("ggml_gated_delta_net", [q, k, v, g, beta[..., None], state], [1]), v, state
    )


def _gated_linear_attn(
    compute: Compute,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    initial_state: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """ggml_gated_linear_attn; g (B, T, H, K) is the gate itself."""
    state = _square(k, v, initial_state)
    rows = [_tokens(x) for x in (k, v, q, g)]
    numbers = [k.shape[-1] ** -0.5 if scale is None else scale]
    return _split(compute("ggml_gated_linear_attn", [*rows, _flat(state)], numbers), v, state)


def _wkv6(
    compute: Compute,
    r: Array,
    k: Array,
    v: Array,
    u: Array,
    w: Array,
    initial_state: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """ggml_rwkv_wkv6; w (B, T, H, K) is the gate itself, and u (H, K) the bonus."""
    state = _square(k, v, initial_state)
    rows = [_tokens(x) for x in (k, v, _scaled(r, scale))]
    return _split(compute("ggml_rwkv_wkv6", [*rows, u, _tokens(w), _flat(state)], []), v, state)


def _wkv7(
    compute: Compute,
    r: Array,
    w: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    initial_state: Array | None = None,
) -> tuple[Array, Array]:
    """ggml_rwkv_wkv7; w (B, T, H, K) is the gate itself."""
    state = _square(k, v, initial_state)
    if k.shape[-1] % WIDTH:
        raise NotImplementedError(f"width {k.shape[-1]}: it takes multiples of {WIDTH}")
    rows = [_tokens(x) for x in (r, w, k, v, a, b)]
    return _split(compute("ggml_rwkv_wkv7", [*rows, _flat(state)], []), v, state)


def _rwkv7(compute: Compute, kk: Array, a: Array, **given: Any) -> tuple[Array, Array]:
    """The operation of RWKV-7 from its normed key and rate, as the model calls it."""
    return _wkv7(compute, a=-kk, b=kk * a, **given)


def _dplr(compute: Compute, r: Array, scale: float | None = None, **given: Any) -> Any:
    """The operation of RWKV-7 with any two factors."""
    return _wkv7(compute, r=_scaled(r, scale), **given)


def _scaled(r: Array, scale: float | None) -> Array:
    """Queries with their scale, which the operations of RWKV do not have."""
    return np.asarray(r * (r.shape[-1] ** -0.5 if scale is None else scale), np.float32)


def _square(k: Array, v: Array, state: Array | None) -> Array:
    """The first state (B, H, D, D), of zeros where there is none."""
    if k.shape[-1] != v.shape[-1]:
        raise NotImplementedError(
            f"width {v.shape[-1]} of values, {k.shape[-1]} of keys: it takes one width"
        )
    B, _, H, D = v.shape
    return np.zeros((B, H, D, D), np.float32) if state is None else state


def _tokens(x: Array) -> Array:
    """(B, T, H, D) as (B T, H, D): each row of a batch has the same number of tokens."""
    return x.reshape(-1, *x.shape[2:])


def _flat(state: Array) -> Array:
    return state.reshape(len(state), -1)


def _split(result: Array, v: Array, state: Array) -> tuple[Array, Array]:
    """o and the final state from the numbers of a result."""
    last = math.prod(v.shape)
    return result[:last].reshape(v.shape), result[last : last + state.size].reshape(state.shape)


class Operation(NamedTuple):
    """An operation as a member of rule dplr."""

    function: Callable[..., tuple[Array, Array]]
    arguments: Mapping[str, str]
    member: str
    how: Mapping[str, Any]

    def kernel(self, compute: Compute = compute) -> Kernel:
        """The kernel, by ggml or by another that carries out its operations."""
        call = functools.partial(self.function, compute)
        return Kernel(call, self.arguments, self.member, pad=WIDTH, **self.how)


_KV = {"k": "k", "v": "v", "initial_state": "M0"}
_DELTA = {**_KV, "q": "q", "g": "log_retain", "beta": "beta"}
_RWKV = {**_KV, "r": "q", "w": "retain"}
_SCALE = {"scale": "query_scale"}
_ROWS = {"state": "(d_out, d_in)"}
_HEAD = {**_ROWS, "channels": False}

#: Key heads as the operation shares them: value head h has key head h mod H_k.
_ROBIN = {"grouped": True, "settings": {"group_order": "round_robin"}}

TABLE = {
    "gated_delta": Operation(_gated_delta_net, _DELTA, "gated_delta", _HEAD),
    "gated_delta_round_robin": Operation(
        _gated_delta_net, _DELTA, "gated_delta", {**_HEAD, **_ROBIN}
    ),
    "kda": Operation(_gated_delta_net, _DELTA, "kda", _ROWS),
    "kda_round_robin": Operation(_gated_delta_net, _DELTA, "kda", {**_ROWS, **_ROBIN}),
    "gla": Operation(_gated_linear_attn, {**_KV, "q": "q", "g": "retain", **_SCALE}, "gla", {}),
    "rwkv6": Operation(_wkv6, {**_RWKV, "u": "bonus", **_SCALE}, "rwkv6", {}),
    "rwkv7": Operation(_rwkv7, {**_RWKV, "kk": "kk", "a": "a"}, "rwkv7", _ROWS),
    "dplr": Operation(_dplr, {**_RWKV, "a": "alpha", "b": "beta", **_SCALE}, "dplr", _ROWS),
}

gated_delta, kda = TABLE["gated_delta"].kernel(), TABLE["kda"].kernel()
gated_delta_round_robin = TABLE["gated_delta_round_robin"].kernel()
kda_round_robin = TABLE["kda_round_robin"].kernel()
gla = TABLE["gla"].kernel()
rwkv6, rwkv7 = TABLE["rwkv6"].kernel(), TABLE["rwkv7"].kernel()
dplr = TABLE["dplr"].kernel()
