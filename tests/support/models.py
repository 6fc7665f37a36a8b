"""Models for tests: one of each kind of block and memory, and state_dicts that public code recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from atlas_ref.blocks import lmm
from atlas_ref.layers import convention, memory
from atlas_ref.models import language_model
from atlas_ref.parts.feature_maps import Linear, RandomFourier, ResidualMlp, Sketch
from atlas_ref.parts.feature_maps.tensor_sketch import TensorSketch
from atlas_ref.parts.window import Decay, Gate, Product, Softmax
from tests.support.layer_blocks import BLOCKS
from tests.support.layers import Recorded, files
from tests.support.memories import POLYNOMIAL, layer, rule

#: Recorded models of public code.
RECORDED = [*files("language_model"), *files("memory_language_model")]

#: Settings of a recording that are no arguments of a constructor.
OF_THE_RECORDING = ("max_length", "min_p", "temperature", "repeat_calls")

#: Memories whose feature map or window has tensors of its own.
WITH_TENSORS: dict[str, Any] = {
    "linear": layer(rule("omega", feature_map=Linear(), features=5)),
    "random fourier": layer(rule("omega", feature_map=RandomFourier(), features=4)),
    "residual mlp": layer(rule("omega", feature_map=ResidualMlp())),
    "sketch": layer(rule("omega", feature_map=Sketch())),
    "tensor sketch": layer(rule("omega", feature_map=TensorSketch())),
    "softmax and gate": layer(rule("omega", window_weights=Product(of=(Softmax(), Gate())))),
    "deep": layer(rule("deep_memory", fast=("W_2",), window_weights=Product(of=(Decay(), Gate())))),
    "deep polynomial": layer(rule("deep_memory", memory=POLYNOMIAL, clip="soft", adaptive=True)),
}


def _model(each: Any, readings: str = "causal", **settings: Any) -> language_model.Config:
    block = lmm.Config(memory=each, feed_forward=None) if isinstance(each, memory.Config) else each
    c = convention.resolve({"preset": readings, **settings})
    return language_model.configured(c, [block, block], vocabulary=7)


#: A model of each memory and block of the tests of layers, tied and under other norms too.
MODELS: dict[str, language_model.Config] = {
    **{name: _model(each.config) for name, each in BLOCKS.items()},
    **{name: _model(each) for name, each in WITH_TENSORS.items()},
    "tied": _model(BLOCKS["mag titans"].config).replaced(tied=True),
    "without norms": _model(BLOCKS["mac"].config, model_norm="none"),
    "rms norms": _model(BLOCKS["mal"].config, model_norm="rms", sampling="temperature_first"),
}


def arguments(file: Recorded) -> dict[str, Any]:
    """The arguments of the constructor of a recorded model."""
    return {name: x for name, x in file.settings.items() if name not in OF_THE_RECORDING}


def public_file(path: Path, tensors: dict[str, Any], metadata: Any = None) -> Path:
    """A file of tensors as public code saves it."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(contiguous, path, metadata=metadata)
    return path
