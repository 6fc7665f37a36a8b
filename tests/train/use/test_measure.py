"""What text costs a model: the run's own number, the definition by prefixes, and without memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from atlas_ref.models import language_model
from atlas_ref.train import data, loop, models, sampler
from atlas_ref.train.settings import Model
from atlas_ref.train.text import Document
from atlas_ref.train.trained import Trained, load
from atlas_ref.train.use import held, measure, without
from atlas_ref.train.use.measure import Settings, evaluate
from atlas_ref.train.vocabulary import Bytes
from atlas_ref.types import same_bits
from tests.support import trained
from tests.support.close import ANALYTIC, assert_close
from tests.support.training import TINY

pytestmark = pytest.mark.host("trains in folders")

#: As the runs of `tests.support.training` read what they hold out.
LIKE = {"rows": 2, "tokens": 16, "batches": 2}


def saved(kind, *, vocabulary=256, seed=1):
    """A model in float64 that was not trained."""
    config = models.model(trained.KINDS[kind], vocabulary)
    params = language_model.init(config, seed)
    return Trained(Path("none"), config, params, Bytes(), (), None, None, None)


def corpus(*texts):
    return sampler.corpus("some", [Document(str(i), each) for i, each in enumerate(texts)], Bytes())


def surprise(own, ids, target):
    """-log p(target) after ids, all in one call from a start: the future is absent."""
    before = language_model.start(own.config, 1, initial=own.initial)
    _, logits = language_model.apply(own.config, own.params, before, np.asarray(ids)[None])
    z = np.asarray(logits)[0, -1]
    return float(np.log(np.exp(z - z.max()).sum()) + z.max() - z[target])


@pytest.mark.clause("EVAL-3", "EVAL-1")
@pytest.mark.parametrize("kind", ["lmm", "mag", "mac", "atlas-mag"])
def test_rows_of_a_run_cost_what_the_run_said(kind):
    said = trained.ended(kind).held_out
    for path in (trained.model(kind), trained.ended(kind).path):
        own = load(path)
        found = evaluate(own, held.corpus(own), Settings(**LIKE))
        assert (found.loss.loss, found.loss.bits_per_byte) == (said.loss, said.bits_per_byte)
        assert found.loss.tokens == said.tokens
        assert found.anew is None
    other = evaluate(own, held.corpus(own), Settings(**LIKE | {"tokens": 15}))
    assert other.loss.loss != said.loss


@pytest.mark.clause("EVAL-3", "EVAL-2")
@pytest.mark.parametrize("kind", ["lmm", "mag"])
def test_documents_cost_what_their_prefixes_say(kind):
    """The definition, token by token: persistent from the start of the document, anew from that of
    the call.
    """
    own, texts = saved(kind), (b"abcdefghij", b"x", b"hello world")
    found = evaluate(own, corpus(*texts), Settings(tokens=4, state="document"))
    persistent = [surprise(own, [*t[:i]], t[i]) for t in texts for i in range(1, len(t))]
    anew = [
        surprise(own, [*t[(i - 1) // 4 * 4 : i]], t[i]) for t in texts for i in range(1, len(t))
    ]
    assert_close("persistent", found.loss.loss, np.mean(persistent), ANALYTIC)
    assert_close("anew", found.anew.loss, np.mean(anew), ANALYTIC)
    assert abs(found.loss.loss - found.anew.loss) > 1e-6
    assert found.loss.tokens == found.anew.tokens == len(persistent) == 19
    assert_close("perplexity", found.loss.perplexity, math.exp(np.mean(persistent)), ANALYTIC)
    assert_close("bits", found.loss.bits_per_byte, np.mean(persistent) / math.log(2), ANALYTIC)


@pytest.mark.clause("EVAL-2")
def test_first_predictions_do_not_count():
    own, text = saved("mag"), b"abcdefghijklm"
    by_document = evaluate(own, corpus(text), Settings(tokens=4, state="document", skip=6))
    want = [surprise(own, [*text[:i]], text[i]) for i in range(7, 13)]
    assert_close("document", by_document.loss.loss, np.mean(want), ANALYTIC)
    by_row = evaluate(own, corpus(text), Settings(rows=1, batches=1, tokens=12, skip=6))
    assert_close("row", by_row.loss.loss, np.mean(want), ANALYTIC)
    assert by_row.loss.tokens == by_document.loss.tokens == 6
    with pytest.raises(ValueError, match="skip: 12, no row or document has a prediction behind"):
        evaluate(own, corpus(text), Settings(tokens=4, state="document", skip=12))


@pytest.mark.clause("EVAL-3")
def test_an_evaluation_ends_after_its_predictions():
    own = saved("lmm")
    how = Settings(rows=2, batches=2, tokens=3, state="document")
    found = evaluate(own, corpus(b"abcdefg", b"hijklmnopq", b"rest"), how)
    assert found.loss.tokens == 12
    short = evaluate(own, corpus(b"abcdefg", b"hijklmn"), how)
    assert short.loss == found.loss


@pytest.mark.clause("EVAL-3")
def test_a_document_that_begins_in_a_row_has_its_own_memory():
    """Tokens before it change nothing: each row is two documents, cut at the same place."""
    own = saved("lmm")
    how = Settings(rows=1, batches=1, tokens=9)
    (both,) = measure._calls(own, corpus(b"abcde", b"vwxyz"), how)
    (other,) = measure._calls(own, corpus(b"edcba", b"vwxyz"), how)
    assert both.reset.tolist() == [i == 5 for i in range(9)]

    def last(call):
        before = language_model.start(own.config, 1)
        ids = call.ids[:, :-1]
        return language_model.apply(own.config, own.params, before, ids, reset=call.reset)[1][:, 5:]

    assert_close("logits", last(both), last(other), ANALYTIC)
    plain = both._replace(reset=None)
    assert np.abs(np.asarray(last(plain)) - np.asarray(last(both))).max() > 1e-6


@pytest.mark.clause("EVAL-3")
def test_rows_with_several_documents_cost_what_each_document_says():
    own, texts = saved("lmm"), (b"abcde", b"vwxyz")
    found = evaluate(own, corpus(*texts), Settings(rows=1, batches=1, tokens=9))
    inside = [surprise(own, [*t[:i]], t[i]) for t in texts for i in range(1, 5)]
    across = surprise(own, [*texts[0]], texts[1][0])  # predicted by the document before it
    assert_close("loss", found.loss.loss, np.mean([*inside, across]), ANALYTIC)


@pytest.mark.clause("EVAL-4", "EVAL-1")
def test_a_model_with_memories_that_all_rows_share_is_measured_without_them():
    own = load(trained.model("atlas-mag"))
    assert own.initial
    how = Settings(**LIKE, without=("writes", "memory"))
    for each in evaluate(own, held.corpus(own), how).without:
        assert each.why is None
        assert math.isfinite(each.loss.loss)


@pytest.mark.clause("EVAL-4")
def test_without_writes_a_memory_that_starts_empty_reads_nothing():
    """LMM of the Delta rule: the memory's branch is W_out of zeros, so that no block is left but
    the feed-forward. MAG differs from MAG without memory: the gate still weighs attention.
    """
    text, how = corpus(b"abcdefghijkl"), Settings(tokens=6, without=("writes", "memory"))
    writes, memory = evaluate(saved("lmm"), text, how).without
    assert_close("loss", writes.loss.loss, memory.loss.loss, ANALYTIC)
    mag = evaluate(saved("mag"), text, how)
    still, gone = mag.without
    assert abs(still.loss.loss - gone.loss.loss) > 1e-6
    assert abs(still.loss.loss - mag.loss.loss) > 1e-6


@pytest.mark.clause("EVAL-4")
def test_without_writes_a_deep_memory_is_one_of_phase_off():
    """Another mechanism says the same: phase off of the rule (DEEP-17), in place of a period."""
    own = saved("atlas-mag")
    config, params = without.writes(own.config, own.params)
    blocks = []
    for block in own.config.blocks:
        (level,) = block.memory.levels.levels
        off = level.replaced(config=level.config.replaced(phase="off"))
        levels = block.memory.levels.replaced(levels=(off,))
        blocks.append(block.replaced(memory=block.memory.replaced(levels=levels)))
    off = own.config.replaced(blocks=tuple(blocks))
    ids = np.arange(24)[None] % 7

    def logits(of):
        return language_model.apply(of, params, language_model.start(of, 1), ids)[1]

    assert_close("logits", logits(config), logits(off), ANALYTIC)
    assert np.abs(np.asarray(logits(own.config)) - np.asarray(logits(off))).max() > 1e-6


@pytest.mark.clause("EVAL-4")
def test_without_writes_a_tnt_is_read_where_it_starts():
    """Another mechanism says the same: step sizes of zero, and gates that keep everything."""
    own = saved("tnt")
    config, params = without.writes(own.config, own.params)
    (block,) = own.params.blocks
    first = block.memory.initial
    moved = tuple(each.replaced(M=each.M + 0.1 * (i + 1)) for i, each in enumerate(first))

    def logits(of, memory):
        changed = params.replaced(blocks=(block.replaced(memory=memory),))
        ids = np.arange(24)[None] % 7
        return language_model.apply(of, changed, language_model.start(of, 1), ids)[1]

    memory = block.memory.replaced(initial=moved)
    (branch,) = memory.levels
    gates = branch.projection.gates
    idle = gates.replaced(  # gate forget: nothing is forgotten, and no step is taken
        **{
            name: gate.replaced(W=gate.W * 0, b=gate.b * 0 - 80)
            for name, gate in (("retain", gates.retain), ("step_size", gates.step_size))
        }
    )
    projection = branch.projection.replaced(gates=idle)
    off = memory.replaced(levels=(branch.replaced(projection=projection),))
    assert_close("logits", logits(config, memory), logits(own.config, off), ANALYTIC)
    assert np.abs(logits(own.config, memory) - logits(config, memory)).max() > 1e-6


@pytest.mark.clause("EVAL-4")
@pytest.mark.parametrize("kind", ["lmm", "mag"])
def test_without_memory_is_the_model_that_is_built_without(kind):
    own = saved(kind)
    config, params = without.memory(own.config, own.params)
    assert config == models.model(trained.KINDS[kind].replaced(memory=False), 256)
    built = language_model.init(config, 1)
    assert same_bits(params.embedding, own.params.embedding)
    for found, fresh in zip(params.blocks, built.blocks, strict=True):
        assert {n: v is None for n, v in found} == {n: v is None for n, v in fresh}


@pytest.mark.clause("EVAL-4")
def test_what_a_model_cannot_do_without_is_said():
    text, how = corpus(b"abcdefghij"), Settings(tokens=4, without=("memory", "writes"))
    gone, still = evaluate(saved("mac"), text, how).without
    assert (gone.loss, gone.contribution) == (None, None)
    assert "MAC, which needs its memory" in gone.why
    assert still.why is None
    for each in evaluate(saved("none"), text, how).without:
        assert each == measure.Without(each.what, None, None, "the model has no memory")


@pytest.mark.clause("EVAL-4")
def test_masked_reads_need_writes():
    own = saved("lmm")
    (block,) = own.config.blocks
    masked = block.memory.replaced(levels=block.memory.levels.replaced(combine="masked"))
    config = own.config.replaced(blocks=(block.replaced(memory=masked),))
    with pytest.raises(ValueError, match="combine masked"):
        without.writes(config, own.params)


@pytest.mark.clause("EVAL-4")
def test_a_contribution_is_a_share_of_the_perplexity_without():
    own = saved("lmm")
    found = evaluate(own, corpus(b"abcabcabcabc"), Settings(tokens=6, without=("writes",)))
    (less,) = found.without
    want = 100 * (1 - found.loss.perplexity / less.loss.perplexity)
    assert_close("contribution", less.contribution, want, ANALYTIC)


@pytest.mark.clause("EVAL-2")
def test_a_loss_that_is_not_finite_is_refused_and_a_large_one_is_not():
    own = saved("lmm")
    wild = own.params.replaced(head=1e6 * np.asarray(own.params.head))
    found = evaluate(own._replace(params=wild), corpus(b"abcdefgh"), Settings(tokens=4))
    assert math.isfinite(found.loss.loss)
    assert found.loss.perplexity == math.inf
    wild = own.params.replaced(head=1e308 * np.sign(np.asarray(own.params.head)))
    with pytest.raises(ValueError, match=r"finite|nan"):
        evaluate(own._replace(params=wild), corpus(b"abcdefgh"), Settings(tokens=4))


@pytest.mark.clause("EVAL-1")
def test_memories_of_a_checkpoint_are_those_behind_its_last_batch():
    path = trained.ended("atlas-mag").path
    own = load(path)
    task = loop.task(own.settings, data.load(own.settings))
    assert own.initial
    assert own.step == 2
    bare = own._replace(initial=())
    text = held.corpus(own)
    assert evaluate(bare, text, Settings(**LIKE)).loss != evaluate(own, text, Settings(**LIKE)).loss
    assert task.documents is measure.apart(own) is False


@pytest.mark.clause("EVAL-1")
def test_progress_counts_the_calls_of_all_passes():
    told = []
    how = Settings(tokens=4, state="document", without=("writes",))
    evaluate(saved("lmm"), corpus(b"abcdefghi"), how, progress=lambda *each: told.append(each))
    assert told == [("calls", i, 6) for i in range(1, 7)]


def test_the_smallest_model_is_that_of_the_runs():
    assert trained.KINDS["lmm"] == TINY
    assert isinstance(TINY, Model)
