/* emulated.h - the words of src/cuda/device.h for a device that is emulated on the CPU.
 *
 * A kernel is compiled as C++ and every thread of a block runs as a coroutine of one host thread (engine.cpp): a word
 * that waits for other threads lets them run. So a barrier that nobody completes, a lane that never comes, an address
 * out of bounds or a wide access on a crooked address is found and named on a machine without a GPU, and what a missing
 * barrier does can be provoked by running the threads in another order (RMSNORM_EMULATED_ORDER).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_H
#define RN_EMULATED_H

#include "../../src/epilogue.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RN_DEVICE [[maybe_unused]] static inline
#define RN_SELDOM [[maybe_unused]] static __attribute__((noinline))

#define RN_UNROLL
#define RN_NO_UNROLL
#define RN_ALL_LANES 0xffffffffu

/* ------------------------------------------------------------------------------------------------------------------
 * What engine.cpp offers. */

/* Where the running thread is. */
struct rn_emulated_place {
  int32_t thread, threads;
  int32_t rank, cluster;
  int64_t block, blocks;
};
extern rn_emulated_place *rn_emulated_here;

/* One RN_SHARED: where it lies in the shared memory of a block, decided by the first thread of a launch to come by. */
struct rn_emulated_site {
  uint64_t launch;
  size_t offset;
};

enum rn_emulated_word { RN_WORD_BARRIER, RN_WORD_ANY, RN_WORD_FROM_XOR, RN_WORD_FROM };

void *rn_emulated_shared(rn_emulated_site *site, const char *name, size_t bytes, size_t align);
char *rn_emulated_shared_rest();
bool rn_emulated_barrier(int number, int threads, rn_emulated_word word, bool is);
uint32_t rn_emulated_meet(uint32_t lanes, rn_emulated_word word, uint32_t value, int from);
/* Stops the launch unless `bytes` bytes at an address aligned to as many are in memory of the device. */
void rn_emulated_load(const void *at, size_t bytes);
void rn_emulated_store(const void *at, size_t bytes);

/* A kernel of the program, found by its name. */
struct rn_emulated_kernel {
  const char *name;
  uint32_t threads; /* the largest block it was compiled for */
  size_t params_bytes;
  void (*run)(const void *params);
  rn_emulated_kernel *next;
  mutable uint64_t launches;
  rn_emulated_kernel(const char *kernel_name, uint32_t most_threads, size_t bytes, void (*body)(const void *));
};

/* ------------------------------------------------------------------------------------------------------------------
 * The words, in the order of device.h. */
#define RN_KERNEL(name, params_type, threads)                   RN_EMULATED_KERNEL(name, params_type, threads)
#define RN_KERNEL_CAPPED(name, params_type, threads, registers) RN_EMULATED_KERNEL(name, params_type, threads)
#define RN_EMULATED_KERNEL(name, params_type, threads)                                                                 \
  static void name(const params_type &p);                                                                              \
  static rn_emulated_kernel rn_emulated_##name(#name, threads, sizeof(params_type),                                    \
                                               [](const void *rn_data) { name(*(const params_type *)rn_data); });      \
  static void name([[maybe_unused]] const params_type &p)

#define RN_SHARED(type, name, count)                                                                                   \
  static rn_emulated_site rn_site_##name;                                                                              \
  type(&name)[count] = *(type(*)[count])rn_emulated_shared(&rn_site_##name, #name, sizeof(type[count]), alignof(type))
#define RN_SHARED_REST(name) char *const name = rn_emulated_shared_rest()

RN_DEVICE uint64_t rn_high_product(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 wide;
  return (uint64_t)((wide)a * b >> 64);
}

RN_DEVICE int rn_thread() {
  return rn_emulated_here->thread;
}
RN_DEVICE int rn_threads_of_block() {
  return rn_emulated_here->threads;
}
RN_DEVICE int64_t rn_block() {
  return rn_emulated_here->block;
}
RN_DEVICE int64_t rn_blocks() {
  return rn_emulated_here->blocks;
}

RN_DEVICE void rn_barrier() {
  rn_emulated_barrier(0, rn_threads_of_block(), RN_WORD_BARRIER, false);
}
RN_DEVICE void rn_warp_barrier(uint32_t lanes) {
  rn_emulated_meet(lanes, RN_WORD_BARRIER, 0, 0);
}
void rn_team_barrier(int number, int threads);
RN_DEVICE bool rn_any_in_block(bool is) {
  return rn_emulated_barrier(0, rn_threads_of_block(), RN_WORD_ANY, is);
}

RN_DEVICE float rn_from_lane_xor(uint32_t lanes, float v, int mask) {
  return rn_from_bits(rn_emulated_meet(lanes, RN_WORD_FROM_XOR, rn_bits(v), (rn_thread() & 31) ^ mask));
}
RN_DEVICE float rn_from_lane(uint32_t lanes, float v, int lane) {
  return rn_from_bits(rn_emulated_meet(lanes, RN_WORD_FROM, rn_bits(v), lane));
}
RN_DEVICE bool rn_any_in_warp(uint32_t lanes, bool is) {
  return rn_emulated_meet(lanes, RN_WORD_ANY, is, 0) != 0;
}

template <int N> struct alignas(4 * N) rn_words { uint32_t w[N]; };
typedef rn_words<4> rn_words4;
typedef rn_words<2> rn_words2;
template <int N> RN_DEVICE rn_words<N> rn_stream_load(const void *at) {
  rn_words<N> v;
  rn_emulated_load(at, sizeof v);
  memcpy(&v, at, sizeof v);
  return v;
}
template <int N> RN_DEVICE rn_words<N> rn_kept_load(const void *at) {
  return rn_stream_load<N>(at);
}
template <int N> RN_DEVICE void rn_stream_store(void *at, rn_words<N> v) {
  rn_emulated_store(at, sizeof v);
  memcpy(at, &v, sizeof v);
}
RN_DEVICE rn_words4 rn_stream_load16(const void *at) {
  return rn_stream_load<4>(at);
}
RN_DEVICE rn_words2 rn_stream_load8(const void *at) {
  return rn_stream_load<2>(at);
}
RN_DEVICE rn_words4 rn_kept_load16(const void *at) {
  return rn_stream_load<4>(at);
}
RN_DEVICE rn_words2 rn_kept_load8(const void *at) {
  return rn_stream_load<2>(at);
}
RN_DEVICE void rn_stream_store16(void *at, rn_words4 v) {
  rn_stream_store<4>(at, v);
}
RN_DEVICE void rn_stream_store8(void *at, rn_words2 v) {
  rn_stream_store<2>(at, v);
}
RN_DEVICE void rn_keep_packed(uint32_t &) {}
RN_DEVICE void rn_keep_address(const char *&) {}
RN_DEVICE void rn_keep_address(char *&) {}

/* Up to three units off the nearest float, another number of them for another v. */
RN_DEVICE float rn_root_near(float v) {
  const float r = (float)(1 / sqrt((double)v));
  return r > 0 && r <= FLT_MAX ? rn_from_bits(rn_bits(r) + (rn_bits(v) * 0x9e3779b1u >> 16) % 7 - 3) : r;
}

RN_DEVICE uint32_t rn_pack_bf16(float low, float high) {
  return (uint32_t)rn_narrow_bf16(low) | (uint32_t)rn_narrow_bf16(high) << 16;
}
RN_DEVICE uint32_t rn_pack_f16(float low, float high) {
  return (uint32_t)rn_narrow_f16(low) | (uint32_t)rn_narrow_f16(high) << 16;
}
RN_DEVICE float rn_unpack_f16(uint16_t code) {
  return rn_widen_f16(code);
}

RN_DEVICE uint32_t rn_pack_fp8(bool e5m2, float a, float b, float c, float d) {
  const int dtype = e5m2 ? RMSNORM_DTYPE_FP8_E5M2 : RMSNORM_DTYPE_FP8_E4M3;
  return (uint32_t)rn_quantise(dtype, a) | (uint32_t)rn_quantise(dtype, b) << 8 |
         (uint32_t)rn_quantise(dtype, c) << 16 | (uint32_t)rn_quantise(dtype, d) << 24;
}
RN_DEVICE uint32_t rn_pack_int8(float a, float b, float c, float d) {
  return (uint32_t)rn_quantise_int8(a) | (uint32_t)rn_quantise_int8(b) << 8 | (uint32_t)rn_quantise_int8(c) << 16 |
         (uint32_t)rn_quantise_int8(d) << 24;
}

RN_DEVICE int rn_cluster_rank() {
  return rn_emulated_here->rank;
}
RN_DEVICE int rn_cluster_blocks() {
  return rn_emulated_here->cluster;
}
void rn_cluster_arrive();
void rn_cluster_wait();
float rn_cluster_load(const float *at, int rank);
void rn_cluster_store(float *at, int rank, float v);

/* A copy is made as late as it may be, when somebody waits for it; until then its destination holds NaNs. */
typedef uint64_t rn_transfer;
void rn_transfer_init(rn_transfer *t, int arrivals);
void rn_transfer_expect(rn_transfer *t, uint32_t bytes);
void rn_transfer_arrive(rn_transfer *t);
void rn_transfer_start(void *shared, const void *global, uint32_t bytes, rn_transfer *t);
void rn_transfer_wait(rn_transfer *t, uint32_t parity);
void rn_cluster_send(float *at, int rank, float v, rn_transfer *t);
RN_DEVICE void rn_cluster_receive(rn_transfer *t, uint32_t parity) {
  rn_transfer_wait(t, parity);
}
RN_DEVICE void rn_cluster_arrive_relaxed() {
  rn_cluster_arrive();
}

void rn_wait_for_previous();
RN_DEVICE void rn_let_next_start() {}

#endif /* RN_EMULATED_H */
