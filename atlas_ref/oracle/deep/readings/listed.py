"""Every mistake of a deep memory, in the order in which they are tried."""

from __future__ import annotations

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.backward import BACKWARD
from atlas_ref.oracle.deep.readings.events import EVENTS
from atlas_ref.oracle.deep.readings.function import FUNCTION
from atlas_ref.oracle.deep.readings.losses import LOSSES
from atlas_ref.oracle.deep.readings.momenta import MOMENTA
from atlas_ref.oracle.deep.readings.retained import RETAINED
from atlas_ref.oracle.deep.readings.tokens import TOKENS
from atlas_ref.oracle.deep.readings.write import WRITE
from atlas_ref.oracle.program.reading import Reading

#: Mistakes of the forward pass, of the outer gradient, and of what a user chooses of a write.
FORWARD: tuple[Reading, ...] = (*FUNCTION, *WRITE, *MOMENTA, *TOKENS, *EVENTS)
KNOBS: tuple[Reading, ...] = (*LOSSES, *RETAINED)
MISTAKES: tuple[Reading, ...] = (*FORWARD, *BACKWARD, *KNOBS)


def mistakes(context: DeepContext) -> tuple[Reading, ...]:
    """All of them, of which each says where it can be made (DEEPCASE-15)."""
    return MISTAKES
