"""Headers that no case may have: the change to a valid one, and its refusal."""

from typing import Any

import numpy as np

from tests.support.casefiles import GONE
from tests.support.refusal import Bad

TITANS: dict[str, Any] = {"rule": "titans_lmm"}
DELTA: dict[str, Any] = {"rule": "delta"}
HEBBIAN: dict[str, Any] = {"rule": "hebbian"}
TOKEN: dict[str, Any] = {"level": "token"}
NS: dict[str, Any] = {"rule": "newton_schulz"}
MAP: dict[str, Any] = {"rule": "feature_map"}

HEADERS = {
    "schema 2": Bad("schema: this version reads 1, found 2", {"schema": 2}),
    "schema true": Bad("schema: this version reads 1, found true", {"schema": True}),
    "schema as a word": Bad("schema: this version reads 1, found '1'", {"schema": "1"}),
    "no schema": Bad("schema: missing", {"schema": GONE}),
    "no rule": Bad("rule: missing", {"rule": GONE}),
    "unknown rule": Bad("rule: must be 'omega', ", {"rule": "Omega"}),
    "unknown key": Bad(
        "winodw: unknown key; keys are schema, rule, level, window, ", {"winodw": 3}
    ),
    "the name of the key in Python": Bad(
        "schema_: unknown key; keys are schema, ", {"schema": GONE, "schema_": 1}
    ),
    "unknown level": Bad(
        "level: must be 'projected' or 'token', found 'tokens'", {"level": "tokens"}
    ),
    "unknown form": Bad("form: must be 'sequential', 'chunkwise', ", {"form": "parallel"}),
    "window 0": Bad("window: must be at least 1, found 0", {"window": 0}),
    "window as a fraction": Bad("window: must be an integer, found 3.0", {"window": 3.0}),
    "window as a word": Bad("window: must be an integer, found '3'", {"window": "3"}),
    "window true": Bad("window: must be an integer, found true", {"window": True}),
    "window null": Bad("window: must be an integer, found null", {"window": None}),
    "window of 31 digits": Bad(
        "atlas_ref: the integer 10000000000000000000... has more than 18 digits", {"window": 10**30}
    ),
    "span 0": Bad("span: must be at least 1, found 0", {"span": 0}),
    "chunk 0": Bad("chunk: must be at least 1, found 0", {"chunk": 0}),
    "phase -1": Bad("phase: must be at least 0, found -1", {"phase": -1}),
    "phase not below the span": Bad(
        "phase: must be below the span 4, found 4",
        {"span": 4, "phase": 4, "convention": {"reference": "chunk_start"}},
    ),
    "note as a number": Bad("note: must be a string, found 3", {"note": 3}),
    "trace as a word": Bad("trace: must be a list, found 'x'", {"trace": "x"}),
    "parameters for omega": Bad(
        "parameters: only rules deep_memory, tnt, dplr, recurrence, schedule, layer and "
        "the reserved rules ttl and qk_projection have them, this is omega",
        {"parameters": {}},
    ),
    "window weights at level projected": Bad(
        "window_weights: belongs to rule omega at level token", {"window_weights": {"kind": "ones"}}
    ),
    "window weights for delta": Bad(
        "window_weights: belongs to rule omega at level token",
        {"window_weights": {"kind": "ones"}},
        {},
        DELTA,
    ),
    "unknown window weights": Bad(
        "window_weights: kind 'hat' does not exist; kinds are ",
        {"window_weights": {"kind": "hat"}},
        {},
        TOKEN,
    ),
    "empty product": Bad(
        "window_weights.product: of: a product needs at least one kind",
        {"window_weights": {"kind": "product", "of": []}},
        {},
        TOKEN,
    ),
    "decay above 1": Bad(
        "window_weights.decay.base: must be at most 1, found 1.5",
        {"window_weights": {"kind": "decay", "base": 1.5}},
        {},
        TOKEN,
    ),
    "a map by its name": Bad(
        "feature_map: must be an object, found 'identity'", {"feature_map": "identity"}
    ),
    "a map without a kind": Bad("feature_map: kind: missing", {"feature_map": {}}),
    "unknown map": Bad(
        "feature_map: kind 'hat' does not exist; kinds are ", {"feature_map": {"kind": "hat"}}
    ),
    "unknown key of a map": Bad(
        "feature_map.elu.degree: unknown key", {"feature_map": {"kind": "elu", "degree": 2}}
    ),
    "degree 0": Bad(
        "feature_map.polynomial.degree: must be at least 1, found 0",
        {"feature_map": {"kind": "polynomial", "degree": 0}},
    ),
    "degree 101": Bad(
        "feature_map.polynomial.degree: must be at most 100, found 101",
        {"feature_map": {"kind": "polynomial", "degree": 101}},
    ),
    "sketch of degree 3": Bad(
        "feature_map.sketch.degree: must be 2, found 3",
        {"feature_map": {"kind": "sketch", "degree": 3}},
    ),
    "too few coefficients": Bad(
        "feature_map.polynomial: coefficients: 1 given, degree 2 needs a_0 .. a_2",
        {"feature_map": {"kind": "polynomial", "coefficients": [1]}},
    ),
    "a map for titans": Bad(
        "feature_map: titans_lmm has none, found elu", {"feature_map": {"kind": "elu"}}, {}, TITANS
    ),
    "a map for delta": Bad(
        "feature_map: delta has none, found elu", {"feature_map": {"kind": "elu"}}, {}, DELTA
    ),
    "a map for hebbian": Bad(
        "feature_map: hebbian has none, found elu", {"feature_map": {"kind": "elu"}}, {}, HEBBIAN
    ),
    "a map for newton_schulz": Bad(
        "feature_map: newton_schulz has none, found elu", {"feature_map": {"kind": "elu"}}, {}, NS
    ),
    "a window for titans": Bad(
        "window: titans_lmm looks at one token, found 2", {"window": 2}, {}, TITANS
    ),
    "a window for delta": Bad(
        "window: delta looks at one token, found 2", {"window": 2}, {}, DELTA
    ),
    "a window for hebbian": Bad(
        "window: hebbian looks at one token, found 2", {"window": 2}, {}, HEBBIAN
    ),
    "a window for newton_schulz": Bad(
        "window: the rule newton_schulz has no sequence", {"window": 1}, {}, NS
    ),
    "a level for feature_map": Bad(
        "level: the rule feature_map has no sequence", {"level": "projected"}, {}, MAP
    ),
    "a span for feature_map": Bad(
        "span: the rule feature_map has no sequence", {"span": 3}, {}, MAP
    ),
}

CONVENTIONS = {
    "a number": Bad(
        "convention: must be the name of a preset or an object of axes, found 3", {"convention": 3}
    ),
    "null": Bad(
        "convention: must be the name of a preset or an object of axes, found null",
        {"convention": None},
    ),
    "a list": Bad(
        "convention: must be the name of a preset or an object of axes, found []",
        {"convention": []},
    ),
    "unknown preset": Bad(
        "convention: preset 'atlas' does not exist; presets are spec, atlas-paper, ",
        {"convention": "atlas"},
    ),
    "unknown preset to change": Bad(
        "convention: preset 'atlas' does not exist; presets are ",
        {"convention": {"preset": "atlas"}},
    ),
    "preset as a number": Bad(
        "convention: preset 3 does not exist; presets are ", {"convention": {"preset": 3}}
    ),
    "unknown axis": Bad(
        "convention: axis 'retain' does not exist; axes are gate, decay, ",
        {"convention": {"retain": 1}},
    ),
    "unknown gate": Bad(
        "convention: gate: must be 'retain', 'forget' or 'none', found 'keep'",
        {"convention": {"gate": "keep"}},
    ),
    "gate null": Bad("convention: gate: null is not a value", {"convention": {"gate": None}}),
    "gate as a number": Bad(
        "convention: gate: must be 'retain', 'forget' or 'none', found 1",
        {"convention": {"gate": 1}},
    ),
    "scale as a word": Bad(
        "convention: gradient_scale must be a finite number or \"2/d_out\", found '2/d'",
        {"convention": {"gradient_scale": "2/d"}},
    ),
    "scale true": Bad(
        'convention: gradient_scale must be a finite number or "2/d_out", found true',
        {"convention": {"gradient_scale": True}},
    ),
    "query scale 2": Bad(
        'convention: query_scale must be 1 or "1/sqrt(d_in)", found 2',
        {"convention": {"query_scale": 2}},
    ),
    "read chunk_start without a span": Bad(
        "span: missing, read chunk_start needs one", {"convention": {"read": "chunk_start"}}
    ),
    "reference chunk_start without a span": Bad(
        "span: missing, reference chunk_start needs one",
        {"convention": {"reference": "chunk_start"}},
    ),
    "split without its rate": Bad(
        "in/step_size_memory: missing, axes (..., T) or (..., T, d_out) are needed",
        {"convention": {"rate": "split"}},
    ),
    "split at level token": Bad(
        "convention: rate split has no second rate at level token",
        {"convention": {"rate": "split"}},
        {},
        TOKEN,
    ),
    "written_back with momenta": Bad(
        (
            "convention: newton_schulz.argument written_back is not defined for order "
            "momentum_then_window"
        ),
        {
            "convention": {
                "order": "momentum_then_window",
                "newton_schulz": {"argument": "written_back"},
            }
        },
    ),
    **{
        f"newton_schulz for {rule}": Bad(
            f"convention: newton_schulz is not part of {rule}; only none is possible",
            {"convention": {"newton_schulz": {}}},
            {},
            {"rule": rule},
        )
        for rule in ("titans_lmm", "delta", "hebbian", "feature_map")
    },
    "newton_schulz none for itself": Bad(
        "convention: newton_schulz none leaves the rule ",
        {"convention": {"newton_schulz": "none"}},
        {},
        NS,
    ),
    **{
        f"newton_schulz {settings}": Bad(
            f"convention: newton_schulz{words}", {"convention": {"newton_schulz": settings}}
        )
        for settings, words in (
            ("muon", ' must be "none" or an object with keys coefficients, steps, '),
            (None, ": null is not a value"),
        )
    },
    **{
        f"newton_schulz {key} {value}": Bad(
            f"convention: newton_schulz.{key}{words}",
            {"convention": {"newton_schulz": {key: value}}},
        )
        for key, value, words in (
            ("power", 5, ": unknown key"),
            ("steps", 0, ": must be at least 1, found 0"),
            ("steps", 2.5, ": must be an integer, found 2.5"),
            ("eps", -1, ": must be at least 0, found -1"),
            ("norm_factor", 0, ": must be greater than 0, found 0"),
            ("scale", 1, ": must be '1', 'sqrt' or 'norm', found 1"),
            ("guard", "max", ": must be 'add', 'clamp' or 'return', found 'max'"),
            (
                "argument",
                "G",
                ": must be 'S', 'nesterov', 'written_back' or 'accumulated', found 'G'",
            ),
            (
                "coefficients",
                "quintic",
                ": must be 'muon', 'cubic' or 'polar_express', found 'quintic'",
            ),
            ("coefficients", [], ": explicit coefficients need at least one row [a, b, c]"),
            ("coefficients", [[1, 2]], ".0.2: missing"),
            ("lower_bound", 1, ": must be less than 1, found 1"),
        )
    },
}


def scheduled(**changes: Any) -> dict[str, Any]:
    """The schedule of level 1 of three, with a change."""
    return {
        "schedule": {
            key: value
            for key, value in {"periods": [1, 2, 4], "level": 1, **changes}.items()
            if value is not GONE
        }
    }


BLOCK: dict[str, Any] = {
    "rule": "cms",
    "levels": ("delta", {"rule": "omega", "window": 2}),
    "periods": (1, 3),
}

LEVELS = {
    "no periods": Bad("schedule.periods: missing", scheduled(periods=GONE)),
    "an empty list of periods": Bad(
        "schedule.periods: must have at least 1 entry, found 0", scheduled(periods=[])
    ),
    "a period of 0": Bad(
        "schedule.periods.1: must be at least 1, found 0", scheduled(periods=[1, 0])
    ),
    "a first step below 0": Bad(
        "schedule.first_step: must be at least 0, found -1", scheduled(first_step=-1)
    ),
    "an unknown key of a schedule": Bad("schedule.step: unknown key", scheduled(step=1)),
    "no level": Bad(
        "schedule.level: one of the 3 levels is needed, from 0, found none", scheduled(level=GONE)
    ),
    "a level too high": Bad(
        "schedule.level: one of the 3 levels is needed, from 0, found 3", scheduled(level=3)
    ),
    "a schedule without a sequence": Bad(
        "schedule: the rule newton_schulz has no sequence", scheduled(), {}, NS
    ),
    "another mask than the schedule": Bad(
        "in/active: 1 at token 1, where the schedule says 0; leave it out, or the schedule",
        scheduled(),
        {"in/active": np.ones(5, np.uint8)},
    ),
    "levels for omega": Bad(
        "levels: belongs to rule cms, this is omega", {"levels": [{"rule": "delta"}]}
    ),
    "combine for omega": Bad("combine: belongs to rule cms, this is omega", {"combine": "masked"}),
    "a block without levels": Bad(
        "levels: missing, rule cms needs them", {"levels": GONE}, {}, BLOCK
    ),
    "a block of no level": Bad(
        "levels: must have at least 1 entry, found 0", {"levels": []}, {}, BLOCK
    ),
    "a block without a schedule": Bad(
        "schedule: missing, rule cms needs the periods of its levels", {"schedule": GONE}, {}, BLOCK
    ),
    "a block with a level of its own": Bad(
        "schedule.level: rule cms has all levels, found 0",
        {"schedule": {"periods": [1, 3], "level": 0}},
        {},
        BLOCK,
    ),
    "a period too few": Bad(
        "schedule.periods: 1 periods for 2 levels", {"schedule": {"periods": [1]}}, {}, BLOCK
    ),
    "a block at level projected": Bad(
        "level: rule cms takes tokens, so token is needed, found projected",
        {"level": GONE},
        {},
        BLOCK,
    ),
    "a window for a block": Bad(
        "window: each level of rule cms has its own", {"window": 2}, {}, BLOCK
    ),
    "a convention for a block": Bad(
        "convention: each level of rule cms has its own", {"convention": "spec"}, {}, BLOCK
    ),
    "masked without a fast level": Bad(
        "combine: masked needs a level of period 1",
        {"combine": "masked", "schedule": {"periods": [2, 3]}},
        {},
        BLOCK,
    ),
    "an unknown combination": Bad(
        "combine: must be 'softmax' or 'masked', found 'mean'", {"combine": "mean"}, {}, BLOCK
    ),
    "nested for omega": Bad("nested: belongs to rule cms, this is omega", {"nested": False}),
    "nested as a number": Bad("nested: must be a boolean, found 1", {"nested": 1}, {}, BLOCK),
    "nested levels of one period": Bad(
        "nested: at least two levels, each of another period, are needed, found periods 3, 3",
        {"nested": True, "schedule": {"periods": [3, 3]}},
        {},
        BLOCK,
    ),
    "one nested level": Bad(
        "nested: at least two levels, each of another period, are needed, found periods 1",
        {"nested": True, "levels": [{"rule": "delta"}], "schedule": {"periods": [1]}},
        {},
        BLOCK,
    ),
    "nested levels under a learned schedule": Bad(
        "nested: contexts begin by periods, and schedule.learned has gates in their place",
        {"nested": True, "schedule": {"periods": [1, 3], "learned": {}}},
        {},
        BLOCK,
    ),
    "a learned schedule for one memory": Bad(
        "schedule.learned: belongs to rule cms, whose levels differ in who writes; this is omega",
        scheduled(learned={}),
    ),
    "a learned schedule that masks": Bad(
        "combine: masked needs periods, under schedule.learned all levels are combined",
        {"combine": "masked", "schedule": {"periods": [1, 3], "learned": {}}},
        {},
        BLOCK,
    ),
    "a threshold of 1": Bad(
        "schedule.learned.threshold: must be less than 1, found 1",
        {"schedule": {"periods": [1, 3], "learned": {"threshold": 1}}},
        {},
        BLOCK,
    ),
    "gates from a step below 0": Bad(
        "schedule.learned.until: must be at least 0, found -1",
        {"schedule": {"periods": [1, 3], "learned": {"until": -1}}},
        {},
        BLOCK,
    ),
    "an unknown key of a learned schedule": Bad(
        "schedule.learned.gate: unknown key",
        {"schedule": {"periods": [1, 3], "learned": {"gate": 1}}},
        {},
        BLOCK,
    ),
    "a schedule learned in a word": Bad(
        "schedule.learned: must be an object, found true",
        {"schedule": {"periods": [1, 3], "learned": True}},
        {},
        BLOCK,
    ),
    "a level without a rule": Bad(
        "levels.1.rule: missing", {"levels": [{"rule": "delta"}, {}]}, {}, BLOCK
    ),
    "an unknown key of a level": Bad(
        "levels.0.heads: unknown key",
        {"levels": [{"rule": "delta", "heads": 1}, {"rule": "delta"}]},
        {},
        BLOCK,
    ),
    "a window for a level": Bad(
        "levels[0]: window: delta looks at one token, found 2",
        {"levels": [{"rule": "delta", "window": 2}, {"rule": "omega"}]},
        {},
        BLOCK,
    ),
    "window weights for a level": Bad(
        "levels[0]: window_weights: belongs to rule omega at level token",
        {"levels": [{"rule": "delta", "window_weights": {"kind": "ones"}}, {"rule": "omega"}]},
        {},
        BLOCK,
    ),
    "an axis of a level": Bad(
        "levels[0]: convention: axis 'hat' does not exist; axes are ",
        {"levels": [{"rule": "delta", "convention": {"hat": 1}}, {"rule": "omega", "window": 2}]},
        {},
        BLOCK,
    ),
    "split in a level": Bad(
        "levels[0]: convention: rate split has no second rate at level token",
        {
            "levels": [
                {"rule": "delta", "convention": {"rate": "split"}},
                {"rule": "omega", "window": 2},
            ]
        },
        {},
        BLOCK,
    ),
}

TABLE = {
    f"{kind}: {name}": bad
    for kind, table in (("header", HEADERS), ("convention", CONVENTIONS), ("levels", LEVELS))
    for name, bad in table.items()
}
