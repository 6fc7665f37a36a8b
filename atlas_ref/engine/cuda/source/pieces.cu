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
