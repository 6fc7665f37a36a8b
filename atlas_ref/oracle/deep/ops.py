"""The ops of a deep memory in the order of the loop, each with its inputs (DEEPCASE-12)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep import parameters
from atlas_ref.oracle.deep.context import planned
from atlas_ref.oracle.deep.settings import Settings, rank, settings
from atlas_ref.parts.newton_schulz import coefficient_table

#: Name, inputs and clause of an op.
Listed = tuple[str, tuple[str, ...], str]

#: A value between x and M(x): its name, tensors and earlier values ("x" is the argument).
Piece = tuple[str, tuple[str, ...], tuple[str, ...]]

CLAUSE = {"linear": "MEMFUN-1", "mlp": "MEMFUN-7", "polynomial": "MEMFUN-4"}


def settings_of(case: Case) -> Settings:
    """The settings of a case."""
    k, v = case.inputs["in/k"], case.inputs["in/v"]
    own = parameters.config(case.header, k.shape[-1], v.shape[-1])
    own = own.replaced(convention=case.convention)
    return settings(own, parameters.names(own), parameters.network(own))


def pieces(f: Any) -> list[Piece]:
    """The values of a memory function in order (MEMFUN-3)."""
    added = ("x",) if f.with_input else ()
    if f.kind == "linear":
        return [("y", ("W",), ("x",))]
    if f.kind == "mlp":
        listed: list[Piece] = []
        s = "x"
        for i in range(1, f.depth):
            listed += [(f"a_{i}", (f"W_{i}",), (s,)), (f"s_{i}", (), (f"a_{i}",))]
            s = f"s_{i}"
        listed.append(("o", (f"W_{f.depth}",), (s,)))
        if not f.residual_norm:
            return [*listed, ("y", (), ("o", *added))]
        return [*listed, ("normed", (), ("o",)), ("y", ("norm/gain",), ("normed", "x"))]
    inner = "compressed" if f.compressed else "normed"
    return [
        ("z", ("W_down",), ("x",)),
        ("features", (), ("z",)),
        ("normed", ("feature_norm/gain", "feature_norm/bias"), ("features",)),
        *([("compressed", ("W_compress",), ("normed",))] if f.compressed else []),
        ("a", ("W_in",), (inner,)),
        *([("b", ("W_value",), (inner,))] if f.gated else []),
        ("s", (), ("a", "b") if f.gated else ("a",)),
        ("o", ("W_out",), ("s",)),
        ("e", ("W_up",), ("o",)),
        ("y", ("read_norm/gain", "read_norm/bias", "read_scale"), ("e", *added)),
    ]


def listed(case: Case) -> list[Listed]:
    """The ops that some token of a case computes, writes before reads."""
    s = settings_of(case)
    writes = planned(s, case.inputs).writes
    return [*(_of_write(case, s) if writes else []), *_of_read(case, s)]


def _kept(f: Any, piece: str) -> bool:
    """Whether the hand gradient reads a value (MEMFUN-6)."""
    if f.kind == "mlp":
        return piece.startswith(("a_", "s_")) or (piece == "o" and f.residual_norm)
    return piece != "y"


def _clause(f: Any, piece: str) -> str:
    return "MEMFUN-5" if piece == "s" or piece.startswith("s_") else CLAUSE[f.kind]


def _tensor(s: Settings, name: str, when: str) -> str:
    """The source of a tensor of the function: a fast one at some time, or one of the case."""
    return f"W/{name}[{when}]" if name in s.fast else f"in/memory/{name}"


def _of_write(case: Case, s: Settings) -> list[Listed]:
    f, inputs = s.function, case.inputs
    when = "t-1" if s.c.reference == "running" else "start"
    decays = ("in/retain",) if s.c.decay == "before_error" and "in/retain" in inputs else ()
    ops: list[Listed] = []
    for name, tensors, sources in pieces(f):
        reads = tuple("in/k[t-j]" if each == "x" else f"write/{each}" for each in sources)
        own = tuple(_tensor(s, each, when) for each in tensors)
        ops.append((f"write/{name}", (*own, *reads, *(decays if own else ())), _clause(f, name)))
    ops.append(("residual", ("write/y", "in/v[t-j]"), "DEEP-7"))
    between = tuple(f"write/{name}" for name, _, _ in pieces(f) if _kept(f, name))
    weights = tuple(n for n in ("in/window_weights", "in/window_gate") if n in inputs)
    own = tuple(n for n in ("in/threshold",) if n in inputs)
    ops.append(("cotangent", ("residual", *weights, *own), "DEEP-7"))
    gradients = tuple(f"gradient/{name}" for name in s.fast)
    matrices = tuple(_tensor(s, name, when) for name in s.fast)
    source: tuple[str, ...] = ("cotangent", *between, *matrices, "in/k[t-j]")
    ops += [(each, source, "DEEP-7") for each in gradients]
    h: tuple[str, ...] = ("in/step_size",) if "in/step_size" in inputs else ()
    if s.adaptive and h:
        ops.append(("norm", gradients, "DEEP-10"))
        h = (*h, "norm")
    clips: dict[str, list[Listed]] = {name: [] for name in s.fast}
    if s.clip != "none":
        for name, alone in zip(s.fast, gradients, strict=True):
            bounded = gradients if s.clip == "hard" else (alone,)
            clips[name] = [(f"clipped/{name}", bounded, "DEEP-9")]
    if s.deep_momentum is not None:
        ops += [each for name in s.fast for each in clips.pop(name)]
        ops += _of_network(case, s, h)
    for name in s.fast:
        ops += [*clips.get(name, ()), *_of_tensor(case, s, name, h)]
    return ops


def _carries(s: Settings, h: tuple[str, ...]) -> tuple[str, ...]:
    """What the rate of S comes from."""
    return h if s.c.rate in ("momentum", "both", "split") else ()


def _bounded(s: Settings) -> tuple[str, ...]:
    """The gradients within their bounds."""
    kind = "gradient" if s.clip == "none" else "clipped"
    return tuple(f"{kind}/{name}" for name in s.fast)


def _of_network(case: Case, s: Settings, h: tuple[str, ...]) -> list[Listed]:
    """The ops of a network in the place of the momentum (DEEP-37)."""
    f, u, ops = s.deep_momentum.function, _bounded(s), []
    before = {name: f"S/{name}[t-1]" for name in s.network}

    def through(place: str, tensors: dict[str, str]) -> list[Listed]:
        listed: list[Listed] = []
        for name, own, sources in pieces(f):
            values = tuple(f"{place}/{each}" for each in sources if each != "x")
            reads = (*values, *(u if "x" in sources else ()))
            clause = "DEEP-37" if name == "y" else _clause(f, name)
            listed.append((f"{place}/{name}", (*(tensors[n] for n in own), *reads), clause))
        return listed

    ops += through("learn", before)
    ops.append(("slope", ("learn/y", *u), "DEEP-38"))
    between = tuple(f"learn/{name}" for name, _, _ in pieces(f) if _kept(f, name))
    source = ("slope", *between, *before.values(), *u, "in/momentum", *_carries(s, h))
    ops += [(f"S/{name}", source, "DEEP-37") for name in s.network]
    return ops + through("move", {name: f"S/{name}" for name in s.network})


def _of_tensor(case: Case, s: Settings, name: str, h: tuple[str, ...]) -> list[Listed]:
    """The ops of one fast tensor behind its gradient."""
    g: str = _bounded(s)[s.fast.index(name)]
    ops: list[Listed] = []
    momentum = ("in/momentum",) if "in/momentum" in case.inputs else ()
    rate = s.c.rate
    b = h if rate in ("memory", "both") else ()
    if rate == "split":
        b = ("in/step_size_memory", *h[1:])
    carried = (f"S/{name}[t-1]", *momentum) if momentum else ()
    if s.deep_momentum is None:
        ops.append((f"S/{name}", (g, *carried, *_carries(s, h)), "DEEP-11"))
    ahead = (f"S/{name}", *((g, *momentum) if s.c.argument == "nesterov" else ()))
    ahead = ahead if s.deep_momentum is None else ("move/y",)
    source: tuple[str, ...] = ahead
    if rank(name) == 2 and s.c.has_newton_schulz:
        settings = s.c.newton_schulz_settings
        ops.append((f"X0/{name}", ahead, "NS-6"))
        count = len(coefficient_table(settings))
        ops += [(f"X{i + 1}/{name}", (f"X{i}/{name}",), "NS-1") for i in range(count)]
        again = settings.scale == "norm" or settings.guard == "return"
        source = (f"X{count}/{name}", *(ahead if again else ()))
    ops.append((f"U/{name}", source, "DEEP-12"))
    retain = ("in/retain",) if "in/retain" in case.inputs else ()
    ops.append((f"W/{name}", (f"W/{name}[t-1]", f"U/{name}", *b, *retain), "DEEP-13"))
    return ops


def _of_read(case: Case, s: Settings) -> list[Listed]:
    when = {"after": "t", "before": "t-1", "chunk_start": "start", "call_end": "end"}[s.c.read]
    ops: list[Listed] = []
    for name, tensors, sources in pieces(s.function):
        reads = tuple("in/q" if each == "x" else f"read/{each}" for each in sources)
        own = tuple(_tensor(s, each, when) for each in tensors)
        clause = "DEEP-15" if name == "y" else _clause(s.function, name)
        ops.append(("y" if name == "y" else f"read/{name}", (*own, *reads), clause))
    return ops


def tokens(case: Case, op: str) -> tuple[int, ...] | None:
    """Tokens whose writes compute an op, in order; None for an op of every token."""
    if op == "y" or op.startswith("read/"):
        return None
    return tuple(each.token for each in planned(settings_of(case), case.inputs).writes)
