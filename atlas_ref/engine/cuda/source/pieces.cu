// Small steps of a group of chunks that as array operations take a launch for every product and sum. A thread computes an entry.
#include "common.cuh"

// The last coefficient rows of each chunk, (memory, chunk, gate, column), and how to read them at an output dimension.
template <class T>
struct Ends {
    View<const T, 4> D, X;
    int64 gates;
    __device__ T of(const View<const T, 4>& rows, int64 memory, int64 chunk, int64 output, int64 column) const {
        const int64 gate = gates == 1 ? 0 : output;
        return rows.at[memory * rows.step[0] + chunk * rows.step[1] + gate * rows.step[2] + column * rows.step[3]];
    }
};

__device__ inline int64 entry_of_grid() { return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Z_{k+1} = [c_C M^T + f_C S^T | n_C S^T] + change_k for all chunks in turn (CHUNK-8).
template <class T, int BASES>
__global__ void carried(T* states, const T* start, const T* change, Ends<T> ends, int64 memories, int64 chunks, int64 features, int64 outputs) {
    const int64 i = entry_of_grid(), wide = BASES * outputs, size = features * wide;
    if (i >= memories * features * outputs) return;
    const int64 output = i % outputs, x = i / outputs % features, memory = i / outputs / features;
    const int64 at = x * wide + output;
    T m = start[memory * size + at], s = BASES == 2 ? start[memory * size + at + outputs] : T(0);
    for (int64 k = 0; k <= chunks; ++k) {
        T* state = states + (memory * (chunks + 1) + k) * size + at;
        state[0] = m;
        if (BASES == 2) state[outputs] = s;
        if (k == chunks) return;
        const T* each = change + (memory * chunks + k) * size + at;
        m = m * ends.of(ends.D, memory, k, output, 0) + each[0];
        if (BASES == 2) {
            m -= s * ends.of(ends.D, memory, k, output, 1);
            s = s * ends.of(ends.X, memory, k, output, 1) + each[outputs];
        }
    }
}

// Its cotangents: after[k] of the state after chunk k, and of the start; asked (memory, chunk, feature, bases o) is added to that before k.
template <class T, int BASES>
__global__ void carried_backward(
    T* d_start, T* after, const T* last, const T* asked, Ends<T> ends, int64 memories, int64 chunks, int64 features, int64 outputs) {
    const int64 i = entry_of_grid(), wide = BASES * outputs, size = features * wide;
    if (i >= memories * features * outputs) return;
    const int64 output = i % outputs, x = i / outputs % features, memory = i / outputs / features;
    const int64 at = x * wide + output;
    T m = last[memory * size + at], s = BASES == 2 ? last[memory * size + at + outputs] : T(0);
    for (int64 k = chunks - 1; k >= 0; --k) {
        const int64 here = (memory * chunks + k) * size + at;
        after[here] = m;
        if (BASES == 2) {
            after[here + outputs] = s;
            s = asked[here + outputs] + s * ends.of(ends.X, memory, k, output, 1) - m * ends.of(ends.D, memory, k, output, 1);
        }
        m = asked[here] + m * ends.of(ends.D, memory, k, output, 0);
    }
    d_start[memory * size + at] = m;
    if (BASES == 2) d_start[memory * size + at + outputs] = s;
}

// [-D_C E | X_C E]: what residuals leave in memory and momentum.
template <class T, int BASES>
__global__ void scaled_residuals(View<T, 4> scaled, View<const T, 4> E, Ends<T> ends, int64 memories, int64 chunks, int64 places, int64 outputs) {
    const int64 i = entry_of_grid();
    if (i >= memories * chunks * places * outputs) return;
    const int64 output = i % outputs, place = i / outputs % places, chunk = i / outputs / places % chunks;
    const int64 memory = i / outputs / places / chunks;
    const T error = E.at[memory * E.step[0] + chunk * E.step[1] + place * E.step[2] + output * E.step[3]];
    T* to = scaled.at + memory * scaled.step[0] + chunk * scaled.step[1] + place * scaled.step[2] + output * scaled.step[3];
    to[0] = -ends.of(ends.D, memory, chunk, output, BASES + place) * error;
    if (BASES == 2) to[outputs * scaled.step[3]] = ends.of(ends.X, memory, chunk, output, BASES + place) * error;
}

// y = c (q M_0^T) + f (q S_0^T) - A E, from what the states say of the queries and from the mixed residuals (CHUNK-7); `rows` are
// coefficients (token, memory, chunk, gate, column) that the tokens read with.
template <class T, int BASES>
__global__ void combined_reads(
    View<T, 4> y, const T* asked, const T* mixed, View<const T, 5> rows, int64 memories, int64 chunks, int64 tokens, int64 gates, int64 outputs) {
    const int64 i = entry_of_grid();
    if (i >= memories * chunks * tokens * outputs) return;
    const int64 output = i % outputs, token = i / outputs % tokens, chunk = i / outputs / tokens % chunks;
    const int64 memory = i / outputs / tokens / chunks, gate = gates == 1 ? 0 : output;
    const T* factor = rows.at + token * rows.step[0] + memory * rows.step[1] + chunk * rows.step[2] + gate * rows.step[3];
    const T* said = asked + i / outputs * BASES * outputs + output;
    T found = said[0] * factor[0];
    if (BASES == 2) found -= said[outputs] * factor[rows.step[4]];
    y.at[memory * y.step[0] + chunk * y.step[1] + token * y.step[2] + output * y.step[3]] = found - mixed[i];
}

// Columns of chunks added into the rows that they were made of, and before them what the rows hold: each row takes its columns in
// ascending order of chunk, or of token where every token has columns of its own.
template <class T>
__global__ void gathered(
    View<T, 3> rows, View<const T, 4> columns, int64 memories, int64 chunks, int64 tokens, int64 window, int64 features,
    int64 own_columns) {
    const int64 length = chunks * tokens + window - 1, i = entry_of_grid();
    if (i >= memories * length * features) return;
    const int64 x = i % features, row = i / features % length, memory = i / features / length;
    const T* added = columns.at + memory * columns.step[0] + x * columns.step[3];
    T* to = rows.at + memory * rows.step[0] + row * rows.step[1] + x * rows.step[2];
    T sum = *to;
    if (own_columns) {
        const int64 all = chunks * tokens;
        for (int64 place = window - 1; place >= 0; --place) {
            const int64 token = row - place;
            if (token >= 0 && token < all)
                sum += added[token / tokens * columns.step[1] + (token % tokens * window + place) * columns.step[2]];
        }
    } else {
        const int64 places = tokens + window - 1;
        for (int64 chunk = row < places ? 0 : (row - places) / tokens + 1; chunk < chunks && chunk * tokens <= row; ++chunk)
            sum += added[chunk * columns.step[1] + (row - chunk * tokens) * columns.step[2]];
    }
    *to = sum;
}
