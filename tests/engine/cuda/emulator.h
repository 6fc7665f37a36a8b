// Runs CUDA kernels on the host, thread after thread: each CUDA thread is a coroutine that runs until it meets a barrier.
//
// Threads run in the order that the caller asks for (forwards, backwards, shuffled), a warp at a time. A warp is only stopped
// by a shuffle or a block barrier, a block by a block barrier: so a barrier that is missing lets one order read what another
// has not written. Shared memory ends at a page that cannot be touched, and begins full of NaN in every block. A barrier or a
// shuffle that not all threads meet is an error, as is a touch of memory that is no argument's.
#pragma once

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __restrict__
#define __launch_bounds__(...)

struct Place { unsigned int x, y, z; };

namespace emulator {

enum class State { ready, in_shuffle, at_barrier, done };

constexpr std::size_t STACK = 1 << 16;
constexpr unsigned WARP_SIZE = 32;

struct Thread {
    ucontext_t context;
    State state = State::done;
    Place place{};
    unsigned index = 0;
    std::vector<char> stack = std::vector<char>(STACK);
};

inline Place block_place, block_size, grid_size;
inline ucontext_t scheduler;
inline Thread* running = nullptr;
inline std::vector<Thread> threads;
inline std::vector<std::uint64_t> slots;
inline std::function<void()> body;
inline char* shared_pages = nullptr;
inline std::size_t shared_room = 0, shared_bytes = 0;
inline sigjmp_buf bad_touch;
inline const char* problem = nullptr;

inline void pause(State why) {
    running->state = why;
    swapcontext(&running->context, &scheduler);
}

inline void entry() {
    body();
    pause(State::done);
}

inline void* shared_memory() { return shared_pages + shared_room - shared_bytes; }

template <class T>
T shuffled(T value, unsigned partner) {
    const unsigned mine = running->index, theirs = (mine & ~(WARP_SIZE - 1)) | partner;
    if (theirs >= threads.size() || threads[theirs].state == State::done) {
        problem = "a shuffle with a lane that is not there";
        pause(State::done);
    }
    std::memcpy(&slots[mine], &value, sizeof value);
    pause(State::in_shuffle);
    std::memcpy(&value, &slots[theirs], sizeof value);
    pause(State::in_shuffle);
    return value;
}

// One warp until all of its threads are at the barrier of the block, or done.
inline bool run_warp(const std::vector<unsigned>& lanes) {
    for (;;) {
        bool shuffles = false, others = false;
        for (unsigned each : lanes) {
            Thread& thread = threads[each];
            if (thread.state != State::ready) continue;
            running = &thread;
            swapcontext(&scheduler, &thread.context);
            if (problem) return false;
        }
        for (unsigned each : lanes) (threads[each].state == State::in_shuffle ? shuffles : others) = true;
        if (!shuffles) return true;
        if (others) {
            problem = "a shuffle that not all threads of a warp meet";
            return false;
        }
        for (unsigned each : lanes) threads[each].state = State::ready;
    }
}

inline void run_block(const std::vector<std::vector<unsigned>>& warps) {
    for (Thread& thread : threads) {
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, entry, 0);
        thread.state = State::ready;
    }
    std::memset(shared_pages, 0xff, shared_room);
    for (;;) {
        bool waiting = false, finished = false;
        for (const auto& lanes : warps)
            if (!run_warp(lanes)) return;
        for (Thread& thread : threads) (thread.state == State::at_barrier ? waiting : finished) = true;
        if (!waiting) return;
        if (finished) {
            problem = "a barrier that not all threads of a block meet";
            return;
        }
        for (Thread& thread : threads) thread.state = State::ready;
    }
}

inline void touched(int, siginfo_t*, void*) { siglongjmp(bad_touch, 1); }

// Lanes and warps in the order asked for: 0 forwards, 1 backwards, others shuffled by that seed.
inline std::vector<std::vector<unsigned>> order_of(unsigned count, unsigned order) {
    std::mt19937 random(order);
    auto arrange = [&](auto& items) {
        if (order == 1) std::reverse(items.begin(), items.end());
        if (order > 1) std::shuffle(items.begin(), items.end(), random);
    };
    std::vector<std::vector<unsigned>> warps;
    for (unsigned first = 0; first < count; first += WARP_SIZE) {
        std::vector<unsigned> lanes(std::min(WARP_SIZE, count - first));
        std::iota(lanes.begin(), lanes.end(), first);
        arrange(lanes);
        warps.push_back(lanes);
    }
    arrange(warps);
    return warps;
}

inline void prepare(unsigned count, std::size_t bytes) {
    const std::size_t page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    if (shared_pages) munmap(shared_pages, shared_room + page);
    shared_pages = static_cast<char*>(mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(shared_pages + room, page, PROT_NONE);
    shared_room = room, shared_bytes = bytes;
    if (threads.size() != count) {
        threads.clear();
        threads.resize(count);
    }
    slots.assign(count, ~std::uint64_t(0));
    for (unsigned i = 0; i < count; ++i) {
        threads[i].index = i;
        threads[i].place = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
    }
}

// All blocks of a grid; what went wrong, or nothing.
inline const char* run(std::function<void()> kernel, const unsigned* grid, const unsigned* block, std::size_t bytes, unsigned order) {
    grid_size = {grid[0], grid[1], grid[2]}, block_size = {block[0], block[1], block[2]};
    const unsigned count = block[0] * block[1] * block[2];
    prepare(count, bytes);
    body = std::move(kernel), problem = nullptr;
    const auto warps = order_of(count, order);
    static std::vector<char> handler_stack(1 << 16);
    stack_t handler{}, before_stack{};
    handler.ss_sp = handler_stack.data(), handler.ss_size = handler_stack.size();
    sigaltstack(&handler, &before_stack);
    struct sigaction action{}, before{};
    action.sa_sigaction = touched, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
    if (sigsetjmp(bad_touch, 1) == 0) {
        const unsigned blocks = grid[0] * grid[1] * grid[2];
        for (unsigned i = 0; i < blocks && !problem; ++i) {
            const unsigned each = order == 1 ? blocks - 1 - i : i;
            block_place = {each % grid[0], each / grid[0] % grid[1], each / grid[0] / grid[1]};
            run_block(warps);
        }
    } else {
        problem = "a touch of memory outside of the arguments or of the memory of the block";
    }
    sigaction(SIGSEGV, &before, nullptr);
    sigaltstack(&before_stack, nullptr);
    return problem;
}

template <class... Args, std::size_t... I>
std::function<void()> bound(void (*kernel)(Args...), void** arguments, std::index_sequence<I...>) {
    return [=] { kernel(*static_cast<Args*>(arguments[I])...); };
}

template <class... Args>
const char* launch(void (*kernel)(Args...), const unsigned* grid, const unsigned* block, std::size_t bytes, void** arguments, int count, unsigned order) {
    if (count != sizeof...(Args)) return "another number of arguments than the kernel takes";
    return run(bound(kernel, arguments, std::index_sequence_for<Args...>{}), grid, block, bytes, order);
}

}  // namespace emulator

#define threadIdx (emulator::running->place)
#define blockIdx (emulator::block_place)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)

inline void* emulated_shared_memory() { return emulator::shared_memory(); }
inline void __syncthreads() { emulator::pause(emulator::State::at_barrier); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int apart) {
    return emulator::shuffled(value, (emulator::running->index % emulator::WARP_SIZE) ^ apart);
}

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
