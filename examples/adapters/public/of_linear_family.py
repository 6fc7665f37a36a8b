"""The PyTorch references of the linear family in fla-core, and the fallbacks of transformers.

    atlas-ref new dplr -o kda.safetensors --parameter member=kda --cotangent
    PYTHONPATH=examples/adapters/public atlas-ref check kda.safetensors --impl of_linear_family:kda --dtype float32

Each is a kernel of `kernels` for the member of rule dplr that it computes; nothing is converted but
layouts. fla-core's files are loaded by themselves, since the package imports Triton. All compute in
float32 on inputs of any dtype, but the chunk forms of delta and iplr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch_calls  # puts the folder of `kernels` on the path
from kernels import KDA, Kernel

#: Tokens of a chunk; cases are short, so that several chunks and a last one that is not full occur.
CHUNK = 4

QKV = {"q": "q", "k": "k", "v": "v"}
START = {"initial_state": "M0"}
LAST = {"output_final_state": True}
FIRST = {"head_axis": 1}
HEAD = {"channels": False}


class Reference(NamedTuple):
    """A public function, loaded when it is first asked.

    Attributes:
        label: as tables show it.
        package: as the package index calls it.
        source: file of the package, behind its name.
        load: the function of tensors.
        arguments, member, how: of `kernels.Kernel`.
        note: what else there is to know, for the table.
    """

    label: str
    package: str
    source: str
    load: Callable[[], Callable[..., Any]]
    arguments: Mapping[str, str]
    member: str
    how: Mapping[str, Any]
    note: str = ""

    def kernel(self) -> Kernel:
        """The kernel that `--impl` calls."""
        torch_calls.pytorch()
        kernels = torch_calls.imported("torch_kernels")
        found: Kernel = kernels.of(self.load(), self.arguments, member=self.member, **self.how)
        return found

    def __call__(self, case: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
        """Results of a case.

        Raises:
            NotImplementedError: the case asks for what the function does not compute.
        """
        return self.kernel()(case, inputs)


def _of_fla(
    label: str, place: str, function: str, arguments: Mapping[str, str], member: str, **how: Any
) -> Reference:
    """A reference of fla-core: `options` are of the function, `note` is for the table."""
    note, before = how.pop("note", ""), how.pop("before", lambda f: f)
    file = place.replace(".", "/")
    return Reference(
        label,
        "fla-core",
        f"ops/{file}.py",
        lambda: before(getattr(torch_calls.by_file(f"fla.ops.{place}"), function)),
        arguments,
        member,
        how,
        note,
    )


def _chunked(one: Reference, label: str, function: str, place: str = "", **how: Any) -> Reference:
    """The chunk form beside a recurrent one of fla-core."""
    own = one.source.removeprefix("ops/").removesuffix(".py").replace("/", ".")
    options = {**one.how.get("options", {}), "chunk_size": CHUNK}
    settings = {**one.how, "options": options, **how}
    return _of_fla(label, place or own, function, one.arguments, one.member, **settings)


def _without_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns reads alone."""
    return lambda **x: (function(**x), None)


def _first_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two states without the second."""

    def first(**x: Any) -> Any:
        y, (M, _) = function(**x)
        return y, M

    return first


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose scale has no default, with that of its kin."""
    return lambda **x: function(**{"scale": x["q"].shape[-1] ** -0.5, "g": None, **x})


linear_attn = _of_fla(
    "linear_attn, token by token",
    "linear_attn.naive",
    "naive_recurrent_linear_attn",
    QKV | START,
    "linear_attn",
    options=LAST,
)
linear_attn_normalized = _of_fla(
    "linear_attn with normalize, token by token",
    "linear_attn.naive",
    "naive_recurrent_linear_attn",
    QKV,
    "linear_attn_normalized",
    options=LAST | {"normalize": True},
    before=_first_state,
    note="of its two states the memory is compared",
)
retention = _of_fla(
    "retention, all tokens at once",
    "retention.naive",
    "naive_retention",
    QKV,
    "retention",
    returns_state=False,
    before=_without_state,
    **FIRST,
)
simple_gla = _of_fla(
    "simple_gla, token by token",
    "simple_gla.naive",
    "naive_recurrent_simple_gla",
    QKV | START | {"g": "log_retain"},
    "simple_gla",
    options=LAST,
    **HEAD,
)
simple_gla_chunk = _chunked(simple_gla, "simple_gla, in chunks", "naive_chunk_simple_gla")
gla = _of_fla(
    "gla, token by token",
    "gla.naive",
    "naive_recurrent_gla",
    QKV | START | {"gk": "log_retain"},
    "gla",
    options=LAST,
)
rwkv6 = _of_fla(
    "rwkv6, token by token",
    "rwkv6.recurrent_naive",
    "naive_recurrent_rwkv6",
    QKV | START | {"w": "log_retain", "u": "bonus"},
    "rwkv6",
    options=LAST,
    **FIRST,
)
rwkv6_chunk = _of_fla(
    "rwkv6, in chunks",
    "rwkv6.chunk_naive",
    "naive_chunk_rwkv6",
    QKV | {"w": "log_retain", "u": "bonus"},
    "rwkv6",
    options={"chunk_size": CHUNK},
    settings={"query_scale": 1},
    returns_state=False,
    backward=False,
    chunk=CHUNK,
    before=_without_state,
    note="has no scale, where its recurrent form has $d_{in}^{-1/2}$; its backward is below",
    **FIRST,
)
delta = _of_fla(
    "delta_rule, token by token",
    "delta_rule.naive",
    "delta_rule_recurrence",
    QKV | START | {"beta": "beta"},
    "delta",
    **FIRST,
)
delta_chunk = _chunked(
    delta._replace(arguments=QKV | {"beta": "beta"}),
    "delta_rule, in chunks",
    "delta_rule_chunkwise",
    chunk=CHUNK,
)
gated_delta = _of_fla(
    "gated_delta_rule, token by token",
    "gated_delta_rule.naive",
    "naive_recurrent_gated_delta_rule",
    QKV | START | {"g": "log_retain", "beta": "beta"},
    "gated_delta",
    options=LAST,
    **HEAD,
)
gated_delta_chunk = _chunked(
    gated_delta, "gated_delta_rule, in chunks", "naive_chunk_gated_delta_rule"
)
kda = _of_fla(
    "kda, token by token",
    "kda.naive",
    "naive_recurrent_kda",
    {name: tensor for name, tensor in KDA.items() if name != "cu_seqlens"},
    "kda",
    options=LAST,
    grouped=True,
)
kda_chunk = _chunked(kda, "kda, in chunks", "naive_chunk_kda", chunk=CHUNK)
gdn2 = _of_fla(
    "gdn2, token by token",
    "gdn2.naive",
    "naive_recurrent_gdn2",
    QKV | START | {"g": "log_retain", "b": "erase_gate", "w": "write_gate"},
    "gdn2",
    options=LAST,
)
gdn2_chunk = _chunked(gdn2, "gdn2, in chunks", "naive_chunk_gdn2")
gated_delta_product = _of_fla(
    "gated_delta_product, token by token",
    "gated_delta_product.naive",
    "naive_recurrent_gated_delta_product",
    QKV
    | START
    | {"g": "log_retain", "beta": "beta", "cu_seqlens": "cu_seqlens"}
    | {"num_householder": "steps", "scale": "query_scale"},
    "gated_delta_product",
    options=LAST,
    before=_scaled,
    **HEAD,
)
comba = _of_fla(
    "comba, token by token",
    "comba.naive",
    "naive_recurrent_comba",
    QKV | START | {"p": "erase_key", "g": "log_retain", "beta": "beta"},
    "comba_decay_before_erase",
    options=LAST,
    note="another rule than its chunk form and its op",
    **HEAD,
)
comba_chunk = _chunked(
    comba._replace(member="comba_decay_after_erase", note=""),
    "comba, in chunks",
    "naive_chunk_comba",
)
iplr = _of_fla(
    "iplr, token by token",
    "generalized_delta_rule.iplr.naive",
    "iplr_recurrence",
    QKV | START | {"alpha": "alpha", "beta": "beta"},
    "iplr",
    **FIRST,
)
iplr_chunk = _chunked(iplr, "iplr, in chunks", "iplr_chunkwise", chunk=CHUNK)
dplr = _of_fla(
    "dplr, token by token",
    "generalized_delta_rule.dplr.naive",
    "dplr_recurrence",
    QKV | START | {"alpha": "alpha", "beta": "beta", "gk": "log_retain"},
    "dplr",
    **FIRST,
)
dplr_chunk = _chunked(dplr, "dplr, in chunks", "dplr_chunkwise", chunk=CHUNK)

_GATED = {"query": "q", "key": "k", "value": "v", "g": "log_retain", "beta": "beta"}
_PLAIN = {"use_qk_l2norm_in_kernel": False, "initial_state": None, **LAST}
_NORMED = {**_PLAIN, "use_qk_l2norm_in_kernel": True}


def _of_transformers(label: str, model: str, function: str, member: str, **how: Any) -> Reference:
    place = f"transformers.models.{model}.modeling_{model}"
    return Reference(
        label,
        "transformers",
        f"models/{model}",
        lambda: getattr(torch_calls.imported(place), function),
        _GATED | START,
        member,
        how,
    )


qwen_gated_delta = _of_transformers(
    "Qwen3-Next without norms, token by token",
    "qwen3_next",
    "torch_recurrent_gated_delta_rule",
    "gated_delta",
    options=_PLAIN,
    grouped=True,
    **HEAD,
)
qwen_gated_delta_chunk = _of_transformers(
    "Qwen3-Next without norms, in chunks",
    "qwen3_next",
    "torch_chunk_gated_delta_rule",
    "gated_delta",
    options={**_PLAIN, "chunk_size": CHUNK},
    grouped=True,
    **HEAD,
)
kimi_kda = _of_transformers(
    "Kimi-Linear without norms, token by token",
    "kimi_linear",
    "recurrent_kimi_delta_attention",
    "kda",
    options=_PLAIN,
)
kimi_kda_chunk = _of_transformers(
    "Kimi-Linear without norms, in chunks",
    "kimi_linear",
    "chunk_kimi_delta_attention",
    "kda",
    options={**_PLAIN, "chunk_size": CHUNK},
)
qwen3_next = _of_transformers(
    "Qwen3-Next, token by token",
    "qwen3_next",
    "torch_recurrent_gated_delta_rule",
    "qwen3_next",
    options=_NORMED,
    grouped=True,
    **HEAD,
)
qwen3_next_chunk = _of_transformers(
    "Qwen3-Next, in chunks",
    "qwen3_next",
    "torch_chunk_gated_delta_rule",
    "qwen3_next",
    options={**_NORMED, "chunk_size": CHUNK},
    grouped=True,
    **HEAD,
)
kimi_linear = _of_transformers(
    "Kimi-Linear, token by token",
    "kimi_linear",
    "recurrent_kimi_delta_attention",
    "kimi_linear",
    options=_NORMED,
)
kimi_linear_chunk = _of_transformers(
    "Kimi-Linear, in chunks",
    "kimi_linear",
    "chunk_kimi_delta_attention",
    "kimi_linear",
    options={**_NORMED, "chunk_size": CHUNK},
)

#: Functions in the order of the table; those without norms are the same functions under one option.
NAMES = (
    *(
        "linear_attn",
        "linear_attn_normalized",
        "retention",
        "simple_gla",
        "simple_gla_chunk",
        "gla",
        "rwkv6",
        "rwkv6_chunk",
    ),
    *("delta", "delta_chunk", "gated_delta", "gated_delta_chunk", "kda", "kda_chunk"),
    *("gdn2", "gdn2_chunk", "gated_delta_product", "comba", "comba_chunk"),
    *("iplr", "iplr_chunk", "dplr", "dplr_chunk"),
    *("qwen3_next", "qwen3_next_chunk", "kimi_linear", "kimi_linear_chunk"),
)
