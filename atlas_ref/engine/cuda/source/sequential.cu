// One token after another with the running (or the zero) reference, memory and momentum in registers:
//
//     e_j = M_{t-1} phi_{t-j} - v_{t-j}            r_t M_{t-1} where the memory decays before the error
//     S_t = m_t S_{t-1} + a_t sum_j w_t[j] e_j phi_{t-j}^T
//     M_t = r_t M_{t-1} - b_t S_t,                 y_t = M_t q_t, or M_{t-1} q_t
//
// Rows of M never meet once keys and weights are given, so a block has a tile of the rows of one memory, LANES threads have a
// row, and each of them PART of its entries: lane, lane + LANES, ... Keys, values and weights of the window stand in the memory
// of the block, in a ring with one place more than the window, which the next token fills while this one is computed: so a
// token costs one barrier.
#include "common.cuh"

template <class T>
using PerToken = View<const T, 3>;  // memory, token, output; the weights have the lag last

// Entries of one key or query that a thread fetches: enough where PART <= 2 * rows of the tile.
constexpr int FETCHED = 2;

enum Read { READ_AFTER = 0, READ_BEFORE = 1, READ_NOTHING = 2 };

template <class A, int PART, int LANES>
__device__ inline A times_row(const A* row, const A* vector, int lane) {
    A sum = A(0);
#pragma unroll
    for (int p = 0; p < PART; ++p) sum += row[p] * vector[lane + LANES * p];
    return summed_over_lanes<LANES>(sum);
}

// One number of every token: those of one memory and output (or lag), and how far it is to the next token's.
template <class A>
struct Gate {
    const A* at;
    int64 step;
    __device__ Gate(const PerToken<A>& all, int64 memory, int64 last)
        : at(all.at ? all.at + memory * all.step[0] + last * all.step[2] : nullptr), step(all.step[1]) {}
    __device__ A next() {
        const A found = *at;
        at += step;
        return found;
    }
};

template <class V, class A, int PART, int LANES>
__global__ void __launch_bounds__(256) sequential(
    V* y, A* M_after, A* S_after, const V* keys, const V* values, const V* queries, const A* M, const A* S,
    PerToken<A> all_retain, PerToken<A> all_momentum, PerToken<A> all_rate_in, PerToken<A> all_rate_out, PerToken<A> weights,
    int64 tokens, int64 all_outputs, int64 all_features, int64 lags, int64 read, int64 before_error, int64 zero_reference) {
    constexpr int WIDE = PART * LANES;
    const int outputs = all_outputs, features = all_features, window = lags, ring = window + 1;
    const int lane = threadIdx.x, row = threadIdx.y, tile = blockDim.y, count = LANES * tile, self = row * LANES + lane;
    const int first = blockIdx.y * tile, output = first + row;
    const bool mine = output < outputs;
    const int64 memory = blockIdx.x, gated = mine ? output : outputs - 1;  // rows beyond the last compute along and write nothing
    A* const key_ring = shared_memory<A>();            // (ring, WIDE)
    A* const value_ring = key_ring + ring * WIDE;      // (ring, tile)
    A* const query_pair = value_ring + ring * tile;    // (2, WIDE)
    A* const weight_pair = query_pair + 2 * WIDE;      // (2, window)
    keys += memory * (tokens + window - 1) * features;
    values += memory * (tokens + window - 1) * outputs;
    weights.at += memory * weights.step[0];
    if (read != READ_NOTHING) {
        queries += memory * tokens * features;
        y += memory * tokens * outputs + output;
    }
    Gate<A> retain(all_retain, memory, gated), momentum(all_momentum, memory, gated);
    Gate<A> rate_in(all_rate_in, memory, gated), rate_out(all_rate_out, memory, gated);

    A m[PART], s[PART];
    const int64 place = (memory * outputs + output) * features;
#pragma unroll
    for (int p = 0; p < PART; ++p) {
        const int column = lane + LANES * p;
        const bool there = mine && column < features;
        m[p] = there ? M[place + column] : A(0);
        s[p] = there && S ? S[place + column] : A(0);
    }
    for (int i = self; i < window * WIDE; i += count) {
        const int column = i % WIDE;
        key_ring[i] = column < features ? widened(keys[i / WIDE * features + column]) : A(0);
    }
    for (int i = self; i < window * tile; i += count) {
        const int column = first + i % tile;
        value_ring[i] = column < outputs ? widened(values[i / tile * outputs + column]) : A(0);
    }
    for (int i = self; i < WIDE && read != READ_NOTHING; i += count) query_pair[i] = i < features ? widened(queries[i]) : A(0);
    for (int j = self; j < window; j += count) weight_pair[j] = weights.at[j * weights.step[2]];
    keys += window * features;  // of the token after this one
    values += window * outputs;

    int newest = window - 1;  // place of this token's key in the ring
    for (int64 t = 0; t < tokens; ++t) {
        const A r = retain.next(), a = rate_in.next(), b = rate_out.next(), kept = momentum.at ? momentum.next() : A(0);
        __syncthreads();

        // What the next token needs, on its way while this one is computed.
        const bool more = t + 1 < tokens;
        A next_key[FETCHED], next_query[FETCHED], next_value = A(0), next_weight = A(0);
        if (read != READ_NOTHING) queries += features;
        weights.at += weights.step[1];
#pragma unroll
        for (int e = 0; e < FETCHED; ++e) {
            const int column = self + e * count;
            const bool there = more && column < features;
            next_key[e] = there ? widened(keys[column]) : A(0);
            next_query[e] = there && read != READ_NOTHING ? widened(queries[column]) : A(0);
        }
        if (more && self < tile && first + self < outputs) next_value = widened(values[first + self]);
        if (more && self < window) next_weight = weights.at[self * weights.step[2]];
        keys += features;
        values += outputs;

        const int now = t % 2, then = 1 - now;
        const A* query = query_pair + now * WIDE;
        const A* weight = weight_pair + now * window;
        A found = A(0);
        if (read == READ_BEFORE) found = times_row<A, PART, LANES>(m, query, lane);
#pragma unroll
        for (int p = 0; p < PART; ++p) s[p] = momentum.at ? kept * s[p] : A(0);
        for (int j = window - 1; j >= 0; --j) {  // oldest first
            const int held = newest >= j ? newest - j : newest - j + ring;
            const A* key = key_ring + held * WIDE;
            A error = -value_ring[held * tile + row];
            if (!zero_reference) {
                const A predicted = times_row<A, PART, LANES>(m, key, lane);
                error += before_error ? r * predicted : predicted;
            }
            const A step = a * weight[j] * error;
#pragma unroll
            for (int p = 0; p < PART; ++p) s[p] += step * key[lane + LANES * p];
        }
#pragma unroll
        for (int p = 0; p < PART; ++p) m[p] = r * m[p] - b * s[p];
        if (read == READ_AFTER) found = times_row<A, PART, LANES>(m, query, lane);
        if (read != READ_NOTHING) {
            if (mine && lane == 0) store(y, found);
            y += outputs;
        }

        newest = newest + 1 == ring ? 0 : newest + 1;
#pragma unroll
        for (int e = 0; e < FETCHED; ++e) {
            const int column = self + e * count;
            if (column < WIDE) {
                key_ring[newest * WIDE + column] = next_key[e];
                query_pair[then * WIDE + column] = next_query[e];
            }
        }
        if (self < tile) value_ring[newest * tile + self] = next_value;
        if (self < window) weight_pair[then * window + self] = next_weight;
    }
#pragma unroll
    for (int p = 0; p < PART; ++p) {
        const int column = lane + LANES * p;
        if (mine && column < features) {
            M_after[place + column] = m[p];
            if (S_after) S_after[place + column] = s[p];
        }
    }
}
