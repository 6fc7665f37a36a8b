"""Models of atlas-rnn that do otherwise than their description: MAC, generation, printed calls.

Measurements of a system, as in `rnn_layers`; None where a system has no such thing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tape
from atlas_ref.blocks import mac, mix, with_memory
from atlas_ref.models import generation, import_atlas_rnn, language_model
from atlas_ref.models.import_atlas_rnn import Settings
from benchmarks.survey.rnn_layers import (
    DIM,
    SIZES,
    VOCABULARY,
    T,
    apart,
    decoded,
    percent,
    rows,
)
from benchmarks.survey.rnn_modules import Package, ids, tokens
from tape import ops

MODEL: dict[str, Any] = {**SIZES, "vocab": VOCABULARY, "depth": 2}
MAC = Settings(**MODEL, block_type="mac", num_persist_mem_tokens=2)


# -- MAC -------------------------------------------------------------------------------------------


def remembers_calls(run: Any) -> str:
    """Logits of a second call on the same 16 ids, no state given, against the first."""
    x = ids(16, VOCABULARY)
    if isinstance(run, Package):
        model = run.built("model", MAC)
        with run.torch.no_grad():
            first, again = (model(run.tensor(x)).double().numpy() for _ in range(2))
        return percent(apart(again, first))
    _, config, params = run.built("model", MAC)
    start = language_model.start(config)
    after, first = language_model.apply(config, params, start, x)
    before = generation.forgotten(config, start, after)
    return percent(apart(language_model.apply(config, params, before, x)[1], first))


def fails_at(run: Any) -> str | None:
    """The training step whose backward raises RuntimeError, at 16 and at 255 tokens."""
    if not isinstance(run, Package):
        return None
    return ", ".join(_failing_step(run, count) for count in (16, 255))


def _failing_step(run: Package, count: int, most: int = 40) -> str:
    model, x = run.built("model", MAC), run.tensor(ids(count + 1, VOCABULARY))
    for step in range(1, most + 1):
        try:
            model(x, return_loss=True).backward()
        except RuntimeError:
            return str(step)
    return f"none of {most}"


def reaches_back(run: Any) -> str:
    """The gradient of a second call by tokens of the first, over that by its own tokens."""
    first, second, bar = (tokens(16, DIM, seed) for seed in range(3))
    s = MAC.replaced(vocab=None, depth=None)
    if isinstance(run, Package):
        block, torch = run.built("block", s), run.torch
        leaves = [run.tensor(each).requires_grad_() for each in (first, second)]
        for x in leaves:
            y, _ = block(x)
        found = torch.autograd.grad((y * run.tensor(bar)).sum(), leaves, allow_unused=True)
        gradients = [np.zeros(1) if each is None else each.numpy() for each in found]
    else:
        _, config, params = run.built("block", s)
        start = mac.start(config)

        def of_second(one: Any, two: Any) -> Any:
            after, _ = mac.apply(config, params, start, one)
            before = mac.forgotten(config, start, after)
            return ops.sum(mac.apply(config, params, before, two)[1] * bar)

        gradients = list(tape.grad(of_second, argnums=(0, 1))(first, second))
    sizes = [float(np.linalg.norm(each)) for each in gradients]
    return percent(sizes[0] / sizes[1])


def no_segments(run: Any) -> str:
    """Rows of the second segment of 16 that a token of the first one changes, no memory read."""
    s = MAC.replaced(vocab=None, depth=None)
    x = tokens(T, DIM)
    other = x.copy()
    other[:, 12] += 1.0
    return f"{sum(each >= 16 for each in rows(_silent(run, s, x), _silent(run, s, other)))} of 8"


def _silent(run: Any, s: Settings, x: Any) -> Any:
    """The result of MAC whose memory reads nothing but zeros."""
    if isinstance(run, Package):
        name = "memory.to_out.weight"
        return run.run("block", s, [x], lambda tensors: {name: 0.0 * tensors[name]}).last
    _, config, params = run.built("block", s)
    nothing = params.memory.replaced(W_out=0.0 * params.memory.W_out)
    return mac.apply(config, params.replaced(memory=nothing), mac.start(config), x)[1]


def equal_rows(run: Any) -> str | None:
    """The rank of the keys of the N = 4 long-term rows."""
    if not isinstance(run, Package):
        return None
    block = run.built("block", MAC.replaced(vocab=None, depth=None))
    with run.torch.no_grad():
        k, _ = block._build_mem_context(run.tensor(tokens(T, DIM)), 1)
    return str(int(np.linalg.matrix_rank(k.numpy()[0, 0])))


def returned_state(run: Any) -> str | None:
    """Tokens that the state has seen which MAC returns after 16 and after 32."""
    if not isinstance(run, Package):
        return None
    block = run.built("block", MAC.replaced(vocab=None, depth=None))
    with run.torch.no_grad():
        states = [block(run.tensor(tokens(16, DIM, seed)))[1] for seed in range(2)]
    return ", ".join("0" if each is None else str(each.seq_index) for each in states)


# -- MAG -------------------------------------------------------------------------------------------


def other_mixes(run: Any) -> str | None:
    """The mix of MAG, against the three other mixes of the same token, a and m."""
    if isinstance(run, Package):
        return None
    x, a, m = (tokens(T, DIM, seed) for seed in range(3))
    config = mix.configured(run.readings.replaced(mag="gate_mix"), DIM)
    gate = mix.init(config, np.random.default_rng(0))
    public = mix.mixed(config, gate, x, a, m)
    found = []
    for kind in ("attention_times_gate", "product", "sum"):
        other = mix.configured(run.readings.replaced(mag=kind), DIM)
        params = gate if other.has_gate else mix.init(other, np.random.default_rng(0))
        found.append(percent(apart(mix.mixed(other, params, x, a, m), public)))
    return ", ".join(found)


# -- generation, printed calls, scripts -----------------------------------------------------------


def cached(run: Any) -> str:
    """Logits of the second new token with a cache, against those of one call: MAG, MAL, LMM."""
    return ", ".join(
        decoded(run, "model", Settings(**MODEL, block_type=kind), ids(9, VOCABULARY), [8])
        for kind in ("mag", "mal", "lmm")
    )


def left_in_eval(run: Any) -> str | None:
    """Whether a model is in training mode after `generate`."""
    if not isinstance(run, Package):
        return None
    model = run.built("model", Settings(**MODEL, block_type="lmm")).train()
    with contextlib.redirect_stderr(io.StringIO()):
        model.generate(run.tensor(ids(8, VOCABULARY)), 10, temperature=0.0)
    return "yes" if model.training else "no"


#: The calls of its README for MAG, MAL and LMM: the name imported, and the arguments.
PRINTED: dict[str, dict[str, Any]] = {
    "MemoryAsGateTransformer": {
        "window_size": 64,
        "num_persist_mem_tokens": 4,
        "neural_memory_layers": (1, 2, 3, 4),
        "use_rnn_memory": True,
        "omega_window": 2,
        "poly_degree": 2,
        "poly_mode": "elementwise",
    },
    "MemoryAsLayerTransformer": {
        "window_size": 64,
        "neural_memory_layers": (1, 2, 3, 4),
        "use_rnn_memory": True,
        "omega_window": 2,
    },
    "LongTermMemoryModel": {"omega_window": 2, "poly_degree": 2, "poly_mode": "elementwise"},
}
OF_PRINTED: dict[str, Any] = dict(zip(PRINTED, ("mag", "mal", "lmm"), strict=True))


def printed_calls(run: Any) -> str:
    """What becomes of the calls of the README for MAG, MAL and LMM, on 8 ids."""
    return ", ".join(_printed(run, name) for name in PRINTED)


def _printed(run: Any, name: str) -> str:
    given = {"dim": 256, "depth": 4, **PRINTED[name]}
    if isinstance(run, Package):
        package = sys.modules["atlas_pytorch"]
        try:
            # as `from atlas_pytorch import NAME` would say it
            if not hasattr(package, name):
                return "ImportError"
            getattr(package, name)(num_tokens=256, **given)(run.tensor(ids(8, 256)))
        except (TypeError, RuntimeError) as error:
            return type(error).__name__
        return "runs"
    layers = given.pop("neural_memory_layers", None)
    given.pop("use_rnn_memory", None)
    s = Settings(**given, vocab=256, heads=8, dim_head=64, block_type=OF_PRINTED[name])
    config = import_atlas_rnn.model_config(s)
    if layers is not None:
        config = config.replaced(blocks=with_memory(config.blocks, layers))
    params, state = language_model.init(config), language_model.start(config)
    _, loss = language_model.loss(config, params, state, ids(8, 256))
    return "runs" if np.isfinite(loss) else "not finite"


def shifted_twice(run: Any) -> str | None:
    """Tokens of a row of 256 that training predicts, and the number that weighs its loss."""
    if not isinstance(run, Package):
        return None
    script = _script("train_rnn_transformer")
    x, _ = script.TextDataset(run.torch.arange(1000) % VOCABULARY, 256)[0]
    model, predicted = run.built("model", Settings(**MODEL)), []
    model.to_logits.register_forward_hook(lambda _, __, y: predicted.append(y.shape[1]))
    with run.torch.no_grad():
        model(x[None], return_loss=True)
    return f"{predicted[0]}, {x.numel()}"


def momentum_flag(run: Any) -> str | None:
    """`use_momentum` of train_rnn_memory.py without its flag and with it."""
    if not isinstance(run, Package):
        return None
    script, found = _script("train_rnn_memory"), []
    for flags in ([], ["--use-momentum"]):
        with mock.patch.object(sys, "argv", ["train_rnn_memory.py", *flags]):
            found.append(str(script.parse_args().use_momentum))
    return ", ".join(found)


def unread_path(run: Any) -> str | None:
    """How often train_rnn_transformer.py reads its flag --save-path."""
    if not isinstance(run, Package):
        return None
    text = Path(str(_script("train_rnn_transformer").__file__)).read_text()
    return str(text.count("args.save_path"))


def _script(name: str) -> Any:
    """A training script of the clone, without running it."""
    file = Path(str(sys.modules["atlas_pytorch"].__file__)).parents[1] / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} does not load")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
