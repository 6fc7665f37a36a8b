"""A step: accumulation, precision, documents, carried states, models and optimisers of settings."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

import tape
from atlas_ref.backend.scratch import Scratch
from atlas_ref.layers import shared_memory
from atlas_ref.models import language_model
from atlas_ref.optim import OF_MATRICES, OF_RUNS, groups, tensors
from atlas_ref.train import data, gates, loop, models, optimisers
from atlas_ref.train.sampler import Rows
from atlas_ref.train.settings import Model, Optimiser
from atlas_ref.types import same_bits
from tape import ops
from tape.nested import flatten
from tape.variable import Variable
from tests.support.close import assert_close, reordered
from tests.support.training import TINY, library, settings

SMALL = {"dim": 8, "layers": 1, "heads": 2, "expansion": 1}


def tasked(folder, **changes):
    asked = settings(library(folder), **changes)
    return loop.task(asked, data.load(asked))


def stepped(own, count=1):
    moment, told = loop.start(own), []
    for _ in range(count):
        moment, each = loop.step(own, moment)
        told.append(each)
    return moment, told


@pytest.mark.clause("TRAIN-10")
def test_batches_that_are_accumulated_are_one_large_batch(tmp_path):
    """Both sides see the same rows: those of the large batch, cut."""
    own = tasked(tmp_path, rows=6)
    batch, _ = own.data.sampler.batch(own.data.sampler.start())

    class Cut:
        def start(self):
            return {"batch": 0, "places": {}}

        def batch(self, place):
            i = place["batch"]
            some = slice(2 * i, 2 * i + 2)
            return Rows(batch.ids[some], batch.starts[some]), {"batch": i + 1, "places": {}}

    parts = own._replace(
        data=own.data._replace(sampler=Cut()),
        settings=own.settings.replaced(rows=2, accumulation=3),
    )
    (one, (whole,)), (other, (summed,)) = stepped(own), stepped(parts)
    assert (whole.tokens, summed.tokens) == (96, 96)
    assert_close(
        "loss", np.float32(summed.loss), np.float32(whole.loss), reordered(96, dtype=np.float32)
    )
    assert_close(
        "norm", np.float32(summed.norm), np.float32(whole.norm), reordered(96, dtype=np.float32)
    )
    for a, b in zip(flatten(other.params)[0], flatten(one.params)[0], strict=True):
        # AdamW's first update has the size of the rate, whatever the gradient's
        assert np.abs(a - b).max() < 0.05 * own.settings.optimiser.rate
    twin = parts._replace(settings=parts.settings.replaced(accumulation=2))
    assert abs(stepped(twin)[1][0].loss - whole.loss) > 1e-4


@pytest.mark.clause("TRAIN-10", "TRAIN-9")
def test_step_s_moves_by_the_rate_of_step_s(tmp_path):
    """Gradient descent alone, whose warm-up of four steps begins with a quarter of the rate."""
    rule = Optimiser(name="sgd", rate=0.5, decay=0.0, clip=0.0, warmup=4)
    own = tasked(tmp_path, optimiser=rule, documents=False, steps=9)
    moment = loop.start(own)
    for share in (0.25, 0.5):
        batch, _ = own.data.sampler.batch(moment.place)
        params = [np.array(each) for each in flatten(moment.params)[0]]
        grads = flatten(loop.gradient(own.config, moment.params, None, batch, None)[1])[0]
        moment, told = loop.step(own, moment)
        assert told.rate == 0.5 * share
        for after, x, g in zip(flatten(moment.params)[0], params, grads, strict=True):
            want = (x - np.float32(0.5 * share) * g).astype(np.float32)
            assert_close("parameter", np.asarray(after), want, reordered(2, dtype=np.float32))


@pytest.mark.clause("TRAIN-10")
@pytest.mark.parametrize("kind", ["mag", "lmm"])
def test_nothing_is_float64(kind, tmp_path):
    """Every value on the tape, and all that a step leaves, is float32."""
    own = tasked(tmp_path, model=Model(model=kind, kernel=4, **SMALL), state="carried")
    seen: list[tuple[str, str]] = []
    begin, room = Variable.__init__, Scratch.empty

    def watched(self, value, *rest):
        every = value if isinstance(value, tuple) else (value,)
        seen.extend(("tape", each.dtype.name) for each in every)
        begin(self, value, *rest)

    def lent(self, shape, like, kind=None):
        found = room(self, shape, like, kind)
        seen.append(("work space", found.dtype.name))
        return found

    with (
        mock.patch.object(Variable, "__init__", watched),
        mock.patch.object(Scratch, "empty", lent),
    ):
        moment, _ = stepped(own, 2)
        assert len(seen) > 100
        assert {kind for _, kind in seen} == {"float32"}
        tape.grad(ops.sum)(np.zeros(3))
    assert seen[-1] == ("tape", "float64")  # the watch sees it
    kept = groups.tensors_of(moment.optimiser)
    kinds = {x.dtype.name for name, x in kept.items() if name.rpartition("/")[2] not in COUNTS}
    kinds |= {x.dtype.name for x in flatten(moment.params)[0]}
    kinds |= {x.dtype.name for x in flatten(moment.state)[0]}
    assert kinds == {"float32"}


COUNTS = ("count", "waits")


@pytest.mark.clause("TRAIN-8", "TRAIN-10")
def test_documents_in_a_row_start_memories_anew(tmp_path):
    """The loss of packed rows is that of their documents apart, weighed by their tokens."""
    own = tasked(tmp_path)
    params = loop.start(own).params
    ids = np.random.default_rng(0).integers(0, 256, (3, 9))
    starts = np.zeros((3, 9), bool)
    starts[1, 4] = starts[2, 4] = True
    calls = loop.calls_of(Rows(ids, starts), own.documents)
    assert [(len(rows.ids), share) for rows, _, share in calls] == [(1, 1 / 3), (2, 2 / 3)]
    found = sum(
        share * loop.gradient(own.config, params, None, rows, reset)[0]
        for rows, reset, share in calls
    )

    def apart(row, first, last):
        begun = language_model.start(own.config, 1, dtype=np.float32)
        loss = language_model.loss(
            own.config, params, begun, ids[row : row + 1, first:last],
            targets=ids[row : row + 1, first + 1 : last + 1],
        )[1]  # fmt: skip
        return float(loss) * (last - first)

    pieces = apart(0, 0, 8) + sum(apart(i, 0, 4) + apart(i, 4, 8) for i in (1, 2))
    assert_close("loss", found, pieces / 24, reordered(24, dtype=np.float32))


@pytest.mark.clause("TRAIN-10", "TRAIN-20")
def test_gradients_of_a_batch_are_in_the_order_of_c(tmp_path):
    """As they come from a worker: what sums and products do depends on the order."""
    own = tasked(tmp_path, model=Model(model="mac", segment=4, **SMALL))
    params, true, seen = loop.start(own).params, loop.gradient, []

    def watched(*args):
        value, grads, state = true(*args)
        seen.extend(flatten(grads)[0])
        return value, grads, state

    batch, _ = own.data.sampler.batch(own.data.sampler.start())
    with mock.patch.object(loop, "gradient", watched):
        found = loop.of_batch(own.config, params, None, batch, documents=False)
    assert not all(x.flags.c_contiguous for x in seen)
    assert all(x.flags.c_contiguous for x in found.gradient)
    assert [x.shape for x in found.gradient] == [x.shape for x in seen]
    assert all(np.array_equal(a, b) for a, b in zip(found.gradient, seen, strict=True))


@pytest.mark.clause("TRAIN-6", "TRAIN-10")
def test_a_carried_state_is_that_of_one_long_row(tmp_path):
    own = tasked(tmp_path, state="carried", rows=1, tokens=8)
    params = loop.start(own).params
    sampler, place = own.data.sampler, own.data.sampler.start()
    state, losses = loop.start(own).state, []
    for _ in range(3):
        batch, place = sampler.batch(place)
        value, _, state = loop.gradient(own.config, params, state, batch, None)
        losses.append(value)
    ids = np.asarray(sampler.source.ids[None, :25], np.int64)
    begun = language_model.start(own.config, 1, dtype=np.float32)
    whole = language_model.loss(own.config, params, begun, ids)[1]
    assert_close("loss", np.mean(losses), whole, reordered(24, dtype=np.float32))


@pytest.mark.clause("TRAIN-9", "TRAIN-10", "TRAIN-11")
def test_a_model_learns_and_the_units_agree(tmp_path):
    own = tasked(tmp_path, rows=4)
    moment, told = stepped(own, 25)
    assert told[-1].loss < told[0].loss - 0.4
    assert abs(told[0].loss - math.log(256)) < 0.1
    first, last = (loop.evaluate(own, each) for each in (loop.start(own), moment))
    assert last.loss < first.loss - 0.4
    assert last.bits_per_byte == pytest.approx(last.loss / math.log(2))
    assert loop.bits(math.log(2), 4.0) == 0.25
    assert loop.evaluate(own, moment) == last
    assert loop.evaluate(own._replace(data=own.data._replace(held=None)), moment) is None


@pytest.mark.clause("TRAIN-10")
def test_a_loss_that_is_not_finite_names_the_step(tmp_path):
    own = tasked(tmp_path, optimiser=Optimiser(rate=1e30, clip=0.0, warmup=0))
    with pytest.raises(loop.Diverged, match=r"^step \d+: ") as refused:
        stepped(own, 6)
    assert "\n" not in str(refused.value)


@pytest.mark.clause("TRAIN-9")
@pytest.mark.parametrize("name", OF_RUNS)
def test_every_parameter_has_its_optimiser(name, tmp_path):
    own = tasked(tmp_path, optimiser=Optimiser(name=name))
    taken = groups.assigned(own.optimiser, loop.start(own).params)
    apart = name in OF_MATRICES
    assert tuple(taken) == (("outputs", "hidden", "others") if apart else (name,))
    moment, _ = stepped(own, 2)
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(flatten(moment.params)[0], flatten(loop.start(own).params)[0], strict=True)
    ]
    assert all(moved)


@pytest.mark.clause("TRAIN-9", "OPTIM-33")
@pytest.mark.parametrize("preset", shared_memory.PRESETS)
def test_weights_of_public_memories_alone_stay(preset, tmp_path):
    """Gates and learnt keys beside a memory move, and all of it where the reading is causal."""
    own = tasked(tmp_path, model=Model(model="atlas-mag", preset=preset, **SMALL))
    before = tensors.named(loop.start(own).params, "params").tensors
    moment, _ = stepped(own, 3)
    after = tensors.named(moment.params, "params").tensors
    stays = {
        name for name, x in before.items() if same_bits(np.asarray(x), np.asarray(after[name]))
    }
    weights = {name for name in before if ".memory.phi." in name}
    assert len(weights) > 5
    assert stays == (weights if preset == "atlas-mag" else set())


@pytest.mark.clause("TRAIN-15")
@pytest.mark.parametrize("documents", [False, None])
def test_the_spread_of_gates_is_that_of_a_loop_over_blocks(documents, tmp_path):
    own = tasked(
        tmp_path,
        model=Model(model="atlas-mag", preset="causal", **{**SMALL, "layers": 2}),
        documents=documents,
        rows=3,
    )
    moment, _ = stepped(own, 2)
    seen: list[np.ndarray] = []
    true = shared_memory.gate_of

    def watched(params, n):
        seen.append(np.asarray(true(params, n), np.float64))
        return true(params, n)

    found = gates.deviation(own, moment)
    with mock.patch.object(shared_memory, "gate_of", watched):
        loop.evaluate(own._replace(settings=own.settings.replaced(evaluate_batches=1)), moment)
    each = np.concatenate([np.ravel(x) for x in seen])
    assert each.size == 2 * 3 * own.settings.tokens
    assert found == pytest.approx(each.std(), rel=1e-6)
    assert found > 1e-6
    other = own._replace(config=models.model(TINY, 256))
    assert gates.deviation(other, loop.start(other)) is None
    assert gates.deviation(own._replace(data=own.data._replace(held=None)), moment) is None


@pytest.mark.clause("TRAIN-9")
def test_the_schedule_warms_up_and_falls_to_its_floor(tmp_path):
    asked = settings(tmp_path, steps=1000, optimiser=Optimiser())
    falls = optimisers.schedule(asked)
    assert (falls.kind, falls.warmup, falls.factor(9), falls.factor(1000)) == ("cosine", 10, 1, 0.1)
    public = optimisers.optimiser(settings(tmp_path, model=Model(model="atlas-mag", **SMALL)))
    (stays, rule) = public.groups
    assert (stays.optimiser, rule.optimiser.b2, rule.optimiser.decay) == (None, 0.95, 0.1)
    with pytest.raises(ValueError, match="hidden_rate: adamw has one rate"):
        optimisers.optimiser(settings(tmp_path, optimiser=Optimiser(hidden_rate=0.1)))


@pytest.mark.clause("TRAIN-8")
@pytest.mark.parametrize("preset", [None, "causal", "titans", "atlas-rnn"])
@pytest.mark.parametrize("kind", ["mag", "mal", "mac", "lmm", "omega"])
def test_kinds_and_presets_make_models(kind, preset):
    config = models.model(Model(model=kind, preset=preset, **SMALL), 256)
    assert config.causal == (preset != "atlas-rnn")
    assert models.takes_documents(config) == ((kind, preset) != ("mac", "atlas-rnn"))


@pytest.mark.clause("TRAIN-8")
def test_a_model_is_that_of_its_settings():
    config = models.model(TINY, 99)
    (block,) = config.blocks
    (level,) = block.memory.levels.levels
    assert (config.vocabulary, level.rule.name, level.form) == (99, "delta", "exact")
    assert block.memory.conv is None
    own = models.model(Model(model="atlas-mag", ttl_step=0.5, poly_degree=1, **SMALL), 256)
    assert own.blocks[0].memory.rates.step_size == 0.5
    assert not models.takes_documents(own)
    bare = models.model(Model(model="mag", memory=False, **SMALL), 256)
    assert bare.blocks[0].memory is None


@pytest.mark.clause("TRAIN-8")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "omgea"}, "rule 'omgea' does not exist; .*did you mean omega"),
        ({"preset": "casual"}, "did you mean causal"),
        ({"model": "omega", "rule": "delta"}, "rule: delta has no window"),
        ({"omega_window": 4}, "omega_window: rule titans_lmm has no window"),
        ({"poly_rank": 4}, "poly_rank: model mag has no such setting"),
        ({"model": "atlas-mag", "rule": "delta"}, "rule: model atlas-mag has no such setting"),
        ({"model": "omega", "poly_degree": 2}, "has no effect while poly_mode is off"),
        ({"model": "omega", "poly_mode": "elementwise"}, "needs a degree of at least 2"),
        ({"model": "mac", "memory": False}, "memory: MAC attends over its memory"),
        ({"heads": 3}, "heads: 3 do not divide dim 8"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        models.model(Model(**SMALL | fields), 256)


#: Page faults of the fifth to the eighth step, in a process of their own: what earlier tests left
#: to the allocator changes how many there are.
STEPS = """
import resource, sys
from pathlib import Path
from atlas_ref.train import data, loop
from atlas_ref.train.settings import Model
from tests.support.training import library, settings

text = library(Path(sys.argv[1]), files=6, size=3000)
asked = settings(text, model=Model(model="lmm", layers=2, kernel=1), rows=4, tokens=256)
own = loop.task(asked, data.load(asked))
moment, faults = loop.start(own), []
for _ in range(8):
    moment, _ = loop.step(own, moment)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[3])
"""


@pytest.mark.slow
@pytest.mark.host("asks the system about its own process")
@pytest.mark.clause("TRAIN-10")
def test_after_the_third_step_no_page_is_touched_for_the_first_time(tmp_path):
    """Freed pages stay with the process; thousands a step would be faulted in anew else."""
    pytest.importorskip("resource", reason="no system of POSIX")
    ran = subprocess.run(
        [sys.executable, "-c", STEPS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) < 4 * 200


@pytest.mark.clause("TRAIN-6", "TRAIN-11")
def test_shared_memories_go_on_into_evaluations_and_are_no_parameters(tmp_path):
    own = tasked(tmp_path, model=Model(model="atlas-mag", **SMALL))
    assert own.settings.carried
    first = loop.start(own)
    moment, _ = stepped(own, 3)
    for name in ("W_up", "W_down"):
        held = [each.state.blocks[0].memory.levels.states[0].weights for each in (first, moment)]
        if name in held[0]:
            assert np.abs(held[1][name] - held[0][name]).max() > 0
    assert same_bits(
        first.params.blocks[0].memory.phi, moment.params.blocks[0].memory.phi
    )  # the outer optimiser leaves them
    anew = loop.evaluate(own, moment._replace(state=first.state))
    assert loop.evaluate(own, moment).loss != anew.loss
    assert loop.evaluate(own, moment) == loop.evaluate(own, moment)
