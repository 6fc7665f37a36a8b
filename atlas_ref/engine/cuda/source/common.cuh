// What all kernels share: views of strided arrays, storage in 16 bits, and the memory that the threads of a block share.
#pragma once

typedef long long int64;

// An array of N axes in memory that is not its own: where it starts, and how many entries lie from one index to the next.
template <class T, int N>
struct View {
    T* at;
    int64 step[N];
};

// Numbers that are stored in 16 bits and computed with in 32. Conversions are integer arithmetic, the same on every machine:
// to the nearest, ties to even, subnormal numbers kept.
struct bf16 {
    unsigned short bits;
};

struct f16 {
    unsigned short bits;
};

__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline float widened(bf16 x) { return __uint_as_float(static_cast<unsigned int>(x.bits) << 16); }

__device__ inline float widened(f16 x) {
    unsigned int sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u, fraction = x.bits & 1023u;
    if (exponent == 31u) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0u) {  // fraction times 2^-24, which float32 holds exactly
        float size = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return sign ? -size : size;
    }
    return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

__device__ inline void store(float* at, float x) { *at = x; }
__device__ inline void store(double* at, double x) { *at = x; }

__device__ inline void store(bf16* at, float x) {
    unsigned int bits = __float_as_uint(x);
    bool no_number = (bits & 0x7fffffffu) > 0x7f800000u;
    unsigned int rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    at->bits = static_cast<unsigned short>(no_number ? (bits >> 16) | 64u : rounded >> 16);
}

__device__ inline void store(f16* at, float x) {
    unsigned int bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu, found;
    if (size > 0x7f800000u) {
        found = 0x7e00u;
    } else if (size >= 0x477ff000u) {  // 65520 and beyond round to infinity
        found = 0x7c00u;
    } else if (size >= 0x38800000u) {  // normal: 13 bits fewer, exponent 112 less
        found = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    } else {  // subnormal: adding one half leaves a multiple of 2^-24 in the last bits, rounded as float32 rounds
        found = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
    }
    at->bits = static_cast<unsigned short>(sign | found);
}

// The memory of the block; how much there is was said at the launch.
template <class T>
__device__ inline T* shared_memory() {
#ifdef __CUDACC__
    extern __shared__ double memory_of_the_block[];
    return reinterpret_cast<T*>(memory_of_the_block);
#else
    return static_cast<T*>(emulated_shared_memory());
#endif
}

// Sum over groups of LANES neighbouring threads, a power of two: halves are added to halves, so every thread has the same bits.
template <int LANES, class T>
__device__ inline T summed_over_lanes(T x) {
    for (int apart = LANES / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}
