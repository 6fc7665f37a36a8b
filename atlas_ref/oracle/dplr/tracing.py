"""The plain loop of rule dplr with a hook at every op of every token (DPLRCASE-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr import ops
from atlas_ref.oracle.dplr.readings import reading
from atlas_ref.oracle.dplr.readings.reading import Reading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array


def run(
    case: Case,
    inputs: Mapping[str, Array],
    take: Callable[..., Array],
    way: Arithmetic,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op of every token; its results (DPLRCASE-12).

    Args:
        take: called as take(op, t, compute), where compute() is the op at token t.
        chosen: readings of the case, which keep its ops.
    """
    names = {name for name, _, _ in ops.listed(case)}
    own = reading.read(case, inputs, chosen).own
    turned = own.state_layout == "(d_in, d_out)"

    def hook(op: str, t: int, compute: Callable[[], Array]) -> Array:
        if op not in names:
            return compute()
        if turned and op.rpartition("/")[2] in ops.MATRICES:
            return take(op, t, lambda: compute().swapaxes(-1, -2)).swapaxes(-1, -2)
        return take(op, t, compute)

    return reading.run(inputs, case, Rounding(way, _same, _same, None), chosen, take=hook)


def _same(x: Array) -> Array:
    return x
