# ruff: noqa: E501  # one fault a line
"""Refused tensors of a case: missing, misshapen, misnamed, of another dtype, not finite, out of
range.
"""

from typing import Any

import numpy as np
import pytest

from tests.support.casefiles import GONE, some
from tests.support.refusal import Bad, case_of, refused_everywhere

WINDOW: dict[str, Any] = {"window": 3}
TITANS: dict[str, Any] = {"rule": "titans_lmm"}
DELTA: dict[str, Any] = {"rule": "delta"}
HEBBIAN: dict[str, Any] = {"rule": "hebbian"}
TOKEN: dict[str, Any] = {"level": "token"}
NS: dict[str, Any] = {"rule": "newton_schulz"}
MAP: dict[str, Any] = {"rule": "feature_map"}
LINEAR: dict[str, Any] = {"feature_map": {"kind": "linear"}}
SKETCH: dict[str, Any] = {"feature_map": {"kind": "sketch"}}
HASHED: dict[str, Any] = {"feature_map": {"kind": "tensor_sketch"}}
CARRY: dict[str, Any] = {"window": 3, "history": 2, "convention": "atlas-rnn"}
GATED: dict[str, Any] = {"window": 3, "history": 2, "window_gate": True}
LATER: dict[str, Any] = {"window": 3, "convention": {"order": "momentum_then_window"}}


def rows(*shape):
    return np.full(shape, 0.5)


def entry(name, at, value, **base):
    """The named tensor of a valid case with one entry replaced."""
    tensor = some(**base)[1][name].copy()
    tensor[at] = value
    return {name: tensor}


def as_type(name, kind):
    return {name: some()[1][name].astype(kind)}


def axes(name, words, base=None):
    return Bad(f"{name}: missing, axes {words} are needed", {}, {name: GONE}, base or {})


GATE = "(..., T) or (..., T, d_out)"

MISSING = [
    axes("in/k", "(..., T, d_in)"),
    axes("in/v", "(..., T, d_out)"),
    axes("in/q", "(..., T, d_in)"),
    axes("in/retain", GATE),
    axes("in/step_size", GATE),
    axes("in/step_size", GATE, DELTA),
    axes("in/step_size_memory", GATE, {"convention": "fla-momentum-delta"}),
    axes("in/window_k", "(..., n, d_in)", {"window": 3, "history": 2}),
    axes("in/window_v", "(..., n, d_out)", {"window": 3, "history": 2}),
    axes("in/window_residual", "(..., n, d_out)", CARRY),
    axes("in/window_gate_before", "(..., n)", GATED),
    axes("in/phi/W", "(d_phi, d_in)", LINEAR),
    axes("in/proj", "(d_sketch, d_phi)", SKETCH),
    axes("in/phi/H", "(d_hashes, d_buckets, d_in)", HASHED),
    axes("in/G", "(..., d_out, d_phi)", NS),
    axes("in/x", "(..., d_in)", MAP),
    axes("in/x", "(B, T, d_model)", TOKEN),
    *(
        axes(f"in/param/W_{each}", f"(H, d_{size}, d_model)", TOKEN)
        for each, size in (("K", "in"), ("V", "out"), ("Q", "in"))
    ),
    axes("in/param/W_retain", "(H, n_retain, d_kv)", TOKEN),
    axes("in/param/b_step_size", "(H, n_step_size)", TOKEN),
    axes("in/param/b_momentum", "(H, n_momentum)", TOKEN),
    axes("in/param/W_momentum", "(H, n_momentum, d_kv)", TOKEN),
    axes("in/param/window_logits", "(H, c)", TOKEN | {"window_weights": {"kind": "softmax"}}),
    axes("in/param/window_b2", "(H)", TOKEN | {"window_weights": {"kind": "gate"}}),
]

SHAPES = [
    Bad("in/k: shape (), expected axes (..., T, d_in)", {}, {"in/k": rows()}),
    Bad("in/q: shape (2, 5, 3) makes d_in 3, but in/k makes it 4", {}, {"in/q": rows(2, 5, 3)}),
    Bad("in/v: shape (4, 5, 3) makes leading axes (4,), but in/k makes it (2,)", {}, {"in/v": rows(4, 5, 3)}),
    Bad("in/v: shape (1, 5, 3) makes leading axes (1,), but in/k makes it (2,)", {}, {"in/v": rows(1, 5, 3)}),
    Bad("in/retain: shape (2, 4) makes T 4, but in/k makes it 5", {}, {"in/retain": rows(2, 4)}),
    Bad("in/retain: shape (2, 5, 2) makes d_out 2, but in/v makes it 3", {}, {"in/retain": rows(2, 5, 2)}),
    Bad("in/retain: shape (2, 5, 4) is a gate per key channel, as of KDA, GLA and the rule dplr, which scales columns of M; a case has one gate per token, (2, 5), or one per output dimension, (2, 5, 3)", {}, {"in/retain": rows(2, 5, 4)}),
    Bad("in/retain: shape (5,) makes leading axes (), but in/k makes it (2,)", {}, {"in/retain": rows(5)}),
    Bad("in/window_weights: shape (2, 5, 2) makes c 2, but window makes it 3", {}, {"in/window_weights": rows(2, 5, 2)}, WINDOW),
    Bad("in/M0: shape (2, 4, 3) makes d_out 4, but in/v makes it 3", {}, {"in/M0": rows(2, 4, 3)}),
    Bad("in/M0: shape (2, 3, 4) makes d_phi 3, but feature_map identity makes it 4", {}, {"in/M0": rows(2, 3, 4)}, {"convention": "fla-delta"}),
    Bad("in/M0: shape (2, 3, 4) makes d_phi 4, but feature_map polynomial makes it 14", {"feature_map": {"kind": "polynomial"}}),
    Bad("in/active: shape (2, 5), expected axes (T)", {}, {"in/active": np.ones((2, 5), bool)}),
    Bad("in/reset: shape (4,) makes T 4, but in/k makes it 5", {}, {"in/reset": np.zeros(4, bool)}),
    Bad("in/window_k: 3 initial window tokens, at most window - 1 = 2 fit", {}, {"in/window_k": rows(2, 3, 4), "in/window_v": rows(2, 3, 3)}, WINDOW),
    Bad("in/window_k: 1 initial window tokens, at most window - 1 = 0 fit", {}, {"in/window_k": rows(2, 1, 4), "in/window_v": rows(2, 1, 3)}),
    Bad("in/window_v: shape (2, 1, 3) makes n 1, but in/window_k makes it 2", {}, {"in/window_k": rows(2, 2, 4), "in/window_v": rows(2, 1, 3)}, WINDOW),
    Bad("in/window_residual: shape (2, 1, 3) makes n 1, but in/window_k makes it 2", {}, {"in/window_residual": rows(2, 1, 3)}, CARRY),
    Bad("in/window_momentum: 3 initial window tokens, at most ", {}, {"in/window_momentum": rows(2, 3, 3, 4)}, LATER),
    Bad("in/k: axis T has size 0, at least 1 is needed", {}, {key: rows(*shape) for key, shape in (
        ("in/k", (2, 0, 4)), ("in/q", (2, 0, 4)), ("in/v", (2, 0, 3)), ("in/y_bar", (2, 0, 3)),
        ("in/retain", (2, 0)), ("in/momentum", (2, 0)), ("in/step_size", (2, 0)),
    )}),
    Bad("in/G: axis d_out has size 0, at least 1 is needed", {}, {"in/G": rows(0, 3), "in/X_bar": GONE}, NS),
    Bad("in/proj: shape (19, 4) makes d_sketch 19, but d_in + d_in^2 makes it 20", {}, {"in/proj": rows(19, 4)}, SKETCH),
    Bad("in/phi/c: shape (4,) makes d_terms 4, but degree + 1 makes it 3", {}, {"in/phi/c": rows(4)}, HASHED),
    Bad("in/phi/H: shape (3, 4, 4) makes d_hashes 3, but degree makes it 2", {}, {"in/phi/H": rows(3, 4, 4)}, HASHED),
    Bad("in/phi/H: shape (2, 4, 3) makes d_in 3, but in/k makes it 4", {}, {"in/phi/H": rows(2, 4, 3)}, HASHED),
    Bad("in/proj: shape (8, 4) makes d_sketch 8, but 1 + d_in + d_buckets makes it 9", {}, {"in/proj": rows(8, 4)}, HASHED),
    Bad("in/phi/W: shape (4, 5) makes d_in 5, but in/k makes it 4", {}, {"in/phi/W": rows(4, 5)}, LINEAR),
    Bad("in/param/W_retain: shape (2, 1, 6) makes d_kv 6, but d_in + d_out makes it 7", {}, {"in/param/W_retain": rows(2, 1, 6)}, TOKEN),
    Bad("in/param/W_retain: 2 gates, expected 1 or one per output dimension, 3", {}, {"in/param/W_retain": rows(2, 2, 7), "in/param/b_retain": rows(2, 2)}, TOKEN),
    Bad("in/param/b_retain: shape (2, 3) makes n_retain 3, but in/param/W_retain makes it 1", {}, {"in/param/b_retain": rows(2, 3)}, TOKEN),
    Bad("in/param/W_Q: shape (3, 4, 6) makes H 3, but in/param/W_K makes it 2", {}, {"in/param/W_Q": rows(3, 4, 6)}, TOKEN),
    Bad("in/M0: shape (2, 3, 4), expected axes (B, H, d_out, d_phi)", {}, {"in/M0": rows(2, 3, 4)}, TOKEN),
]  # fmt: skip

NAMES = [
    *(Bad(f"{name!r}: tensor names start with in/, out/, grad/, trace/, trace_grad/ or chunk/", {}, {name: rows(2)}) for name in ("k", "", "IN/k", "input/k")),
    *(Bad(f"{name}: unknown tensor for rule omega, level projected; it has in/k, in/v, in/q, ", {}, {name: rows(2)}) for name in ("in/", "in/K", "in/g", "in/phi/W", "in/proj", "in/G", "in/[/b]")),
    Bad("in/k: unknown tensor for rule newton_schulz, level projected; it has in/G, in/X_bar", {}, {"in/k": rows(2)}, NS),
    Bad("in/G: unknown tensor for rule feature_map, level projected; it has in/x, in/phi_bar", {}, {"in/G": rows(2)}, MAP),
    *(Bad(f"{name}: not part of this case: {why}", {}, {name: rows(2)}, base) for name, why, base in (
        ("in/x", "it belongs to level token", {}),
        ("in/param/W_K", "it belongs to level token", {}),
        ("in/k", "level token computes it from in/x", TOKEN),
        ("in/window_gate", "level token computes it from in/x", TOKEN),
        ("in/retain", "gate none has no retain gate", {"convention": "atlas-eq40", "span": 2}),
        ("in/log_retain", "gate none has no retain gate", {"convention": "atlas-eq40", "span": 2}),
        ("in/step_size", "rate none has no step size", {"convention": "atlas-eq57"}),
        ("in/step_size_memory", "rate both has one rate; it belongs to rate split", {}),
        ("in/momentum", "delta has none; it belongs to omega and titans_lmm", DELTA),
        ("in/S0", "delta has none; it belongs to omega and titans_lmm", DELTA),
        ("in/S_bar", "delta has none; it belongs to omega and titans_lmm", DELTA),
        ("in/momentum", "hebbian has none; it belongs to omega and titans_lmm", HEBBIAN),
        ("in/S0", "hebbian has none; it belongs to omega and titans_lmm", HEBBIAN),
        ("in/step_size", "hebbian has none; it belongs to omega and titans_lmm and delta", HEBBIAN),
        ("in/window_k", "titans_lmm has none; it belongs to omega", TITANS),
        ("in/window_weights", "delta has none; it belongs to omega", DELTA),
        ("in/window_gate", "hebbian has none; it belongs to omega", HEBBIAN),
        ("in/M_ref", "the reference is not frozen and no read needs the start of a span", {}),
        ("in/window_residual", "it belongs to window_at_boundary carry with a frozen reference", WINDOW),
        ("in/window_residual", "it needs in/window_k and in/window_v", CARRY | {"history": 0}),
        ("in/window_gate_before", "no token brings a weight here", WINDOW),
        ("in/window_gate_before", "it needs in/window_k and in/window_v", GATED | {"history": 0}),
        ("in/window_momentum", "it belongs to order momentum_then_window", WINDOW),
        ("in/param/W_momentum", "delta has none; it belongs to omega and titans_lmm", TOKEN | DELTA),
    )),
    Bad("in/S0: not part of this case: it needs a momentum gate", {}, {"in/momentum": GONE}),
    Bad("in/retain: not part of this case: in/log_retain stands in its place", {}, {"in/log_retain": -rows(2, 5)}),
    Bad("in/momentum: not part of this case: in/log_momentum stands in its place", {}, {"in/log_momentum": -rows(2, 5)}),
    Bad("in/window_weights: not part of this case: in/window_gate stands in its place", {}, {"in/window_gate": rows(2, 5)}, WINDOW),
]  # fmt: skip

FLOATING = "float64, float32, bfloat16 or float16 is needed"
VALUES = [
    *(Bad(f"in/k: entries must be finite, found {value} at (0, 3, 1)", {}, entry("in/k", (0, 3, 1), value)) for value in (np.nan, np.inf, -np.inf)),
    Bad("in/M0: entries must be finite, found nan at (1, 0, 2)", {}, entry("in/M0", (1, 0, 2), np.nan)),
    Bad("in/y_bar: entries must be finite, found inf at (0, 0, 0)", {}, entry("in/y_bar", (0, 0, 0), np.inf)),
    Bad("in/param/W_K: entries must be finite, found nan at (0, 0, 0)", {}, entry("in/param/W_K", 0, np.nan, level="token"), TOKEN),
    Bad("in/G: entries must be finite, found nan at (0, 0, 0)", {}, entry("in/G", 0, np.nan, rule="newton_schulz"), NS),
    Bad("in/retain: entries must be at least 0, found -0.1 at (0, 0)", {}, entry("in/retain", (0, 0), -0.1)),
    Bad("in/retain: entries must be at most 1, found 1.0000000000000002 at (1, 4)", {}, entry("in/retain", (1, 4), np.nextafter(1, 2))),
    Bad("in/retain: entries must be at least 0, found -5e-324 at (0, 0)", {}, entry("in/retain", (0, 0), -5e-324)),
    Bad("in/momentum: entries must be at most 1, found 1.5 at (0, 2)", {}, entry("in/momentum", (0, 2), 1.5)),
    Bad("in/momentum: entries must be at least 0, found -1.0 at (0, 2)", {}, entry("in/momentum", (0, 2), -1.0)),
    Bad("in/step_size: entries must be at least 0, found -1e-300 at (1, 1)", {}, entry("in/step_size", (1, 1), -1e-300)),
    Bad("in/log_retain: entries must be at most 0, found 0.5 at (0, 0)", {}, {"in/retain": GONE, "in/log_retain": rows(2, 5)}),
    Bad("in/log_retain: entries must be finite, found -inf at (0, 0)", {}, {"in/retain": GONE, "in/log_retain": rows(2, 5) * -np.inf}),
    Bad("in/log_momentum: entries must be at most 0, found 0.5 at (0, 0)", {}, {"in/momentum": GONE, "in/log_momentum": rows(2, 5)}),
    *(Bad(f"in/k: dtype {kind}, {FLOATING}", {}, as_type("in/k", kind)) for kind in ("int64", "int8", "uint8", "bool", "complex64")),
    *(Bad(f"in/k: dtype {kind}, {FLOATING}", {}, {"in/k": (name, (2, 5, 4), bytes(40))}) for name, kind in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"))),
    Bad("in/k: dtype F8_E8M0, F64, F32, BF16 or F16 is needed", {}, {"in/k": ("F8_E8M0", (2, 5, 4), bytes(40))}),
    *(Bad(f"in/active: dtype {kind}, bool or uint8 is needed", {}, {"in/active": np.ones(5, kind)}) for kind in ("int64", "float32")),
    Bad("in/active: entries must be 0 or 1, found 2 at (2,)", {}, {"in/active": np.array([0, 1, 2, 0, 255], np.uint8)}),
    Bad("in/reset: entries must be 0 or 1, found 255 at (4,)", {}, {"in/reset": np.array([0, 1, 0, 0, 255], np.uint8)}),
    Bad("in/active: a byte of a BOOL tensor must be 0 or 1", {}, {"in/active": ("BOOL", (5,), b"\0\1\2\0\0")}),
]  # fmt: skip


def name_of(bad):
    return f"{bad.base.get('rule', '')} {bad.message}".strip()[:100]


@pytest.mark.clause(
    "CASE-4", "CASE-5", "CASE-6", "CASE-8", "CASE-10", "CASE-11", "CASE-16", "CASE-17"
)
@pytest.mark.parametrize("bad", [*MISSING, *SHAPES, *NAMES, *VALUES], ids=name_of)
def test_a_bad_tensor_is_refused_in_one_line(bad, cli, tmp_path):
    refused_everywhere(case_of(bad, tmp_path), bad.message, cli, tmp_path)
