// Coefficient rows of all chunks (CHUNK-4) and their cotangents (CHUNK-17).
//
// Rows are those of (memory, chunk, output), columns [M_0, S_0, keys]. A recurrence over the tokens of a chunk, and in one
// column no other column is needed: forward a thread has a column, backward a block has a row.
#include "common.cuh"

constexpr int WARP = 32;

template <class T>
using Gate = View<const T, 4>;  // token of the chunk, memory, chunk, output; the weights have the place in the window last

template <class T>
__device__ inline T of(const Gate<T>& gate, int64 token, int64 memory, int64 chunk, int64 last) {
    return gate.at[token * gate.step[0] + memory * gate.step[1] + chunk * gate.step[2] + last * gate.step[3]];
}

template <class T, bool MOMENTUM>
__global__ void coefficient_rows(
    T* D, T* X, Gate<T> retain, Gate<T> momentum, Gate<T> rate_in, Gate<T> rate_out, Gate<T> weights,
    int64 tokens, int64 memories, int64 chunks, int64 outputs, int64 window, int64 columns, int64 stride) {
    const int64 bases = MOMENTUM ? 2 : 1, all = memories * chunks * outputs * columns;
    const int64 place = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (place >= all) return;
    const int64 column = place % columns, row = place / columns;
    const int64 output = row % outputs, chunk = row / outputs % chunks, memory = row / outputs / chunks;
    T d = column == 0 ? T(1) : T(0), x = MOMENTUM && column == 1 ? T(1) : T(0);
    D[place] = d;
    if (MOMENTUM) X[place] = x;
    for (int64 t = 0; t < tokens; ++t) {
        const int64 lag = column - bases - stride * t;  // place in the window of the token, negative for what came before it
        if (lag < window) {  // beyond it no key has come yet, and 0 stays 0 whatever the gates are
            T enters = T(0);
            if (lag >= 0) {
                T rate = of(rate_in, t, memory, chunk, output);
                if (!MOMENTUM) rate *= of(rate_out, t, memory, chunk, output);
                enters = rate * of(weights, t, memory, chunk, lag);
            }
            if (MOMENTUM) {
                x = of(momentum, t, memory, chunk, output) * x + enters;
                d = of(retain, t, memory, chunk, output) * d + of(rate_out, t, memory, chunk, output) * x;
            } else {
                d = of(retain, t, memory, chunk, output) * d + enters;
            }
        }
        D[place + (t + 1) * all] = d;
        if (MOMENTUM) X[place + (t + 1) * all] = x;
    }
}

// A block has a row and each thread its columns, so the carries need no barrier. Sums over columns: each thread over its own in
// ascending order, then over the lanes of a warp by halves, then over the warps in order.
template <class T, bool MOMENTUM>
__global__ void coefficient_rows_backward(
    T* d_retain, T* d_momentum, T* d_rate_in, T* d_rate_out, T* d_entering,
    const T* D, const T* X, const T* dD, const T* dX_last,
    Gate<T> retain, Gate<T> momentum, Gate<T> rate_in, Gate<T> rate_out, Gate<T> weights,
    int64 tokens, int64 memories, int64 chunks, int64 outputs, int64 window, int64 columns, int64 stride) {
    const int64 bases = MOMENTUM ? 2 : 1, rows = memories * chunks * outputs, row = blockIdx.x;
    const int64 output = row % outputs, chunk = row / outputs % chunks, memory = row / outputs / chunks;
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    T* mu = shared_memory<T>();      // (columns,) cotangent of D_{t+1}
    T* lambda = mu + columns;        // (columns,) of X_{t+1} but for what D_{t+1} asks of it
    T* sums = lambda + columns;      // (tokens, warps, 4)
    const int64 last = (tokens * rows + row) * columns;
    for (int64 i = threadIdx.x; i < columns; i += blockDim.x) {
        mu[i] = dD[last + i];
        lambda[i] = MOMENTUM ? dX_last[row * columns + i] : T(0);
    }
    for (int64 t = tokens - 1; t >= 0; --t) {
        const int64 before = t ? bases + stride * (t - 1) + window : bases;  // columns that row t has reached
        const int64 now = bases + stride * t + window, first = now - window;
        const int64 at = (t * rows + row) * columns, next = at + rows * columns;
        const T r = of(retain, t, memory, chunk, output), a = of(rate_in, t, memory, chunk, output);
        const T b = of(rate_out, t, memory, chunk, output), m = MOMENTUM ? of(momentum, t, memory, chunk, output) : T(0);
        T by_retain = T(0), by_momentum = T(0), by_out = T(0), by_in = T(0);
        for (int64 i = threadIdx.x; i < now; i += blockDim.x) {
            T g = mu[i], entering = g;
            if (MOMENTUM) {
                entering = lambda[i] + b * g;
                by_out += g * X[next + i];
            }
            if (i >= first) {
                by_in += entering * of(weights, t, memory, chunk, i - first);
                d_entering[(t * rows + row) * window + i - first] = entering * (MOMENTUM ? a : a * b);
            }
            if (i < before) {
                by_retain += g * D[at + i];
                if (MOMENTUM) {
                    by_momentum += entering * X[at + i];
                    lambda[i] = m * entering;
                }
                mu[i] = dD[at + i] + r * g;
            }
        }
        by_retain = summed_over_lanes<WARP>(by_retain);
        by_momentum = summed_over_lanes<WARP>(by_momentum);
        by_in = summed_over_lanes<WARP>(by_in);
        by_out = summed_over_lanes<WARP>(by_out);
        if (lane == 0) {
            T* to = sums + (t * warps + warp) * 4;
            to[0] = by_retain;
            to[1] = by_momentum;
            to[2] = by_in;
            to[3] = by_out;
        }
    }
    __syncthreads();
    for (int64 t = threadIdx.x; t < tokens; t += blockDim.x) {
        T total[4] = {T(0), T(0), T(0), T(0)};
        for (int each = 0; each < warps; ++each)
            for (int kind = 0; kind < 4; ++kind) total[kind] += sums[(t * warps + each) * 4 + kind];
        const int64 to = t * rows + row;
        d_retain[to] = total[0];
        if (MOMENTUM) {
            d_momentum[to] = total[1];
            d_rate_in[to] = total[2];
            d_rate_out[to] = total[3];
        } else {
            d_rate_in[to] = total[2] * of(rate_out, t, memory, chunk, output);
            d_rate_out[to] = total[2] * of(rate_in, t, memory, chunk, output);
        }
    }
}
