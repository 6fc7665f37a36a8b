// The exact form from chunk to chunk (EXACT-1 to EXACT-3), and back (EXACT-8). All that does not depend on the state was computed
// for all chunks at once; what is left is, for the transposed state Z = [M^T | S^T],
//
//     R  = c' (Phi M^T) - f' (Phi S^T) - V,    E = L^{-1} R
//     Z <- [c_C M^T - f_C S^T | n_C S^T] + Phi^T [-D_C E | X_C E]             (f as it stands in D: negated)
//
// Columns of Z never meet, so a block has a tile of output dimensions of one memory, keeps their columns of Z in its memory and
// walks over all chunks. Matrices that are multiplied come through the memory of the block, a tile of TILE by TILE at a time; a
// thread computes ROWS rows of one column of a product.
#include "common.cuh"

constexpr int TILE = 64;
constexpr int ROWS = 4;
constexpr int GROUPS = TILE / ROWS;  // threads that share a column of a product
constexpr int PITCH = TILE + 1;      // so that neither rows nor columns of a tile lie in one bank

// Strides in entries; indices of coefficients are (row, memory, chunk, gate, column), of retain the same without the column.
template <class T>
struct Walk {
    View<const T, 4> phi, values;  // (memory, chunk, place, feature or output)
    View<const T, 5> D, X;         // X.at is null without momentum
    View<const T, 4> retain;       // at is null unless the memory decays before the error
    const T* inverse;              // (memory, chunk, gate, place, place)
    int64 memories, chunks, places, features, outputs, gates, window, tokens;
};

template <class T>
struct Block {
    int memory, first, width, group, column, output, gate;  // width: output dimensions of the tile
    bool mine;
    T *tile, *state, *rest, *left;  // (TILE, PITCH), (features, bases, width), (places, width), (places, bases, width)

    __device__ Block(const Walk<T>& w, int bases, int width) : width(width) {
        const int tiles = (w.outputs + width - 1) / width;
        memory = blockIdx.x / tiles, first = blockIdx.x % tiles * width;
        group = threadIdx.x / width, column = threadIdx.x % width, output = first + column;
        mine = output < w.outputs;
        if (!mine) output = w.outputs - 1;  // computes along and writes nothing
        gate = w.gates == 1 ? 0 : output;
        tile = shared_memory<T>();
        state = tile + TILE * PITCH;
        rest = state + w.features * bases * width;
        left = rest + w.places * width;
    }
};

template <class T>
__device__ inline T coefficient(const View<const T, 5>& of, int64 row, int64 memory, int64 chunk, int64 gate, int64 column) {
    return of.at[row * of.step[0] + memory * of.step[1] + chunk * of.step[2] + gate * of.step[3] + column * of.step[4]];
}

// The factor by which the residual of a place takes M_0 (base 0) or -S_0 (base 1).
template <class T>
__device__ inline T taken(const Walk<T>& w, const Block<T>& b, int64 chunk, int place, int base) {
    const int64 token = place / w.window;
    T found = coefficient(w.D, token, b.memory, chunk, b.gate, base);
    if (w.retain.at)
        found *= w.retain.at[token * w.retain.step[0] + b.memory * w.retain.step[1] + chunk * w.retain.step[2] + b.gate * w.retain.step[3]];
    return found;
}

// What the residual of a place leaves in the memory (base 0) or the momentum.
template <class T>
__device__ inline T leaves(const Walk<T>& w, const Block<T>& b, int64 chunk, int place, int base, int bases) {
    return base ? coefficient(w.X, w.tokens, b.memory, chunk, b.gate, bases + place)
                : -coefficient(w.D, w.tokens, b.memory, chunk, b.gate, bases + place);
}

// The tile of a matrix (rows, columns) that begins at a row and a column, zeros beyond its ends; a barrier on both sides.
template <class T>
__device__ inline void fetch(T* tile, const T* matrix, int64 down, int64 right, int row, int rows, int column, int columns) {
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
        const int y = row + i / TILE, x = column + i % TILE;
        tile[i / TILE * PITCH + i % TILE] = y < rows && x < columns ? matrix[y * down + x * right] : T(0);
    }
    __syncthreads();
}

// sums[i] += matrix[row of i, :] right[:, column], where `turned` the transposed matrix; right has BASES columns a thread.
template <class T, int BASES, bool TURNED>
__device__ inline void add_product(
    T (&sums)[ROWS][BASES], const Block<T>& b, const T* matrix, int64 down, int64 across, int row, int rows, int inner, const T* right) {
    for (int start = 0; start < inner; start += TILE) {
        if (TURNED)
            fetch(b.tile, matrix, down, across, start, inner, row, rows);
        else
            fetch(b.tile, matrix, down, across, row, rows, start, inner);
        const int count = inner - start < TILE ? inner - start : TILE;
        for (int j = 0; j < count; ++j) {
            T factor[BASES];
#pragma unroll
            for (int base = 0; base < BASES; ++base) factor[base] = right[((start + j) * BASES + base) * b.width + b.column];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int at = b.group + GROUPS * i;
                const T entry = TURNED ? b.tile[j * PITCH + at] : b.tile[at * PITCH + j];
#pragma unroll
                for (int base = 0; base < BASES; ++base) sums[i][base] += entry * factor[base];
            }
        }
    }
}

// The same with L^{-1} of each output dimension, which no two threads share: read where it lies.
template <class T, bool TURNED>
__device__ inline void add_own_product(T (&sums)[ROWS][1], const Walk<T>& w, const Block<T>& b, const T* inverse, int row) {
    const int places = w.places;
    for (int i = 0; i < ROWS; ++i) {
        const int at = row + b.group + GROUPS * i;
        if (at >= places) continue;
        for (int j = TURNED ? at : 0; j < (TURNED ? places : at + 1); ++j)
            sums[i][0] += (TURNED ? inverse[j * places + at] : inverse[at * places + j]) * b.rest[j * b.width + b.column];
    }
}

template <class T, bool TURNED>
__device__ inline void solve(T (&sums)[ROWS][1], const Walk<T>& w, const Block<T>& b, int64 chunk, int row) {
    const int64 size = w.places * w.places;
    const T* inverse = w.inverse + ((b.memory * w.chunks + chunk) * w.gates + b.gate) * size;
    if (w.gates == 1)
        add_product<T, 1, TURNED>(sums, b, inverse, w.places, 1, row, w.places, w.places, b.rest);
    else
        add_own_product<T, TURNED>(sums, w, b, inverse, row);
}

template <class T, int BASES>
__global__ void __launch_bounds__(256, 1) exact_walk(T* E, T* scaled, T* answered, T* states, const T* start, Walk<T> w, int64 width) {
    const Block<T> b(w, BASES, width);
    const int places = w.places, features = w.features, outputs = w.outputs;
    const int64 wide = BASES * w.outputs, chunks = w.chunks;
    for (int x = b.group; x < features; x += GROUPS)
        for (int base = 0; base < BASES; ++base) {
            const T value = start[(static_cast<int64>(b.memory) * features + x) * wide + base * outputs + b.output];
            b.state[(x * BASES + base) * b.width + b.column] = value;
            if (b.mine) states[(b.memory * (chunks + 1) * features + x) * wide + base * outputs + b.output] = value;
        }
    for (int64 k = 0; k < chunks; ++k) {
        const int64 at = b.memory * chunks + k;
        const T* phi = w.phi.at + b.memory * w.phi.step[0] + k * w.phi.step[1];
        const T* values = w.values.at + b.memory * w.values.step[0] + k * w.values.step[1] + b.output * w.values.step[3];
        for (int row = 0; row < places; row += TILE) {
            T sums[ROWS][BASES] = {};
            add_product<T, BASES, false>(sums, b, phi, w.phi.step[2], w.phi.step[3], row, places, features, b.state);
            for (int i = 0; i < ROWS; ++i) {
                const int place = row + b.group + GROUPS * i;
                if (place >= places) continue;
                T rest = sums[i][0] * taken(w, b, k, place, 0);
                if (BASES == 2) rest -= sums[i][BASES - 1] * taken(w, b, k, place, 1);
                b.rest[place * b.width + b.column] = rest - values[place * w.values.step[2]];
                for (int base = 0; base < BASES; ++base)
                    if (b.mine) answered[(at * places + place) * wide + base * outputs + b.output] = sums[i][base];
            }
        }
        __syncthreads();
        for (int row = 0; row < places; row += TILE) {
            T sums[ROWS][1] = {};
            solve<T, false>(sums, w, b, k, row);
            for (int i = 0; i < ROWS; ++i) {
                const int place = row + b.group + GROUPS * i;
                if (place >= places) continue;
                if (b.mine) E[(at * places + place) * outputs + b.output] = sums[i][0];
                for (int base = 0; base < BASES; ++base) {
                    const T each = sums[i][0] * leaves(w, b, k, place, base, BASES);
                    b.left[(place * BASES + base) * b.width + b.column] = each;
                    if (b.mine) scaled[(at * places + place) * wide + base * outputs + b.output] = each;
                }
            }
        }
        __syncthreads();
        const T own = coefficient(w.D, w.tokens, b.memory, k, b.gate, 0);
        for (int row = 0; row < features; row += TILE) {
            T sums[ROWS][BASES] = {};
            add_product<T, BASES, true>(sums, b, phi, w.phi.step[2], w.phi.step[3], row, features, places, b.left);
            for (int i = 0; i < ROWS; ++i) {
                const int x = row + b.group + GROUPS * i;
                if (x >= features) continue;
                T* held = b.state + x * BASES * b.width + b.column;
                T memory = own * held[0] + sums[i][0];
                if (BASES == 2) {
                    const T momentum = held[b.width];
                    memory -= momentum * coefficient(w.D, w.tokens, b.memory, k, b.gate, 1);
                    held[b.width] = coefficient(w.X, w.tokens, b.memory, k, b.gate, 1) * momentum + sums[i][BASES - 1];
                }
                held[0] = memory;
                if (!b.mine) continue;
                for (int base = 0; base < BASES; ++base)
                    states[((b.memory * (chunks + 1) + k + 1) * features + x) * wide + base * outputs + b.output] = held[base * b.width];
            }
        }
        __syncthreads();
    }
}

// From the last chunk to the first, with the cotangent dZ of the state after a chunk:
//
//     F = Phi dZ,    R_bar = L^{-T} (E_bar - D_C F_M + X_C F_S)
//     dZ <- what reads ask of the state before the chunk + [c_C dM | n_C dS - f_C dM] + Phi^T [c' R_bar | -f' R_bar]
template <class T, int BASES>
__global__ void __launch_bounds__(256, 1) exact_walk_backward(
    T* d_start, T* ends, T* F, T* R_bar, const T* E_bar, const T* states_bar, const T* last, Walk<T> w, int64 width) {
    const Block<T> b(w, BASES, width);
    const int places = w.places, features = w.features, outputs = w.outputs;
    const int64 wide = BASES * w.outputs, chunks = w.chunks;
    for (int x = b.group; x < features; x += GROUPS)
        for (int base = 0; base < BASES; ++base)
            b.state[(x * BASES + base) * b.width + b.column] =
                last[(static_cast<int64>(b.memory) * features + x) * wide + base * outputs + b.output];
    for (int64 k = chunks - 1; k >= 0; --k) {
        const int64 at = b.memory * chunks + k;
        const T* phi = w.phi.at + b.memory * w.phi.step[0] + k * w.phi.step[1];
        for (int row = 0; row < places; row += TILE) {
            T sums[ROWS][BASES] = {};
            add_product<T, BASES, false>(sums, b, phi, w.phi.step[2], w.phi.step[3], row, places, features, b.state);
            for (int i = 0; i < ROWS; ++i) {
                const int place = row + b.group + GROUPS * i;
                if (place >= places) continue;
                T rest = E_bar[(at * places + place) * outputs + b.output];
                for (int base = 0; base < BASES; ++base) {
                    rest += sums[i][base] * leaves(w, b, k, place, base, BASES);
                    if (b.mine) F[(at * places + place) * wide + base * outputs + b.output] = sums[i][base];
                }
                b.rest[place * b.width + b.column] = rest;
            }
        }
        __syncthreads();
        for (int row = 0; row < places; row += TILE) {
            T sums[ROWS][1] = {};
            solve<T, true>(sums, w, b, k, row);
            for (int i = 0; i < ROWS; ++i) {
                const int place = row + b.group + GROUPS * i;
                if (place >= places) continue;
                if (b.mine) R_bar[(at * places + place) * outputs + b.output] = sums[i][0];
                T* each = b.left + place * BASES * b.width + b.column;
                each[0] = sums[i][0] * taken(w, b, k, place, 0);
                if (BASES == 2) each[b.width] = -sums[i][0] * taken(w, b, k, place, 1);
            }
        }
        __syncthreads();
        const T own = coefficient(w.D, w.tokens, b.memory, k, b.gate, 0);
        for (int row = 0; row < features; row += TILE) {
            T sums[ROWS][BASES] = {};
            add_product<T, BASES, true>(sums, b, phi, w.phi.step[2], w.phi.step[3], row, features, places, b.left);
            for (int i = 0; i < ROWS; ++i) {
                const int x = row + b.group + GROUPS * i;
                if (x >= features) continue;
                T* held = b.state + x * BASES * b.width + b.column;
                const int64 to = (at * features + x) * wide + b.output;
                const T memory = held[0];
                held[0] = states_bar[to] + own * memory + sums[i][0];
                if (b.mine) ends[to] = memory;
                if (BASES == 2) {
                    const T momentum = held[b.width];
                    if (b.mine) ends[to + outputs] = momentum;
                    held[b.width] = states_bar[to + outputs] + coefficient(w.X, w.tokens, b.memory, k, b.gate, 1) * momentum
                        - coefficient(w.D, w.tokens, b.memory, k, b.gate, 1) * memory + sums[i][BASES - 1];
                }
            }
        }
        __syncthreads();
    }
    for (int x = b.group; x < features; x += GROUPS)
        for (int base = 0; base < BASES; ++base)
            if (b.mine)
                d_start[(static_cast<int64>(b.memory) * features + x) * wide + base * outputs + b.output] =
                    b.state[(x * BASES + base) * b.width + b.column];
}
