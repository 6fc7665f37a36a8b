"""The command probe capacity: table, JSON, figure and refusals."""

from __future__ import annotations

import pytest

from atlas_ref.train.probes.capacity import Settings
from atlas_ref.train.probes.curve import curve
from atlas_ref.train.probes.limits import by_angle, limit, moments

SMALL = ("--d-k", 4, "--d-v", 3, "--seeds", 2)


@pytest.mark.clause("PROBE-15")
def test_the_object_is_what_the_probe_measures(cli):
    ran = cli("probe", "capacity", "omega", *SMALL, "--pairs", "3,5", "--seed", 4, "--json")
    assert ran.code == 0
    (memory,) = ran.json["memories"]
    settings = Settings(memory="omega", d_k=4, d_v=3)
    want = [point._asdict() for point in curve(settings, (3, 5), (4, 5))]
    assert memory == {"memory": "omega", "limit": 4, "points": want}
    assert want != [point._asdict() for point in curve(settings, (3, 5), (0, 1))]


@pytest.mark.clause("PROBE-15")
def test_a_point_has_the_expectations_of_theory_where_there_are_some():
    settings = Settings(memory="hebbian", d_k=4, d_v=3)
    (point,) = curve(settings, (5,), (0, 1))
    found = moments(settings, 5)
    assert point.expected_by_angle == by_angle(found, 3)
    assert point.expected_error == pytest.approx(1.0)  # (N - 1) / d_k
    (without,) = curve(settings.replaced(keys="free"), (5,), (0, 1))
    assert (without.expected_by_angle, without.expected_error) == (None, None)
    assert limit(settings) == 4


@pytest.mark.clause("PROBE-15")
def test_settings_of_rules_do_not_reach_least_squares_and_reach_the_others(cli):
    own = ("--convention", "newton_schulz=none", "--parameter", "window=pairs", "--period", "pairs")
    ran = cli("probe", "capacity", "omega", "least_squares", *SMALL, "--pairs", 4, *own, "--json")
    omega, best = ran.json["memories"]
    assert best["points"][0]["by_error"] == 4.0
    assert omega["points"][0]["error"] > 0.3
    assert ran.json["settings"]["parameters"] == {"window": "pairs"}


@pytest.mark.clause("PROBE-15")
def test_the_table_names_memories_pairs_and_limits(cli):
    ran = cli("probe", "capacity", *SMALL, "--pairs", "2,6")
    assert ran.code == 0
    rows = [line.split("│")[1:-1] for line in ran.out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:3]] for row in rows] == [
        [name, pairs, "4"] for name in ("hebbian", "delta", "least_squares") for pairs in ("2", "6")
    ]
    assert "by error: at most 0.1 of the value" in ran.err


@pytest.mark.clause("PROBE-15")
@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")])
def test_the_curves_are_a_figure_with_the_same_bytes_each_time(cli, tmp_path, name, start):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    places = [tmp_path / "1" / name, tmp_path / "2" / name]
    for place in places:
        place.parent.mkdir()
        ran = cli("probe", "capacity", *SMALL, "--pairs", "2,6", "-o", place)
        assert ran.code == 0
        assert f"wrote {place}" in ran.err
    assert places[0].read_bytes() == places[1].read_bytes()
    assert places[0].read_bytes().startswith(start)
    if start == b"<?xml":
        assert "least_squares, expected" in places[0].read_text()


@pytest.mark.clause("PROBE-15")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("delt",), "kind 'delt' does not exist; kinds are omega, "),
        (("omega", "hebbian", "--parameter", "window=2"), "hebbian: window: unknown key"),
        (("deep_memory",), "deep_memory: step_size: missing, deep_memory has no full step"),
        (("--pairs", "0,2"), "--pairs: 0, expected 1 to 100000"),
        (("--pairs", "x"), "--pairs: whole numbers between commas"),
        (("--seeds", "100001"), "--seeds: 100001, expected at most 100000"),
        (("--keys", "x"), "keys: must be 'unit' or 'free', found 'x'"),
        (("--period", "x"), "period: "),
        (("--retain", "2"), "retain: must be at most 1, found 2.0"),
        (("--form", "chunkwise"), "form chunkwise: the reference is running"),
        (("--feature-map", "foo"), "feature_map"),
        (("-o", "a.pdf"), "a.pdf: a figure ends in .png or .svg"),
        (("-o", "no/such/a.png"), "no/such/a.png"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_one_line(cli, words, message):
    ran = cli("probe", "capacity", *words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
