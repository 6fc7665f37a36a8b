"""Tensors of a case of a TNT: names, axes, ranges, and when each is needed (TNTCASE-3).

The reader enforces this table, `atlas-ref schema` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atlas_ref.conventions import effective
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.values import check_front, check_sizes, check_values, refuse_unknown
from atlas_ref.oracle.drawing import in_words
from atlas_ref.oracle.subjects import memory_tensors
from atlas_ref.oracle.tnt import parameters, projection
from atlas_ref.oracle.tnt.settings import Memory, Run, Settings, settings_of, stated_settings
from atlas_ref.oracle.tnt.tokens import TOKENS, has_momentum, of_memory
from atlas_ref.rules import FAMILY
from atlas_ref.types import bind_dims

STATE, BAR = "in/state/", "in/state_bar/"

#: Inputs of any case that belong to no memory.
SEQUENCE: dict[str, Tensor] = {
    "in/reset": Tensor("T", "0", mask=True),
    "in/state/position": Tensor("", "the start of a document", low=0, whole=True),
    "in/y_bar": Tensor("... T d_out", "no gradients"),
}

#: Where a memory starts; one with fewer leading axes is shared by rows (TNT-2).
FIRST = {"M0": "d_out d_in", "S0": "d_out d_in", "W_QK": "d_in d_in"}

#: What a call leaves of a memory, by the names of an ordinary case.
HELD = {
    "M": "... d_out d_in",
    "S": "... d_out d_in",
    "M_ref": "... d_out d_in",
    "window_k": "... n d_in",
    "window_v": "... n d_out",
    "window_gate_before": "... n",
    "window_residual": "... n d_out",
    "window_momentum": "... n d_out d_in",
    "P": "... d_in d_in",
    "P_size": "...",
    "P_keys": "... p d_in",
}

#: Tensors of a token in their order, each with its axes.
AXES = {
    name: tensor._replace(axes=tensor.axes.replace("gate", "... T"))
    for name in TOKENS
    for tensor in (memory_tensors.PROJECTED[f"in/{name}"][1],)
}


#: Tensors that all memories share, or that belong to none.
SHARED = {**{f"in/{name}": tensor for name, tensor in AXES.items()}, **SEQUENCE}


def state_tensors(s: Settings, m: Memory, own: Mapping[str, Any]) -> dict[str, str]:
    """Tensors that a state has of a memory: name -> "yes", or what stands in (TNT-11).

    Args:
        own: the tensors of the memory without its name.
    """
    c, found = s.c, {"M": "yes"}
    if has_momentum(m, own, s.rule):
        found["S"] = "yes"
    read = m.read in ("chunk_start", "none")
    if read or (m.base != "running" and FAMILY[s.rule].has_error):
        found["M_ref"] = "yes"
    if s.window > 1:
        found |= dict.fromkeys(("window_k", "window_v"), "an empty window")
        if "window_gate" in own:
            found["window_gate_before"] = "an empty window"
        if c.order == "momentum_then_window":
            found["window_momentum"] = "an empty window"
        elif c.window_at_boundary == "carry" and m.base != "running":
            found["window_residual"] = "an empty window"
    return found | dict.fromkeys(projection.names(m.projection), "yes")


def table(s: Settings, present: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Inputs that a case of these settings may hold, and the reasons against others."""
    allowed: dict[str, Tensor] = {}
    refused = {"in/active": "every token of a TNT writes"}
    known, against = _of_tokens(s, present)
    for name in TOKENS:
        key = f"in/{name}"
        if key in against:
            refused[key] = against[key]
        else:
            allowed[key] = AXES[name]._replace(need=known[key].need)
    allowed |= SEQUENCE
    for m in s.memories:
        own = of_memory(present, m.name)
        for name in TOKENS:
            key = f"in/{m.name}/{name}"
            if f"in/{name}" in against:
                refused[key] = against[f"in/{name}"]
            elif name == "momentum" and (why := _without_momentum(m)):
                refused[key] = why
            else:
                allowed[key] = AXES[name]._replace(need=f"in/{name}")
        _of_start(s, m, own, allowed, refused)
        _of_state(s, m, own, present, allowed, refused)
    if "in/momentum" in allowed:
        for m in s.memories:
            if why := _without_momentum(m):
                del allowed["in/momentum"]
                refused["in/momentum"] = why
                break
    return allowed, refused


def axes(case: Case) -> dict[str, tuple[str, ...]]:
    """Names of the axes of each input (TNTCASE-3)."""
    allowed, _ = table(settings_of(case), case.inputs)
    rank = case.inputs["in/k"].ndim - 2
    return {name: in_words(allowed[name].axes, x, rank) for name, x in case.inputs.items()}


def _of_tokens(s: Settings, present: Mapping[str, Any]) -> Any:
    """Tensors of tokens that an ordinary case of the rule has, and the reasons against others."""
    header = Run(s.rule, s.window, 1, 0)
    found = {f"in/{name}" for name in TOKENS if any(_ends(each, name) for each in present)}
    # a weight by token stands beside one by lag, in another memory perhaps
    found -= {"in/window_gate"}
    return memory_tensors.legal(header, effective(s.c, rule=s.rule), found)


def _ends(key: str, name: str) -> bool:
    return key == f"in/{name}" or (key.endswith(f"/{name}") and not key.startswith(STATE))


def _without_momentum(m: Memory) -> str:
    """Why a memory takes no momentum gate; "" where it takes one (TNT-3, TNT-5)."""
    if m.base == "previous":
        return f"base previous of {m.name} is defined without momentum"
    if m.sum == "inclusive":
        return f"sum inclusive of {m.name} is defined without momentum"
    return ""


def _of_start(
    s: Settings,
    m: Memory,
    own: Mapping[str, Any],
    allowed: dict[str, Tensor],
    refused: dict[str, str],
) -> None:
    """Where a memory starts (TNT-2, TNT-4)."""
    why = ""
    if not m.is_global and m.reset_momentum == "zero":
        why = "reset_momentum zero has none"
    elif m.reset_momentum != "learned" and not has_momentum(m, own, s.rule):
        why = "it needs a momentum gate"
    learned = m.projection.kind == "learned"
    reasons = {
        "M0": "",
        "S0": why,
        "W_QK": "" if learned else f"projection {m.projection.kind} has no matrix of its own",
    }
    needs = {"W_QK": "yes", "S0": "yes" if m.reset_momentum == "learned" else "0"}
    for name, reason in reasons.items():
        key = f"in/{m.name}/{name}"
        if reason:
            refused[key] = reason
        else:
            allowed[key] = Tensor(FIRST[name], needs.get(name, "0"))


def _of_state(
    s: Settings,
    m: Memory,
    own: Mapping[str, Any],
    present: Mapping[str, Any],
    allowed: dict[str, Tensor],
    refused: dict[str, str],
) -> None:
    """What a call before has left of a memory, and the cotangents of what this one leaves."""
    needs = state_tensors(s, m, own)
    resumes = "in/state/position" in present
    for name, axes in HELD.items():
        key = f"{STATE}{m.name}/{name}"
        if name not in needs:
            refused[key] = f"the state of {m.name} has none"
        elif not resumes:
            refused[key] = "it needs in/state/position"
        else:
            allowed[key] = Tensor(axes, needs[name])
        if name in ("M", "S"):
            bar = f"{BAR}{m.name}/{name}"
            if name in needs:
                allowed[bar] = Tensor(axes, "0")
            else:
                refused[bar] = f"the state of {m.name} has none"


def check_inputs(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in order; refuse a missing, misnamed or misshapen one (TNTCASE-3, TNTCASE-4).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    s = stated_settings(header)
    tensors, refused = table(s, inputs)
    _check_names(s, inputs, tensors, refused)
    sizes: dict[str, Any] = {"c": (s.window, "parameters.window")}
    ordered = {name: inputs[name] for name in tensors if name in inputs}
    for name, value in ordered.items():
        short = name.rpartition("/")[2]
        if short in FIRST and not name.startswith((STATE, BAR)):
            continue
        # windows and keys of one memory have nothing to do with those of another
        own = {f"{axis} of {name.split('/')[2]}" for axis in "np"} if name.startswith(STATE) else ()
        axes = tensors[name].axes
        for each in own:
            axes = " ".join(each.replace(" ", "_") if w == each[0] else w for w in axes.split())
        bind_dims(name, value.shape, axes, sizes)
        check_values(name, value, tensors[name])
    check_sizes(sizes, "np")
    for name, value in ordered.items():
        short = name.rpartition("/")[2]
        if short in FIRST and not name.startswith((STATE, BAR)):
            own_axes = tuple(sizes[axis][0] for axis in FIRST[short].split())
            check_front(name, value.shape, own_axes, sizes["..."][0])
            check_values(name, value, tensors[name])
    _check_history(s, ordered)
    return ordered


def _words(axes: str) -> str:
    return f"({', '.join(axes.split())})"


def _check_names(
    s: Settings,
    inputs: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    refused: Mapping[str, str],
) -> None:
    memories = ", ".join(m.name for m in s.memories)
    who = f"rule {parameters.NAME} with memories {memories}"
    refuse_unknown(inputs, tensors, refused, who)
    for name, tensor in tensors.items():
        if tensor.need != "yes" or name in inputs:
            continue
        if name.removeprefix("in/") not in TOKENS:
            raise ValueError(f"{name}: missing, axes {_words(tensor.axes)} are needed")
        for m in s.memories:  # a tensor of all may be that of each
            own = name.replace("in/", f"in/{m.name}/")
            if name in ("in/k", "in/v") or own not in inputs:
                raise ValueError(f"{name}: missing, axes {_words(tensor.axes)} are needed")
    for m in s.memories:
        _check_window(s, m, inputs)


def _check_window(s: Settings, m: Memory, inputs: Mapping[str, Any]) -> None:
    """Refuse part of a window from before, and two tensors of its weights (TNTCASE-3, TNTCASE-4)."""
    prefix, tensors = f"{STATE}{m.name}/", of_memory(inputs, m.name)
    held = [name for name in inputs if name.startswith(f"{prefix}window_")]
    for name in state_tensors(s, m, tensors) if held else ():
        if name.startswith("window_") and prefix + name not in inputs:
            raise ValueError(f"{prefix}{name}: missing beside {held[0]}")
    if "window_gate" in tensors and "window_weights" in tensors:
        raise ValueError(
            f"in/window_weights: not part of this case: window_gate of {m.name} stands in its place"
        )


def _check_history(s: Settings, inputs: Mapping[str, Any]) -> None:
    """Refuse more tokens from before than a window or a projection sees (TNT-11)."""
    position = inputs.get("in/state/position")
    if position is not None and int(position) < s.origin:
        raise ValueError(
            f"in/state/position: must be at least {s.origin}, parameters.origin, found "
            f"{int(position)}"
        )
    for m in s.memories:
        rows = inputs.get(f"{STATE}{m.name}/window_k")
        if rows is not None and rows.shape[-2] > s.window - 1:
            raise ValueError(
                f"{STATE}{m.name}/window_k: {rows.shape[-2]} tokens, at most window - 1 = "
                f"{s.window - 1} fit"
            )
        keys = inputs.get(f"{STATE}{m.name}/P_keys")
        if keys is not None and keys.shape[-2] > (most := projection.reach(m.projection)):
            raise ValueError(
                f"{STATE}{m.name}/P_keys: {keys.shape[-2]} keys, at most {most} are seen by a "
                f"projection window of {m.projection.window}"
            )


def numbers(header: Any, inputs: Mapping[str, Any]) -> int:
    """Numbers of the largest array that an evaluation makes (CASE-2)."""
    s = stated_settings(header)
    k, d_out = inputs["in/k"], inputs["in/v"].shape[-1]
    *lead, T, d_in = k.shape
    rows = math.prod(lead)
    spans = max(m.projection.window or 0 for m in s.memories)
    widest = max(d_in, d_out, s.window)
    matrices = (T // 64 + 2) * d_in * max(d_in, d_out)
    return int(rows * max((T + s.window + spans) * widest, matrices, s.window * d_in * d_out))


__all__ = [
    "AXES",
    "BAR",
    "FIRST",
    "HELD",
    "SEQUENCE",
    "STATE",
    "axes",
    "check_inputs",
    "numbers",
    "state_tensors",
    "table",
]
