// (I + N)^{-1} of many strictly lower triangular N (EXACT-4) by substitution: a block has a matrix and each thread a column,
//
//     X[i, j] = -(N[i, j] + sum over j < l < i of N[i, l] X[l, j])        l ascending
//
// Columns do not meet; a row of N is fetched by all while the one before it is used.
#include "common.cuh"

template <class T>
__global__ void inverse_unit_lower(T* inverse, const T* strict, int64 rows) {
    const int n = rows, column = threadIdx.x;
    T* X = shared_memory<T>();   // (n, n)
    T* pair = X + n * n;         // (2, n) rows of N
    const int64 matrix = static_cast<int64>(blockIdx.x) * n * n;
    strict += matrix;
    inverse += matrix;
    for (int i = 0; i < n; ++i) {
        const T* row = pair + i % 2 * n;
        T next = T(0);
        if (column <= i && i + 1 < n) next = strict[static_cast<int64>(i + 1) * n + column];
        if (column < n) {
            T entry = column == i ? T(1) : T(0);
            if (column < i) {
                T sum = row[column];
                for (int l = column + 1; l < i; ++l) sum += row[l] * X[l * n + column];
                entry = -sum;
            }
            X[i * n + column] = entry;
            inverse[static_cast<int64>(i) * n + column] = entry;
        }
        if (column <= i && i + 1 < n) pair[(i + 1) % 2 * n + column] = next;
        __syncthreads();
    }
}
