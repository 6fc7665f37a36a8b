"""Kernels of gated_delta as people write them, right and wrong, for the tests of try."""

import numpy as np


def chunk(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None
):
    """Right, in fla's layout: (B, T, H, D), logs of gates, states (K, V)."""
    heads = v.shape[2] // k.shape[2]
    q, k = (np.repeat(x, heads, axis=2) for x in (q, k))
    T, K, V = v.shape[1], k.shape[3], v.shape[3]
    ends = [T * b for b in range(len(v) + 1)] if cu_seqlens is None else list(cu_seqlens)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v, g, beta)]
    last, o = np.zeros((len(ends) - 1, v.shape[2], K, V), v.dtype), np.empty_like(flat[2])
    for n in range(len(ends) - 1):
        S = last[n] if initial_state is None else initial_state[n]
        for t in range(ends[n], ends[n + 1]):
            qt, kt, vt, gt, bt = (x[t] for x in flat)
            S = S * np.exp(gt)[:, None, None]
            change = bt[:, None] * (vt - np.einsum("hk,hkv->hv", kt, S))
            S = S + kt[:, :, None] * change[:, None, :]
            o[t] = np.einsum("hk,hkv->hv", qt, S) * (K**-0.5 if scale is None else scale)
        last[n] = S
    return o.reshape(v.shape), last if output_final_state else None


def twice(q, k, v, g, beta, initial_state=None, output_final_state=False):
    """Wrong: queries are scaled before the kernel that scales them."""
    return chunk(q * q.shape[3] ** -0.5, k, v, g, beta, None, initial_state, output_final_state)


def round_robin(q, k, v, g, beta):
    """Wrong where heads share keys: value head h has key head h mod the number of them."""
    q, k = (np.tile(x, (1, 1, v.shape[2] // k.shape[2], 1)) for x in (q, k))
    return chunk(q, k, v, g, beta)[0]


def heads_first(q, k, v, g, beta, initial_state=None, output_final_state=False):
    """Right for (B, H, T, D)."""
    q, k, v, g, beta = (np.swapaxes(x, 1, 2) for x in (q, k, v, g, beta))
    o, S = chunk(q, k, v, g, beta, None, initial_state, output_final_state)
    return np.swapaxes(o, 1, 2), S


def value_first(q, k, v, g, beta, state=None):
    """Right for the gate itself, queries with their scale and states (V, K), as those of mlx-lm."""
    first = None if state is None else np.swapaxes(state, 2, 3)
    o, S = chunk(q, k, v, np.log(g), beta, 1.0, first, True)
    return o, np.swapaxes(S, 2, 3)


def raises(q, k, v, g, beta):
    """A kernel without code for this device."""
    raise RuntimeError("no kernel image is available")


def unknown(q, k, v, g, beta, block):
    """A required argument that the name has not."""


def without_beta(q, k, v, g):
    """A required argument that is missing."""


def unnamed(*tensors):
    """Arguments by their places."""


def reads_alone(q, k, v, g, beta, BT=64):
    """Right, without states and packed sequences."""
    return chunk(q, k, v, g, beta)[0]


def packed_heads(
    query, key, value, decay, beta, past_state=None, *, q_num_heads, kv_num_heads, scale=None
):
    """Right for the tensors of ONNX, (B, T, H D)."""
    heads = (q_num_heads, *(kv_num_heads,) * 4)
    tensors = (query, key, value, decay, beta)
    parts = [x.reshape(*x.shape[:2], n, -1) for x, n in zip(tensors, heads, strict=True)]
    o, S = chunk(*parts[:3], parts[3][..., 0], parts[4][..., 0], scale, past_state, True)
    return o.reshape(value.shape), S


def one_width(q, k, v, g, beta):
    """Right where keys and values are of one width, and raises elsewhere."""
    if k.shape[-1] != v.shape[-1]:
        raise ValueError("head dimensions of keys and values must agree")
    return chunk(q, k, v, g, beta)[0]


def keeps_state(q, k, v, g, beta, output_final_state=False):
    """Asked for the final state, it returns none."""
    return chunk(q, k, v, g, beta)[0], None


def own_scale(q, k, v, g, beta, scale=1.0):
    """Right, with another default of the scale than fla's."""
    return chunk(q, k, v, g, beta, scale)[0]


def no_scale(q, k, v, g, beta, scale=None):
    """It takes a scale, and leaves it out."""
    return chunk(q, k, v, g, beta)[0]


def as_dict(q, k, v, g, beta):
    """It returns what has names."""
    return {"o": chunk(q, k, v, g, beta)[0]}


def state_alone(q, k, v, g, beta):
    """It returns the state in the place of reads."""
    return chunk(q, k, v, g, beta, None, None, True)[1]


def one_sequence(q, k, v, g, beta, output_final_state=False, cu_seqlens=None):
    """It leaves the starts of packed sequences out."""
    return chunk(q, k, v, g, beta, None, None, True)
