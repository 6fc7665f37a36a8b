"""The command probe needle: table, JSON, figure and refusals."""

from __future__ import annotations

import pytest

from atlas_ref.cli.probe import figure, heat
from atlas_ref.train.probes import needle
from atlas_ref.train.trained import load
from atlas_ref.train.use import held, measure
from tests.support import trained

pytestmark = pytest.mark.host("trains in folders")

SMALL = ("--lengths", "60,80", "--depths", "0,100", "--samples", 2, "--digits", 1)


@pytest.mark.clause("EVAL-11")
def test_the_object_is_what_the_probe_measures(cli):
    words = ("probe", "needle", trained.model("mag"), "--data", trained.text("mag"), *SMALL)
    ran = cli(*words, "--seed", 3, "--json")
    assert ran.code == 0, ran.err
    own = load(trained.model("mag"))
    hay = held.corpus(own, [str(trained.text("mag"))])
    asked = {"lengths": (60, 80), "depths": (0, 100), "samples": 2, "digits": 1, "seed": 3}
    cells = needle.measure(own, hay, needle.Settings(**asked))
    assert ran.json["cells"] == [cell._asdict() for cell in cells]
    assert ran.json["reach"] == 3
    how = {"rows": 2, "tokens": 79, "batches": 1, "skip": 4, "without": ("memory",)}
    (found,) = measure.evaluate(own, hay, measure.Settings(**how)).without
    want = {"window": 4, "percent": found.contribution, "why": None}
    assert ran.json["contribution"] == want
    table = cli(*words)
    rows = [line.split("│")[1:-1] for line in table.out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:2]] for row in rows] == [
        [length, depth] for length in ("60", "80") for depth in ("0 %", "100 %")
    ]
    assert "not that it finds anything" in table.err


@pytest.mark.sample(1)
@pytest.mark.clause("EVAL-11")
@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")])
def test_the_maps_are_a_figure_with_the_same_bytes_each_time(cli, tmp_path, name, start):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    places = [tmp_path / "1" / name, tmp_path / "2" / name]
    for place in places:
        place.parent.mkdir()
        words = (trained.model("mac"), "--data", trained.text("mac"), *SMALL)
        ran = cli("probe", "needle", *words, "-o", place)
        assert ran.code == 0, ran.err
        assert f"wrote {place}" in ran.err
        assert "MAC, which needs its memory" in ran.err
    assert places[0].read_bytes() == places[1].read_bytes()
    assert places[0].read_bytes().startswith(start)


@pytest.mark.clause("EVAL-11")
@pytest.mark.parametrize(("gain", "strength"), [(0.001, 0.01), (0.05, 0.5), (2.0, 1.0)])
def test_gains_of_a_thousandth_are_pale(gain, strength, tmp_path, monkeypatch):
    """The colour of a gain is its share of the largest one, or of a tenth of a nat."""
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra figures")
    drawn = []
    monkeypatch.setattr(figure, "save", lambda out, own, name: drawn.append(own))
    cell = needle.Cell(64, 0.0, 0.0, 0.0, 0.0, 1.0, gain, 30, True)
    heat.draw(tmp_path / "a.png", (cell, cell._replace(depth=50.0, gain=0.0)))
    picture = drawn[0].axes[1].images[0]
    assert float(picture.norm(gain)) == pytest.approx(0.5 + 0.5 * strength)
    texts = [each.get_text() for each in drawn[0].axes[1].texts]
    assert texts == [f"{gain:.2f}", "0.00"]


@pytest.mark.clause("EVAL-11")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lengths", "30"), "lengths: 30, needle, question and answer alone have "),
        (("--lengths", "0"), "lengths.0: must be at least 1"),
        (("--lengths", "x"), "--lengths: whole numbers between commas"),
        (("--depths", "101"), "depths.0: must be at most 100"),
        (("--lengths", "5000"), "length 5000 needs more text"),
        (("--digits", "19"), "digits: must be at most 18"),
        (("--data", "no-such"), "no-such: no such file or folder"),
        (("-o", "a.pdf"), "a.pdf: a figure ends in .png or .svg"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_one_line(cli, words, message):
    ran = cli("probe", "needle", trained.model(), *words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
