"""Steps of a schedule: the calls that they are, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_ref import CaseError
from atlas_ref.oracle.schedules.steps import Call, calls, serving


def places(text, tokens):
    return [(each.first, each.last, each.reads) for each in calls(text, tokens)]


@pytest.mark.clause("SCHED-1")
def test_steps_are_calls_one_behind_the_other():
    assert places("prefill:3, decode:2,prefill:1", 6) == [
        (0, 3, True),
        (3, 4, True),
        (4, 5, True),
        (5, 6, True),
    ]


@pytest.mark.clause("SCHED-1")
@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ("draft:3/0,prefill:4", [(2, 5, True), (2, 6, True)]),
        ("draft:3/1,prefill:3", [(2, 5, True), (2, 3, False), (3, 6, True)]),
        ("draft:3/3,prefill:1", [(2, 5, True), (5, 6, True)]),
    ],
)
def test_a_draft_reads_all_its_tokens_and_goes_on_from_those_that_are_kept(draft, expected):
    assert places(f"prefill:2,{draft}", 6)[1:] == expected


@pytest.mark.clause("SCHED-1")
def test_a_return_computes_tokens_again():
    text = "prefill:4,snapshot@4,prefill:2,restore@4,decode:2"
    assert places(text, 6) == [(0, 4, True), (4, 6, True), (4, 5, True), (5, 6, True)]


@pytest.mark.clause("SCHED-1")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no step; steps are prefill:N"),
        ("prefill:4,serving", "'serving' is no step"),
        ("prefill:-1", "'prefill:-1' is no step"),
        ("decode:0", "a call has at least one token"),
        ("draft:2/3", "at most the drafted tokens are kept"),
        ("draft:0/0", "one is drafted"),
        ("prefill:4", "ends after 4 of 6 tokens; it must cover all"),
        ("prefill:4,draft:3/1", "draft:3/1 goes beyond the last of 6 tokens"),
        ("prefill:6,decode:1", "decode:1 goes beyond the last of 6 tokens"),
        ("prefill:6,restore@2,prefill:4", "restore@2: no call ended there; calls ended after 0, 6"),
        ("prefill:4,snapshot@5,prefill:2", "snapshot@5: no call ended there"),
        ("snapshot@0", "ends after 0 of 6 tokens"),
        ("prefill:999999999", "goes beyond the last of 6 tokens"),
        ("decode:999999999", "goes beyond the last of 6 tokens"),
        ("draft:999999999/1", "goes beyond the last of 6 tokens"),
        ("prefill:" + "9" * 5000, "is no step"),
        ("restore@" + "9" * 5000, "is no step"),
        ("prefill:\u0666", "is no step"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(text, said):
    with pytest.raises(CaseError) as error:
        calls(text, 6)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.clause("SCHED-3")
@given(st.integers(1, 400))
def test_serving_covers_any_number_of_tokens(tokens):
    found = calls("serving", tokens)
    assert {t for each in found if each.reads for t in range(each.first, each.last)} == {
        *range(tokens)
    }
    assert found[-1].last == tokens


@pytest.mark.clause("SCHED-3")
def test_serving_shows_what_a_server_asks():
    words, sizes = serving(400), {each.tokens for each in calls("serving", 400)}
    assert {1, 2, 3, 15, 16, 17, 63, 64, 65} <= sizes
    assert {"draft:2/0", "draft:3/1", "draft:2/2"} <= {*words}
    restored = next(word for word in words if word.startswith("restore@"))
    assert words.index(restored) > words.index("prefill:2")


@pytest.mark.clause("SCHED-3")
@pytest.mark.parametrize("tokens", [100, 130, 200, 257])
def test_serving_has_a_call_that_is_longer_than_the_commonest_block(tokens):
    assert 65 in {each.tokens for each in calls("serving", tokens)}


def test_a_call_says_which_tokens_it_has():
    assert Call("decode:8", 4, 5).words == "decode:8 (token 4)"
    assert Call("prefill:3", 4, 7).words == "prefill:3 (tokens 4 to 6)"
