"""A PyTorch model, recorded by the adapter: each planted mistake is named with its place, and other
right ways to compute pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atlas_ref.oracle.modules.judge import first_wrong, judge

pytest.importorskip("torch", reason="torch is not installed")

from tests.support.recorded_modules import of_torch

LAYER = "layers.0."


class Place(NamedTuple):
    """Where a mistake is found: a module, or two between which it lies; and its nearest reading.

    Attributes:
        first: word before the first wrong token: its number.
    """

    fault: str
    nearest: str = ""
    token: int | None = None
    mag: str = "attention_times_gate"


def between(a: str, b: str, nearest: str = "", **how: Any) -> Place:
    return Place(f"between {LAYER}{a} and {LAYER}{b}", nearest, **how)


#: Each mistake in the place that must be named; `nearest` where a reading explains it.
MISTAKES = {
    "attention: eps 1e-5": Place("attention.norm", "computes norm_eps 1e-05"),
    "memory: eps 1e-5": Place("memory.pre_norm", "computes norm_eps 1e-05"),
    "ff: eps 1e-5": Place("ff.0", "computes norm_eps 1e-05"),
    "attention: eps outside": Place("attention.norm", "adds eps to the root, not under it"),
    "memory: eps outside": Place("memory.pre_norm", "adds eps to the root, not under it"),
    "embed_norm: rms": Place("embed_norm", "computes model_norm rms"),
    "embed_norm: unbiased": Place("embed_norm", "divides the sum for the variance by n - 1"),
    "norm: rms": Place("norm", "computes model_norm rms"),
    "norm: unbiased": Place("norm", "divides the sum for the variance by n - 1"),
    "embed_norm missing": Place(
        "between embed and layers.0 (embed_norm not recorded)", "computes model_norm none"
    ),
    "embedding scaled": Place("between embed and embed_norm", "multiplies by sqrt(6)"),
    "q_norm: identity": Place("memory.q_norm", "computes head_norm none"),
    "q_norm: over all heads": Place("memory.q_norm", "norms all heads together"),
    "k_norm: l2": Place("memory.k_norm", "computes head_norm l2"),
    "k norm weight for q": Place(
        "memory.q_norm", "computes with the parameters of layers.0.memory.k_norm"
    ),
    "head norm left out": Place(
        "between layers.0.memory.to_q and layers.0.memory.cell "
        "(layers.0.memory.q_norm not recorded)",
        "computes head_norm none",
    ),
    "k_conv: tail lost": Place("memory.k_conv", "computes conv_state zero_per_call", 5),
    "q_conv: centred": Place("memory.q_conv", "computes conv_padding centred"),
    "v_conv: taps reversed": Place("memory.v_conv", "applies its taps in reverse"),
    "q_conv: silu": Place("memory.q_conv", "computes conv_activation silu"),
    "convolution skipped for v": between(
        "memory.v_conv",
        "memory.to_v",
        "receives modules/layers.0.memory.pre_norm/out/y in place of",
    ),
    "to_lr: without sigmoid": Place("memory.to_lr", "leaves out its activation"),
    "to_lr: softplus": Place("memory.to_lr", "computes step_size softplus"),
    "to_decay: one minus": Place("memory.to_decay", "returns 1 minus the gate"),
    "gates of x": between(
        "memory.pre_norm",
        "memory.to_lr",
        "receives modules/layers.0.memory.pre_norm/in/x in place of",
    ),
    "gates swapped": between(
        "memory.to_decay",
        "memory.cell",
        "receives modules/layers.0.memory.to_momentum/out/y in place of",
    ),
    "value normed": between("memory.to_v", "memory.cell", "norms rows to length 1"),
    "momentum lost": Place("memory.cell", "forgets the momentum at each call", token=6),
    "window lost": Place("memory.cell", "forgets the window at each call", token=6),
    "window short": Place("memory.cell", "computes omega_window 1"),
    "no window gate": Place("memory.cell", "computes use_omega_gate false"),
    "mean over window": Place("memory.cell", "takes the mean over the window, not the sum"),
    "gates swapped inside": Place("memory.cell", "exchanges retain and momentum"),
    "decay one minus": Place("memory.cell", "computes gate of the rule forget"),
    "decay after write": Place("memory.cell", "decays the step too, M = a (M - b S)"),
    "rate in momentum": Place("memory.cell", "computes rate of the rule momentum"),
    "value sign": Place("memory.cell", "computes value_sign of the rule plus"),
    "read after": Place("memory.cell", "computes read of the rule after", 0),
    "read with keys": Place("memory.cell", "reads with keys"),
    "rotary base": Place("attention.rotary", "computes rotary_base 1000", 1),
    "rotary halves": Place("attention.rotary", "computes rotary_pairs halves", 1),
    "rotary restarts": Place("attention.rotary", "computes rotary_position restart", 5),
    "rotary from 1": Place("attention.rotary", "counts positions from 1", token=0),
    "keys not turned": Place("attention.rotary", "does not turn", token=1),
    "value turned": between(
        "attention.to_qkv", "attention.attend", "turns values by their positions"
    ),
    "cache lost": Place("attention.attend", "starts with an empty cache in each call", token=5),
    "window long": Place("attention.attend", "computes window_counts_self false", 4),
    "window short by one": Place("attention.attend", "computes window_size 3", 3),
    "sees the next": Place(
        "attention.attend", "masks one place too late, so that a token sees the next", token=0
    ),
    "persistent masked": Place(
        "attention.attend", "shows persistent rows one by one, the last first", token=0
    ),
    "persistent turned": Place("attention.attend", "turns persistent rows by positions"),
    "scale 1/d": Place("attention.attend", "scales scores by 1/d"),
    "masked after softmax": Place("attention.attend", "masks after the softmax, without a new sum"),
    "heads in wrong order": between(
        "attention.to_qkv",
        "attention.rotary",
        "in layers.0.attention.to_qkv takes entry i of head h from row i H + h",
    ),
    "q and k swapped": between(
        "attention.to_qkv",
        "attention.rotary",
        "receives modules/layers.0.attention.to_qkv/out/k in place of",
    ),
    "heads merged in wrong order": between(
        "attention.attend", "attention.to_out", "puts entry i of head h into row i H + h"
    ),
    "sigmoid of attention": Place("mix", "exchanges attention and memory, m sigmoid(a)"),
    "mix is a sum": Place("mix", "computes a + m"),
    "mix halves": Place("mix", "exchanges g and 1 - g", mag="gate_mix"),
    "gate of normed x": Place(
        "between layers.0 and layers.0.gate",
        "receives modules/layers.0.memory.pre_norm/out/y in place of",
        mag="gate_mix",
    ),
    "memory of normed x": Place(
        "between layers.0 and layers.0.memory",
        "receives modules/layers.0.attention.norm/out/y in place of",
    ),
    "residual missing": Place(
        "between layers.0 and layers.0.mix and layers.0.ff", "leaves out modules/layers.0/in/x"
    ),
    "residual of ff missing": Place(
        "between layers.0.ff and the end of layers.0", "leaves out modules/layers.0.ff/in/x"
    ),
    "ff halves": Place("ff.2", "computes ff_gate_half first"),
    "gelu": Place("ff.2", "computes ff_activation gelu"),
    "weights tied": Place("to_logits", "computes with the parameters of embed"),
    "loss shifted by two": Place("loss", "predicts the token after the next"),
    "loss summed over rows": Place("loss", "sums over batch rows"),
}
#: Mistakes whose readings are habits, each another one than those above.
HABITS = {
    "ff: no gain": Place("ff.0", "leaves out the gain"),
    "memory: 1 + gain": Place("memory.pre_norm", "multiplies by 1 + gain"),
    "gelu by erf": Place("ff.2", "gates with gelu by erf"),
    "rotary other way": Place("attention.rotary", "turns the other way", token=1),
    "no scale": Place("attention.attend", "does not scale scores"),
    "sees not itself": Place(
        "attention.attend", "masks one place too early, so that no token sees itself", token=0
    ),
    "momentum one minus": Place("memory.cell", "takes 1 minus momentum"),
    "to_momentum: no bias": Place("memory.to_momentum", "leaves out the bias"),
    "logits capped": Place("to_logits", "caps its result, 30 tanh(y / 30)"),
    "branch twice": Place(
        "between layers.0 and layers.0.mix and layers.0.ff", "adds twice modules/layers.0.mix/out/y"
    ),
}
PLANTED = MISTAKES | HABITS
OF_MODEL = ("embed", "embed_norm", "norm", "to_logits", "loss")


def test_which_mistakes_have_readings() -> None:
    """All: the name of an axis, other parameters, or a habit."""
    words = {name: place.nearest for name, place in PLANTED.items()}
    assert (len(MISTAKES), len(HABITS)) == (68, 10)
    assert [name for name, each in words.items() if not each] == []
    of_axes = [name for name, each in words.items() if each.startswith("computes ")]
    assert len(of_axes) == 28 + 1  # and "mix is a sum", which computes a + m
    assert set(HABITS).isdisjoint(of_axes)


@pytest.mark.sample(4)
@pytest.mark.clause(
    "MODULES-5", "MODULES-6", "MODULES-10", "MODULES-12", "MODULES-13", "MODULES-18"
)
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_single_mistake_is_named_with_its_place(mistake: str, tmp_path: Path) -> None:
    place = PLANTED[mistake]
    left_out = {"head norm left out": ("q_norm", "k_norm"), "embed_norm missing": ("embed_norm",)}
    recording = of_torch(
        tmp_path, (mistake,), depth=1, mag=place.mag, without=left_out.get(mistake, ())
    )
    verdicts = judge(recording)
    first = first_wrong(verdicts)
    assert first is not None, f"{mistake}: nothing is wrong"
    words = f"{first.fault}: {first.tensor}, {first.place}"
    print(f"{mistake:28} -> {words}" + (f"; {first.nearest}" if first.nearest else ""))
    whole = place.fault.startswith("between") or place.fault in OF_MODEL
    assert first.fault == (place.fault if whole else f"{LAYER}{place.fault}"), words
    assert first.verdict == "WRONG"
    assert first.nearest.startswith(place.nearest)
    if place.token is not None:
        assert f"token {place.token} (call {place.token // 5}" in first.place


#: Mistakes of the rule titans_lmm, by the reading of its only level, or the habit.
OF_TITANS = {
    "decay one minus": "computes level 0 gate forget",
    "read after": "computes level 0 read after",
    "momentum lost": "forgets the momentum at each call",
    "read with keys": "reads with keys",
}


@pytest.mark.sample(2)
@pytest.mark.clause("MODULES-14", "MODULES-19")
@pytest.mark.parametrize("mistake", ["", *OF_TITANS])
def test_the_rule_of_one_token_is_another_rule(mistake: str, tmp_path: Path) -> None:
    verdicts = judge(of_torch(tmp_path, (mistake,), depth=1, titans=True))
    first = first_wrong(verdicts)
    if not mistake:
        assert first is None
        assert len(verdicts) > 8
        return
    assert first is not None
    assert (first.fault, first.clause) == ("layers.0.memory.cell", "TITANS-6")
    assert first.nearest.startswith(OF_TITANS[mistake])
    assert "trace/S" in first.inside


@pytest.mark.sample(1)
@pytest.mark.clause("MODULES-5")
@pytest.mark.parametrize("mistake", ["attention: eps 1e-5", "momentum lost", "residual missing"])
def test_a_mistake_blames_nothing_after_it(mistake: str, tmp_path: Path) -> None:
    verdicts = judge(of_torch(tmp_path, (mistake,)), nearest=False)
    faults = {each.fault for each in verdicts if each.verdict != "PASS"}
    fault = first_wrong(verdicts)
    assert fault is not None
    assert faults == {fault.fault, fault.fault.replace("layers.0", "layers.1")}


#: Right ways to compute: flags of the model, and how it is recorded.
VARIANTS: dict[str, dict[str, Any]] = {
    "as written": {},
    "fused projection of q, k and v": {
        "how": ("fused qkv",),
        "without": ("to_q", "to_k", "to_v"),
    },
    "softmax with its maximum subtracted": {"how": ("max subtracted",)},
    "scaled_dot_product_attention": {"how": ("sdpa",)},
    "attention in chunks of queries": {"how": ("chunked attention",)},
    "fused gates": {
        "how": ("fused gates",),
        "without": ("to_lr", "to_decay", "to_momentum", "to_omega_gate"),
    },
    "einsum": {"how": ("einsum",)},
    "convolution by unfolding": {"how": ("unfold",)},
    "rotary by complex numbers": {"how": ("complex rotary",)},
    "mix by lerp": {"how": ("lerp",), "mag": "gate_mix"},
    "one call": {"calls": (9,)},
    "token by token": {"calls": (1,) * 9},
    "float32": {"float32": True},
    "float32, other ways": {
        "float32": True,
        "how": ("sdpa", "unfold", "complex rotary", "einsum", "fused gates"),
        "without": ("to_lr", "to_decay", "to_momentum", "to_omega_gate"),
    },
}


@pytest.mark.sample(3)
@pytest.mark.clause("MODULES-5", "MODULES-7", "MODULES-9")
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_another_right_way_to_compute_passes(variant: str, parts: bool, tmp_path: Path) -> None:
    how = dict(VARIANTS[variant])
    if parts:  # without results of modules of modules, so that every part is judged
        how["without"] = (*how.get("without", ()), "0", "memory", "attention", "ff")
    verdicts = judge(of_torch(tmp_path, depth=1, **how), nearest=False)
    assert {each.key: each.verdict for each in verdicts if each.verdict != "PASS"} == {}
    assert len(verdicts) >= (30 if parts else 8)


@pytest.mark.clause("MODULES-1", "MODULES-2")
def test_the_adapter_records_by_a_map_of_names_and_what_is_put_in_by_hand(tmp_path: Path) -> None:
    import torch
    import torch_modules
    from safetensors import safe_open
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    net, x = Net(), torch.ones(1, 2, 3)
    recorder = torch_modules.Recorder(
        net, {"layer": "attention"}, names={"first": "layer.to_out"}, parameters={"first.bias": "b"}
    )
    with recorder:
        net(x)
        y = net(x + 1)
    net(x)  # after the hooks were removed
    recorder.put("layer.attend", {"q": y[:, None]}, {"y": None})
    tensors = recorder.tensors()
    assert sorted(tensors) == [
        "in/param/b",
        "modules/layer.attend/in/q",
        "modules/layer.to_out/in/x",
        "modules/layer.to_out/out/y",
    ]
    assert tensors["modules/layer.to_out/in/x"].tolist() == torch.cat([x, x + 1], 1).tolist()
    recorder.save(tmp_path / "net.safetensors")
    with safe_open(tmp_path / "net.safetensors", "np") as file:
        assert '"calls": [2, 2]' in file.metadata()["atlas_ref"]
