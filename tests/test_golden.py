"""The helper for golden files: a diff on failure, and writes on request alone."""

import pytest

from tests.support.golden import WRITE, assert_golden


def test_a_text_is_compared_and_written_on_request_alone(tmp_path, monkeypatch):
    monkeypatch.delenv(WRITE, raising=False)
    with pytest.raises(
        AssertionError, match=r"^a.txt: no such golden file; ATLAS_REF_GOLDEN=write makes it$"
    ):
        assert_golden("a.txt", "one\ntwo\n", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(WRITE, "write")
    assert_golden("a.txt", "one\ntwo\n", folder=tmp_path)
    monkeypatch.delenv(WRITE)
    assert_golden("a.txt", "one\ntwo\n", folder=tmp_path)
    with pytest.raises(AssertionError) as found:
        assert_golden("a.txt", "one\nthree\n", folder=tmp_path)
    assert {"-two", "+three"} <= set(str(found.value).splitlines())
