"""The gated Delta rule of transformers (Qwen3-Next) and of opengdn, each token by token and in
chunks.

atlas-ref check cases/ --impl of_gated_delta:opengdn
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reading import Implementation
from torch_calls import Tensors, answer, at_zero, by_file, imported, logarithm

CHUNK = 4
SOURCE = "Gated DeltaNet (2412.06464) as DELTA-12 states it"


def _qwen(x: Tensors, case: Mapping[str, Any], function: str, **options: Any) -> Tensors:
    call = getattr(imported("transformers.models.qwen3_next.modeling_qwen3_next"), function)
    gates = {"g": logarithm(x, "retain"), "beta": x["step_size"]}
    y, M = call(
        x["q"],
        x["k"],
        x["v"],
        **gates,
        **options,
        initial_state=x.get("M0"),
        output_final_state=True,
    )
    return {"y": y, "M": M}


def _opengdn(
    x: Tensors, case: Mapping[str, Any], module: str, function: str, **options: Any
) -> Tensors:
    call = getattr(by_file(f"opengdn.{module}"), function)
    y, M = call(x["q"], x["k"], x["v"], x["retain"], x["step_size"], x.get("M0"), **options)
    return {"y": y, "M": M}


_QWEN = {"decay": "before_error", "layout": "transposed", "query_scale": "1/sqrt(d_in)"}

qwen = Implementation(
    "Qwen3-Next, token by token",
    "transformers",
    "delta",
    _QWEN,
    SOURCE,
    answer(
        lambda x, case: _qwen(x, case, "torch_recurrent_gated_delta_rule"),
        no_slope=at_zero("retain"),
    ),
    logs=("retain",),
)
qwen_chunk = qwen._replace(
    label=f"Qwen3-Next, chunks of {CHUNK}",
    answer=answer(
        lambda x, case: _qwen(x, case, "torch_chunk_gated_delta_rule", chunk_size=CHUNK),
        no_slope=at_zero("retain"),
    ),
)
opengdn = Implementation(
    "gated_delta, token by token",
    "opengdn",
    "delta",
    {"decay": "before_error"},
    SOURCE,
    answer(lambda x, case: _opengdn(x, case, "reference", "gated_delta")),
    dtypes=("float32", "float64"),
)
opengdn_chunk = opengdn._replace(
    label=f"gated_delta, chunks of {CHUNK}",
    answer=answer(
        lambda x, case: _opengdn(x, case, "chunkwise", "gated_delta_chunkwise", chunk_size=CHUNK)
    ),
)
