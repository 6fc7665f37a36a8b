"""The faults of atlas-rnn's layers and models: a table of measurements.

The package is asked where its clone is on the path; ours under its preset and under the preset
causal always.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.survey import rnn_layers as layers
from benchmarks.survey import rnn_models as models
from benchmarks.survey.rnn_modules import Package, causal, ours, version

#: Words for a system without what is measured.
NONE = "-"


class Fault(NamedTuple):
    """A fault of the package.

    Attributes:
        words: what it does.
        measured: what the number is.
        of: system -> the number; None where it has no such thing.
        by: where ours reproduces it, and the erratum where a document states otherwise.
    """

    words: str
    measured: str
    of: Callable[[Any], str | None]
    by: str


def _erratum(name: str) -> str:
    return f"[{name}](errata.md#{name.lower()})"


FAULTS = (
    Fault(
        "a convolution of 4 taps has zeros on both sides, in every block",
        "first of 24 rows that the last token changes, memory alone",
        layers.looks_ahead,
        f"conv_padding centred; {_erratum('E-R06')}",
    ),
    Fault(
        "attention keeps the last keys of the call for all queries",
        "rows that the last of 24 tokens changes, window 8",
        layers.last_keys,
        f"attention_window last_keys_of_call; {_erratum('E-R06')}",
    ),
    Fault(
        "its softmax is in float32 in a float64 model, where the mask's value is infinite",
        "rows of 24 that are nan in float64, window 8",
        layers.not_finite,
        "not reproduced (ATTENTION-14)",
    ),
    Fault(
        "persistent rows fall under the mask of the last keys",
        "queries of 12 that no change of a persistent row moves, window 5, 3 rows",
        layers.persistent_unseen,
        f"persistent_visible right_aligned; {_erratum('E-R19')}",
    ),
    Fault(
        "positions begin at 0 in every call",
        "attention's row of a token decoded after 12, against one call",
        layers.restarted_positions,
        f"rotary_position restart; {_erratum('E-R20')}",
    ),
    Fault(
        "generation with a cache is another function",
        "logits of the second new token, against one call; MAG, MAL, LMM",
        models.cached,
        f"rotary_position, conv_state, reference_at_call; {_erratum('E-R20')}",
    ),
    Fault(
        "the memory of MAC is kept on the module",
        "logits of the same 16 ids called twice without a state",
        models.remembers_calls,
        f"mac_state committed; {_erratum('E-R16')}",
    ),
    Fault(
        "a training step of MAC goes back through the steps before it",
        "gradient of a second call by tokens of the first, over that by its own",
        models.reaches_back,
        f"mac_state committed; {_erratum('E-R21')}",
    ),
    Fault(
        "so that MAC cannot be trained",
        "step whose backward raises RuntimeError, 16 and 255 tokens",
        models.fails_at,
        f"{_erratum('E-R21')}",
    ),
    Fault(
        "a second `forward` of MAC's attention replaces the one with segments",
        "rows of the second segment that a token of the first changes",
        models.no_segments,
        "attention_window last_keys_of_call (BLOCKS-7)",
    ),
    Fault(
        "the long-term rows of MAC are N copies of one",
        "rank of the keys of 4 rows",
        models.equal_rows,
        "mac_context mean_of_call (BLOCKS-7)",
    ),
    Fault(
        "MAC returns a state before the one that it keeps",
        "tokens that the returned state has seen, after 16 and 32",
        models.returned_state,
        "not reproduced",
    ),
    Fault(
        "the error's reference is the memory at the start of the call",
        "a memory's reads, token by token against one call of 24",
        layers.depends_on_calls,
        f"reference_at_call renewed; {_erratum('E-R01')}, {_erratum('E-R08')}",
    ),
    Fault(
        "the memory is clamped at the end of a call",
        "largest entry of S after a call of values a thousand times as long",
        layers.clamped,
        "state_clamp 100",
    ),
    Fault(
        "the eps of RMSNorm is the epsilon of the dtype",
        "a row of rms 1e-3 in float32, against float64",
        layers.eps_of_the_dtype,
        "norm_eps machine",
    ),
    Fault(
        "keys have length sqrt(d), where Titans 4.4 has 1",
        "squared length of a key of 64 entries at the start",
        layers.long_keys,
        "head_norm rms; l2 gives 1",
    ),
    Fault(
        "the convolution is before the projection, without SiLU; Titans 4.4 has both after it",
        "a memory layer's results of one, against the other",
        layers.convolution_first,
        "conv_place before_projection, conv_activation none",
    ),
    Fault(
        "MAG mixes attention and memory by a gate from the token",
        "gate_mix against a sigmoid(m), norm(a) norm(m) and a + g m of the same branches",
        models.other_mixes,
        f"mag gate_mix; {_erratum('E-G05')}",
    ),
    Fault(
        "persistent tokens never reach the memory, which Titans Eqs 26 and 29 put before both",
        "change of the memory of MAG when they change",
        layers.persistent_apart,
        "persistent_kind key_value; prepended reaches it (BLOCKS-9)",
    ),
    Fault(
        "no class takes the arguments that its README prints",
        "the printed calls of MAG, MAL and LMM",
        models.printed_calls,
        f"{_erratum('E-R07')}",
    ),
    Fault(
        "training shifts its data twice",
        "tokens of a row of 256 that are predicted; the number that weighs its mean",
        models.shifted_twice,
        "not reproduced (MODEL-5)",
    ),
    Fault(
        "momentum cannot be turned off where memories are trained",
        "`use_momentum` without the flag `--use-momentum` and with it",
        models.momentum_flag,
        "not reproduced",
    ),
    Fault(
        "the models' training script saves nothing",
        "how often it reads its flag `--save-path`",
        models.unread_path,
        "not reproduced",
    ),
    Fault(
        "`generate` leaves the model in evaluation mode",
        "in training mode after it",
        models.left_in_eval,
        "not reproduced: ours have no mode",
    ),
    Fault(
        "the feed-forward called GEGLU gates by SiLU",
        "its results, against those with gelu",
        layers.no_geglu,
        "ff_activation silu",
    ),
    Fault(
        "models of blocks with RMSNorm begin and end with LayerNorm",
        "a normed row before the head, against RMSNorm",
        layers.norm_of_models,
        "model_norm layer",
    ),
)


@functools.cache
def found() -> dict[str, Any]:
    """The numbers of every fault, as JSON can hold them.

    Returns:
        version of the package, empty where its clone is not on the path, and rows.
    """
    name = version()
    package = Package() if name else None
    systems = {"package": package, "atlas-rnn": ours(), "causal": causal()}
    rows = []
    for fault in FAULTS:
        numbers = {
            system: NONE if run is None else fault.of(run) or NONE
            for system, run in systems.items()
        }
        rows.append({"fault": fault.words, "measured": fault.measured, **numbers, "by": fault.by})
    return {"version": name, "rows": rows}
