"""Mutants of frequency levels: schedules, frozen tokens, documents, the weights of reads, the outer
loop's buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.mutants.mutant import Edited, Mutant

_OMEGA = "atlas_ref.rules.omega"
_SEQUENCE = "atlas_ref.rules.sequence"
_PULSE = "atlas_ref.levels.pulse"
_LEVEL = "atlas_ref.levels.level"
_CMS = "atlas_ref.levels.block"
_BUFFERS = "atlas_ref.levels.buffers"
_OUTER = "atlas_ref.levels.outer"
_LEARNED = "atlas_ref.levels.learned"
_NESTED = "atlas_ref.levels.nested"
_CASES = "atlas_ref.oracle.subjects.block"


def targets(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/mutants/test_level_targets.py::test_{name}" for name in names)


def beside(*names: str) -> tuple[str, ...]:
    """Tests of tests/levels, as file::name."""
    return tuple(f"tests/levels/test_{name.replace('::', '.py::test_')}" for name in names)


def _active_tokens_alone(run: Any) -> Any:
    """Evaluation token by token of active tokens alone: a frozen one leaves no trace."""

    def mutated(level: Any, projected: Any, phi: Any, state: Any, active: Any) -> Any:
        reads = []
        for t in range(len(active)):
            one = {
                name: None if value is None else value[:, :, t : t + 1]
                for name, value in projected.items()
            }
            after, y = run(level, one, phi, state, active[t : t + 1])
            state = after if active[t] else state
            reads.append(y)
        return state, np.concatenate(reads, axis=-2)

    return mutated


LEVEL_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "fires-one-step-late",
        "a level fires one step after its period",
        f"{_PULSE}:schedule",
        Edited("-step % period", "(1 - step) % period"),
        targets("schedule", "block[after]", "block[window]", "calls"),
    ),
    Mutant(
        "schedule-of-a-case-one-step-late",
        "the same in a case",
        f"{_CASES}:active",
        Edited(
            "schedule.first_step + np.arange(tokens)", "schedule.first_step - 1 + np.arange(tokens)"
        ),
        targets("case_schedule", "case_block"),
    ),
    Mutant(
        "first-step-forgotten",
        "the counter starts at 0 where it should start at 1",
        f"{_CMS}:Config.conductor",
        Edited("first_step=self.first_step,", ""),
        targets("first_step"),
    ),
    Mutant(
        "window-not-filled-while-frozen",
        "frozen tokens do not enter the window",
        f"{_LEVEL}:run_document",
        _active_tokens_alone,
        targets("block[window]"),
    ),
    Mutant(
        "window-not-filled-at-the-end",
        "the frozen tokens at the end of a call do not enter the window",
        f"{_OMEGA}:_rest",
        Edited("state.replaced(keys=keys, values=values, filled=", "state.replaced(filled="),
        targets("calls"),
    ),
    Mutant(
        "filled-counts-writes",
        "the window counts writes where it should count tokens",
        f"{_OMEGA}:_rest",
        Edited("filled = _filled(config, state)", "filled = state.filled"),
        targets("calls_renormalised"),
    ),
    Mutant(
        "step-reset-at-a-boundary",
        "the counter starts again where a document does",
        f"{_CMS}:run",
        Edited(
            "conductor=context.conductor.advanced(T)",
            "conductor=(config.conductor() if starts.any() else context.conductor).advanced(T)",
        ),
        targets("step_at_a_boundary", "calls"),
    ),
    Mutant(
        "boundary-returns-to-the-call",
        "a document starts from the memory of its call",
        f"{_LEVEL}:by_documents",
        Edited("    reads = []\n", "    reads = []\n    origin = state\n"),
        targets("calls"),
    ),
    Mutant(
        "boundary-keeps-the-window",
        "a document starts with the window of the one before",
        f"{_LEVEL}:by_documents",
        Edited(
            "state = level.rule.document(level.config, origin, state)",
            "state = state.replaced(M=origin.M)",
        ),
        targets("documents"),
    ),
    Mutant(
        "frozen-tokens-read-after-the-next-write",
        "the tokens between two writes read what the second of them leaves",
        f"{_SEQUENCE}:_each_token",
        Edited(
            'reads.close({"before": state.M, "chunk_start": state.reference}'
            ".get(convention.read))\n",
            "reads.state = rule.write(config, state, k, v, gate)\n",
        ),
        targets("block[after]", "block[before]", "block[window]"),
    ),
    Mutant(
        "read-before-as-after",
        "where a token reads before its write, it reads after it",
        f"{_SEQUENCE}:_each_token",
        Edited("reads.add(before, q)", "reads.add(state, q)"),
        targets("block[before]"),
    ),
    Mutant(
        "mask-forgotten-where-positions-move",
        "a level with spans writes at every token",
        f"{_LEVEL}:run_document",
        Edited("active=None if always else active", "active=None"),
        targets("block[spans]"),
    ),
    Mutant(
        "start-of-the-span-not-read",
        "a level that reads the memory of its span's start reads the newest one",
        f"{_SEQUENCE}:_each_token",
        Edited("before.replaced(M=before.reference)", "before"),
        targets("block[spans]"),
    ),
    Mutant(
        "weights-not-normalised",
        "reads are weighed by exp of the logits",
        f"{_CMS}:combining",
        Edited("weights = ops.softmax(logits)", "weights = ops.exp(logits)"),
        targets("block[after]", "gradient"),
    ),
    Mutant(
        "masked-counts-frozen-levels",
        "the masked weights are normalised over all levels",
        f"{_CMS}:combining",
        Edited(
            "e / ops.sum(e, axis=-1, keepdims=True)",
            "e / ops.sum(ops.exp(logits - top), axis=-1, keepdims=True)",
        ),
        targets("masked"),
    ),
    Mutant(
        "masked-is-softmax",
        "frozen levels count in the masked combination",
        f"{_CMS}:combining",
        Edited('config.combine == "softmax"', "True"),
        targets("masked"),
    ),
    Mutant(
        "case-masked-is-softmax",
        "the same in a case",
        f"{_CASES}:combine",
        Edited('header.combine == "masked"', "False"),
        targets("case_masked"),
    ),
    Mutant(
        "case-tokens-out-of-order",
        "tokens come back in the order of who is active",
        f"{_CASES}:combine",
        Edited("back = np.argsort(np.concatenate(order))", "back = np.arange(tokens)"),
        targets("case_masked"),
    ),
    Mutant(
        "forget-bias-raised",
        "slower levels raise the bias of a forget gate",
        f"{_LEVEL}:Level.init",
        Edited("-bias if negative else bias", "bias"),
        targets("biases"),
    ),
    Mutant(
        "biases-by-position",
        "biases follow the order of levels and not their periods",
        f"{_CMS}:Config.places",
        Edited("key=lambda i: self.periods[i]", "key=lambda i: i"),
        targets("biases"),
    ),
    Mutant(
        "buffer-keeps-what-it-applied",
        "a buffer is not emptied",
        f"{_BUFFERS}:add",
        Edited(
            "Pending(buffer.cleared(), total, health)",
            "Pending(buffer.replaced(total=total), total, health)",
        ),
        targets("buffer"),
    ),
    Mutant(
        "buffer-drops-the-last-gradient",
        "the gradient of the step that applies is left out",
        f"{_BUFFERS}:add",
        Edited(
            "Pending(buffer.cleared(), total, health)",
            "Pending(buffer.cleared(), buffer.total or total, health)",
        ),
        targets("buffer"),
    ),
    Mutant(
        "bound-without-the-period",
        "the health bound is 10 whatever the period",
        f"{_BUFFERS}:Buffer.bound.fget",
        Edited("self.threshold * math.sqrt(self.period)", "self.threshold"),
        targets("health"),
    ),
    Mutant(
        "optimiser-gets-the-last-gradient",
        "the optimiser of a level gets the gradient of its step and not the sum",
        f"{_OUTER}:update",
        Edited("own_state, moved, waits.applied, step", "own_state, moved, grads.levels[i], step"),
        beside("outer::levels_move_as_the_definition_in_loops[1]"),
    ),
    Mutant(
        "optimiser-state-forgotten",
        "the optimiser of a level starts anew at each of its moves",
        f"{_OUTER}:update",
        Edited("rule, own_state, moved", "rule, module_of(rule).init(rule, moved), moved"),
        beside("outer::levels_move_as_the_definition_in_loops[0]"),
    ),
    Mutant(
        "gate-derivative-turned-round",
        "the derivative of a gate has the other sign",
        f"{_LEARNED}:decided",
        Edited("hard + (gates - bare)", "hard - (gates - bare)"),
        beside("learned::the_derivative_of_a_gate_is_the_difference_that_its_write_makes"),
    ),
    Mutant(
        "window-not-filled-under-gates",
        "the window of a level under gates is empty where a call begins",
        f"{_LEARNED}:_document",
        Edited("state = rested.replaced(", "state = before.replaced("),
        beside("learned::calls_of_any_length_give_what_one_call_gives"),
    ),
    Mutant(
        "context-begins-where-documents-do",
        "a context begins with the level's own first memory",
        f"{_NESTED}:_run_level",
        Edited("origin.replaced(M=begins[first])", "origin"),
        beside("nested::nested_levels_are_their_definition_in_loops[nested-0]"),
    ),
    Mutant(
        "context-keeps-its-momentum",
        "a context begins with the momentum of the one before",
        f"{_NESTED}:_run_level",
        Edited("origin.replaced(M=begins[first])", "state.replaced(M=begins[first])"),
        beside("nested::nested_levels_are_their_definition_in_loops[nested-0]"),
    ),
    Mutant(
        "context-begins-one-token-early",
        "a context begins at the token that the slower level writes",
        f"{_NESTED}:ended",
        Edited("last[1:] = schedule[:-1]", "last[:] = schedule"),
        beside(
            "nested::nested_levels_are_their_definition_in_loops[nested-0]",
            "nested::a_fast_memory_is_the_slow_one_at_the_token_after_a_write_of_that",
        ),
    ),
)
