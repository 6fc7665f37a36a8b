"""Faults of a case: each gives one line with the place, the value and the requirement.

The same words come from Python and from every command that takes a case; no command writes
anything.
"""

import pytest

from tests.support.bad_headers import TABLE
from tests.support.refusal import case_of, refused_everywhere


@pytest.mark.clause("CASE-2", "CASE-3", "CASE-16", "CASE-17")
@pytest.mark.parametrize("name", TABLE)
def test_a_bad_header_is_refused_in_one_line(name, cli, tmp_path):
    refused_everywhere(case_of(TABLE[name], tmp_path), TABLE[name].message, cli, tmp_path)
