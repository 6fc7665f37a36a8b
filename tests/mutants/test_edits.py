"""Every mutant finds the code that it changes, so a change of the package is told at once."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import Edited, Mutant
from tests.mutants.mutants import LEGAL, MUTANTS


@pytest.mark.parametrize("mutant", [*MUTANTS, *LEGAL], ids=lambda mutant: mutant.name)
def test_the_place_of_a_mutant_is_there(mutant: Mutant) -> None:
    holder, name = mutant.found()
    function = getattr(holder, name)
    if isinstance(mutant.change, Edited):
        bare, text = mutant.change.text(function)
        compile(text, f"<mutant of {bare.__qualname__}>", "exec")


def test_an_edit_whose_place_is_gone_is_named() -> None:
    with pytest.raises(ValueError, match=r"apply: 0 places read 'no such line', one is needed"):
        Edited("no such line", "").text(Mutant.apply)
