"""Mutants of the compiled loop over tokens; `mutants.py` joins them to its list."""

from __future__ import annotations

from tests.mutants.mutant import Edited, Mutant

_COLUMNS, _LOOP, _BACKWARD = (
    f"atlas_ref.engine.compiled.{name}" for name in ("columns", "token_loop", "token_loop_backward")
)


def loop(*cases: str) -> tuple[str, ...]:
    return tuple(f"tests/mutants/test_loop_targets.py::test_token_loop[{case}]" for case in cases)


LOOP_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "loop-decays-its-own-write",
        "without momentum, a token's write decays at once",
        f"{_LOOP}:write",
        Edited("after = r * load(M, i) + k[i] * x", "after = r * (load(M, i) + k[i] * x)"),
        loop("after-plain", "before-decayed-plain"),
    ),
    Mutant(
        "loop-reads-before-the-write",
        "a read sees the momentum alone in the last token's write",
        f"{_LOOP}:write",
        Edited("y = y + q[i] * after", "y = y + q[i] * load(M, i) * r"),
        loop("after-momentum"),
    ),
    Mutant(
        "loop-error-not-decayed",
        "decay before the error is left out of the prediction",
        f"{_COLUMNS}:entry",
        Edited("r * p if before_error else p", "p"),
        loop("after-decayed-momentum", "after-decayed-window-plain"),
    ),
    Mutant(
        "loop-window-reversed",
        "the weight of a lag belongs to another key",
        f"{_COLUMNS}:products",
        Edited(
            "k0, k1 = keys[last - j], keys[last - j - 1]",
            "k1, k0 = keys[last - j], keys[last - j - 1]",
        ),
        loop("after-window-momentum", "before-window-plain"),
    ),
    Mutant(
        "loop-window-without-its-oldest",
        "with an odd window the oldest key is predicted by another",
        f"{_COLUMNS}:products",
        Edited("product(M, keys[last - c + 1])", "product(M, keys[last])"),
        loop("after-window-momentum"),
    ),
    Mutant(
        "loop-segment-from-the-next-state",
        "a segment is recomputed from the state after its first token",
        f"{_LOOP}:keep",
        Edited("if t % how.segment == 0:", "if t % how.segment == 1:"),
        loop("after-momentum", "after-window-plain"),
    ),
    Mutant(
        "loop-momentum-decays-twice-back",
        "the cotangent of the momentum meets the gate of its own token too",
        f"{_BACKWARD}:step_back",
        Edited("h = fS * load(dS, i) - b * d", "h = fS * (load(dS, i) - b * d)"),
        loop("after-momentum", "before-momentum"),
    ),
    Mutant(
        "loop-retain-from-the-state-after",
        "the cotangent of retain takes the next memory",
        f"{_BACKWARD}:through_token",
        Edited(
            "before, S_before, S = room.memories[n]", "before, S_before, S = room.memories[n + 1]"
        ),
        loop("after-plain", "after-window-momentum"),
    ),
    Mutant(
        "loop-rate-out-without-momentum",
        "without momentum the outer rate has no gradient",
        f"{_BACKWARD}:through_entries",
        Edited("db = db - (a * w) * (e * u)", "db = db + 0.0 * (e * u)"),
        loop("after-plain", "before-window-plain"),
    ),
    Mutant(
        "loop-retain-without-the-error",
        "decay before the error gives retain no gradient",
        f"{_BACKWARD}:through_entries",
        Edited("dr = dr + de * p", "dr = dr + 0.0 * p"),
        loop("after-decayed-momentum", "before-decayed-plain"),
    ),
    Mutant(
        "loop-key-not-asked",
        "the key gets no gradient from the prediction",
        f"{_BACKWARD}:backward",
        Edited("add_sums(now, load(zs, j), d_tokens.keys[last - j])", "pass"),
        loop("after-window-momentum", "before-window-plain"),
    ),
    Mutant(
        "loop-queries-with-the-key",
        "the gradients of a key's prediction and of a read change places",
        f"{_COLUMNS}:add_two_sums",
        Edited("x, out, x_2, out_2)", "x_2, out, x, out_2)"),
        loop("after-momentum", "before-decayed-plain"),
    ),
    Mutant(
        "loop-first-state-not-decayed",
        "the cotangent of the first momentum lacks the first gate",
        f"{_BACKWARD}:backward",
        Edited("scale(dS, fS)", "scale(dS, 1.0)"),
        loop("after-momentum", "before-window-momentum"),
    ),
)
