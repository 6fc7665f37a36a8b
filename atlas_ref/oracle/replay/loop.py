"""The sequential loop op by op, with a hook that returns the value of each op to the loop.

The hook of a trace returns the value that was computed. That of a replay returns the recorded
value, so that every op is evaluated on recorded inputs and the loop computes only the rest.
Specified in specs/replay.md (REPLAY-1 to REPLAY-6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import phi_of
from atlas_ref.oracle.family import family, steps
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.replay.ops import ops_of
from atlas_ref.oracle.replay.sequence import Take, prepare, traced_of
from atlas_ref.parts import feature_maps
from atlas_ref.parts.newton_schulz import coefficient_table
from atlas_ref.types import Array
from tape import ops


def run_ops(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    *,
    way: Arithmetic = PLAIN,
    begin: family.Begin | None = None,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op (CONV-29).

    Args:
        inputs: of the case, in the dtype of the arithmetic.
        take: called as take(op, t, compute, *args, counts=mask), where compute(*args) is the op;
            `counts` says which entries have an influence, None for all.
        way: how sums and products are rounded.
        begin: of a trace of chunks, called before each token with the state that it finds; it
            returns the one with which the loop goes on.
        chosen: readings of a subject that has its own (DEEPCASE-14).

    Returns:
        results by their names in files, matrices as the loop has them.
    """
    of_chunks = {} if begin is None else {"begin": begin}
    return traced_of(case).run(case, inputs, take, way, chosen, **of_chunks)


def of_memory(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
    *,
    begin: family.Begin | None = None,
) -> dict[str, Array]:
    """One memory, token by token, its matrices d_out x d_phi (CONV-29)."""
    way = way._replace(printed=True)

    def orthogonalise(S: Array, t: int) -> Array:
        settings = case.convention.newton_schulz_settings
        X = _iterates(settings, way, S, t, take)
        return steps.image(way, S, X, settings)

    structure, arrays = prepare(case, inputs, take, way)
    hook = _hook(case, take)
    found = family.run(structure, arrays, orthogonalise, way=way, hook=hook, begin=begin)
    momentum = {} if found.S is None else {"out/S": found.S}
    return {"out/y": found.y, "out/M": found.M, **momentum}


def _hook(case: Case, take: Take) -> family.Hook:
    """The hook at the ops that a trace of the case has, residuals by lag (OMEGA-4).

    An inactive token repeats M and S (OMEGA-11).
    """
    listed = {each.name for each in ops_of(case)}

    def hook(
        op: str, t: int, compute: Callable[..., Array], *arguments: Any, counts: Any = None
    ) -> Array:
        op = op.removeprefix("kept ")
        if op not in listed:
            return compute(*arguments)
        if op != "residual":
            return take(op, t, compute, *arguments)

        def by_lag() -> Array:
            return ops.flip(ops.where(counts, compute(*arguments), 0.0), -2)

        rows = take(op, t, by_lag, counts=counts[::-1])
        return ops.where(counts, ops.flip(rows, -2), 0.0)

    return hook


def of_newton_schulz(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """The rule newton_schulz: the iterates and the result, of matrices without tokens (CASE-10)."""
    settings, way = case.convention.newton_schulz_settings, way._replace(printed=True)
    S = inputs["in/G"]
    X = _iterates(settings, way, S, None, take)
    return {"out/X": take("X", None, steps.image, way, S, X, settings)}


def of_feature_map(
    case: Case,
    inputs: Mapping[str, Array],
    take: Take,
    way: Arithmetic,
    chosen: tuple[Any, ...] = (),
) -> dict[str, Array]:
    """The rule feature_map: rows lifted at once (CASE-11)."""
    settings, phi = case.header.feature_map, phi_of(inputs)
    return {"out/phi": take("phi", None, feature_maps.apply, settings, phi, inputs["in/x"])}


def _iterates(settings: Any, way: Arithmetic, S: Array, t: int | None, take: Take) -> Array:
    """X_n, with the hook at every iterate."""
    tall = settings.transpose == "tall" and S.shape[-2] > S.shape[-1]
    X = take("X0", t, steps.normalise, way, S, settings)
    for i, row in enumerate(coefficient_table(settings), start=1):
        X = take(f"X{i}", t, steps.polynomial, way, X, row, tall)
    return X
