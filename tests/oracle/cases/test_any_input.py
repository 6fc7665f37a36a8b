"""Damaged cases: evaluated or refused, without another error, a warning or half an answer."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import atlas_ref
from atlas_ref.oracle.schema.schema import tensor_table
from tests.support.strategies import FEATURE_MAPS, WINDOW_WEIGHTS, cases, conventions, repeatable

HEADER = {
    "rule": ["omega", "titans_lmm", "delta", "hebbian", "newton_schulz", "feature_map"],
    "level": ["projected", "token"],
    "window": [1, 2, 3, 4],
    "span": [None, 1, 2, 9],
    "phase": [None, 0, 1, 5],
    "feature_map": FEATURE_MAPS,
    "window_weights": [None, *WINDOW_WEIGHTS],
    "form": ["kernel"],
    "chunk": [3],
}


def reshaped(value, how):
    """The same values in another shape or range, or others in the same shape."""
    if how == "shorter":
        return value[..., :-1]
    if how == "narrow":
        return value[:1]
    if how == "wide":
        return np.concatenate([value, value], axis=-1)
    if how == "flat":
        return value.reshape(-1)
    if how == "deeper":
        return value[None]
    if value.dtype.kind in "bu":
        return value
    with np.errstate(all="ignore"):
        return {
            "negative": -value,
            "zero": 0 * value,
            "huge": 1e200 * value,
            "tiny": 1e-310 * value,
            "float32": value.astype(np.float32),
        }[how]


HOW = ["shorter", "narrow", "wide", "flat", "deeper", "negative", "zero", "huge", "tiny", "float32"]


@st.composite
def damaged(draw):
    """A valid case with up to three changes anywhere."""
    case = draw(cases())
    header, tensors = case.header.plain(), dict(case.inputs)
    for _ in range(draw(st.integers(1, 3))):
        what = draw(st.sampled_from(["header", "convention", "drop", "add", "reshape"]))
        name = draw(st.sampled_from(sorted(tensors)))
        if what == "header":
            key = draw(st.sampled_from(sorted(HEADER)))
            header[key] = draw(st.sampled_from(HEADER[key]))
        elif what == "convention":
            header["convention"] = draw(conventions(header["rule"]))
        elif what == "drop" and len(tensors) > 1:
            del tensors[name]
        elif what == "add":
            tensors[draw(st.sampled_from(sorted(tensor_table())))] = tensors[name]
        elif what == "reshape":
            tensors[name] = reshaped(tensors[name], draw(st.sampled_from(HOW)))
    return header, tensors


@settings(repeatable, max_examples=150)
@given(damaged())
def test_a_damaged_case_is_evaluated_or_refused(parts):
    header, tensors = parts
    try:
        case = atlas_ref.make(header, tensors)
        results = atlas_ref.evaluate(
            case, grad=any(name.endswith(("y_bar", "X_bar", "phi_bar")) for name in case.inputs)
        )
    except atlas_ref.CaseError as error:
        line = str(error)
    else:
        line = ""
        assert results.tensors
        assert case.void == atlas_ref.make(header, tensors).void
        gradients = {
            name.replace("grad/", "in/", 1): value.shape
            for name, value in results.tensors.items()
            if name.startswith("grad/")
        }
        assert all(tensors[name].shape == shape for name, shape in gradients.items())
    assert "\n" not in line
