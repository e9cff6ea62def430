/* device.h - the words that kernels are written in: threads, barriers, shuffles, shared memory, clusters, wide
 * accesses.
 *
 * Kernels use these words and plain C arithmetic only, so the same text is compiled by nvcc for GPUs and by a C++
 * compiler for the emulated device of the tests (RN_EMULATED; tests/emulator has those words). There every thread of a
 * block runs as a coroutine, and a missing barrier or an access out of bounds shows without a GPU.
 *
 * Arithmetic: kernels are compiled with -fmad=false -prec-div=true -prec-sqrt=true -ftz=false, so `a * b + c`, `/` and
 * sqrtf mean what docs/numerics.md means; fmaf is the only fused operation. No rsqrtf, no __fdividef, no expf;
 * rn_root_near is a start for what does not depend on it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_DEVICE_H
#define RN_CUDA_DEVICE_H

#include "fp8.h"

#include <stdint.h>

#ifdef RN_EMULATED
#include "emulated.h"
#else

#define RN_DEVICE static __device__ __forceinline__
/* For what runs seldom (rescued rows): kept out of the way of the registers of the rest. */
#define RN_SELDOM static __device__ __noinline__

/* RN_KERNEL(name, params_type, threads) { ... p ... }: a kernel; p is its one parameter, threads the largest block.
 * RN_KERNEL_CAPPED: the compiler keeps to `registers` a thread, so that enough blocks fit a multiprocessor. */
#define RN_KERNEL(name, params_type, threads)                                                                          \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ params_type p)
#define RN_KERNEL_CAPPED(name, params_type, threads, registers)                                                        \
  extern "C" __global__ void __launch_bounds__(threads, RN_BLOCKS_OF((threads) * ((registers) + RN_SPARE)))            \
      name(const __grid_constant__ params_type p)
/* How many blocks of so many registers a multiprocessor has to hold. */
#define RN_BLOCKS_OF(registers) (65536 > (registers) ? 65536 / (registers) : 1)
/* The caps were found on sm_90; elsewhere the same text takes a few more, and a spill costs more than a block less. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#define RN_SPARE 24
#else
#define RN_SPARE 0
#endif

/* RN_SHARED(type, name, count): an array in the shared memory of the block. Not in loops, not in recursive functions.
 */
#define RN_SHARED(type, name, count) __shared__ __align__(16) type name[count]
/* RN_SHARED_REST(name): the shared memory asked for at the launch, char *, aligned to 128 bytes. */
#define RN_SHARED_REST(name)         extern __shared__ __align__(128) char name[]

#define RN_UNROLL    _Pragma("unroll")
#define RN_NO_UNROLL _Pragma("unroll 1")

#define RN_ALL_LANES 0xffffffffu

/* The high half of a product. */
RN_DEVICE uint64_t rn_high_product(uint64_t a, uint64_t b) {
  return __umul64hi(a, b);
}

/* Places. Grids, clusters and blocks have one dimension. */
RN_DEVICE int rn_thread(void) {
  return (int)threadIdx.x;
}
RN_DEVICE int rn_threads_of_block(void) {
  return (int)blockDim.x;
}
RN_DEVICE int64_t rn_block(void) {
  return blockIdx.x;
}
RN_DEVICE int64_t rn_blocks(void) {
  return gridDim.x;
}

/* Barriers: of the block; of a warp's lanes; of `threads` threads (a multiple of 32) that share number 1 to 15. */
RN_DEVICE void rn_barrier(void) {
  __syncthreads();
}
RN_DEVICE void rn_warp_barrier(uint32_t lanes) {
  __syncwarp(lanes);
}
RN_DEVICE void rn_team_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/* Is it so for any thread of the block? Is a barrier too. */
RN_DEVICE bool rn_any_in_block(bool is) {
  return __syncthreads_or(is) != 0;
}

/* Exchange between the lanes of a warp; `lanes` are those that take part, all of which call it. */
RN_DEVICE float rn_from_lane_xor(uint32_t lanes, float v, int mask) {
  return __shfl_xor_sync(lanes, v, mask);
}
RN_DEVICE float rn_from_lane(uint32_t lanes, float v, int lane) {
  return __shfl_sync(lanes, v, lane);
}
RN_DEVICE bool rn_any_in_warp(uint32_t lanes, bool is) {
  return __any_sync(lanes, is) != 0;
}

/* Wide accesses. Streams (x, dy, y, ...): coherent, because an output may be the same tensor as an input; through L1,
 * because keeping them out of it (L1::no_allocate) cost copies 2 % and one-shot rows up to 5 % on an H200, and so did
 * evict-first stores. Kept (weights, rstd): read by many blocks, written by none. */
template <int N> struct alignas(4 * N) rn_words { uint32_t w[N]; };
typedef rn_words<4> rn_words4;
typedef rn_words<2> rn_words2;
RN_DEVICE rn_words4 rn_stream_load16(const void *at) {
  rn_words4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(at)
               : "memory");
  return v;
}
RN_DEVICE rn_words2 rn_stream_load8(const void *at) {
  rn_words2 v;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(at) : "memory");
  return v;
}
RN_DEVICE rn_words4 rn_kept_load16(const void *at) {
  const uint4 q = __ldg((const uint4 *)at);
  return {{q.x, q.y, q.z, q.w}};
}
RN_DEVICE rn_words2 rn_kept_load8(const void *at) {
  const uint2 q = __ldg((const uint2 *)at);
  return {{q.x, q.y}};
}
RN_DEVICE void rn_stream_store16(void *at, rn_words4 v) {
  *(uint4 *)at = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
RN_DEVICE void rn_stream_store8(void *at, rn_words2 v) {
  *(uint2 *)at = make_uint2(v.w[0], v.w[1]);
}
/* The same for 4, 8 or 16 bytes. */
template <int N> RN_DEVICE rn_words<N> rn_stream_load(const void *at) {
  rn_words<N> v;
  if constexpr (N == 4) {
    v = rn_stream_load16(at);
  } else if constexpr (N == 2) {
    v = rn_stream_load8(at);
  } else {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v.w[0]) : "l"(at) : "memory");
  }
  return v;
}
template <int N> RN_DEVICE rn_words<N> rn_kept_load(const void *at) {
  rn_words<N> v;
  if constexpr (N == 4) {
    v = rn_kept_load16(at);
  } else if constexpr (N == 2) {
    v = rn_kept_load8(at);
  } else {
    v.w[0] = __ldg((const unsigned int *)at);
  }
  return v;
}
template <int N> RN_DEVICE void rn_stream_store(void *at, rn_words<N> v) {
  if constexpr (N == 4) {
    rn_stream_store16(at, v);
  } else if constexpr (N == 2) {
    rn_stream_store8(at, v);
  } else {
    *(uint32_t *)at = v.w[0];
  }
}
/* Packed values stay packed: without this the compiler keeps the unpacked form of a loop's constants, in twice the
 * registers. */
RN_DEVICE void rn_keep_packed(uint32_t &word) {
  asm volatile("" : "+r"(word));
}

/* An address stays as it is: without this it is made anew, from its parts, for each access that may not be there. */
RN_DEVICE void rn_keep_address(const char *&at) {
  asm volatile("" : "+l"(at));
}
RN_DEVICE void rn_keep_address(char *&at) {
  asm volatile("" : "+l"(at));
}

/* 1 / sqrt(v) by the device's approximation, at most three units in the last place off (relative error 2^-22.9): only a
 * start, for rstd.h, whose result does not depend on it. */
RN_DEVICE float rn_root_near(float v) {
  float r;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

/* Two floats rounded to nearest even into one word, `low` in the low half. NaN stays NaN. */
RN_DEVICE uint32_t rn_pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
RN_DEVICE uint32_t rn_pack_f16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
RN_DEVICE float rn_unpack_f16(uint16_t code) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(code));
  return v;
}

/* Four codes of a quantised type (epilogue.h), from the lowest byte on: e5m2 or e4m3; int8. */
#if __CUDA_ARCH__ >= 890
RN_DEVICE uint32_t rn_pack_fp8(bool e5m2, float a, float b, float c, float d) {
  uint16_t low, high;
  if (e5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  }
  return low | (uint32_t)high << 16;
}
#else
RN_DEVICE uint32_t rn_pack_fp8(bool e5m2, float a, float b, float c, float d) {
  return rn_fp8_code(e5m2, a) | rn_fp8_code(e5m2, b) << 8 | rn_fp8_code(e5m2, c) << 16 | rn_fp8_code(e5m2, d) << 24;
}
#endif
/* To nearest even; NaN is 0 and what is too large the largest integer, which packing takes to the largest of eight
 * bits. */
RN_DEVICE int rn_nearest_integer(float v) {
  int i;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(v));
  return i;
}
RN_DEVICE uint32_t rn_pack_int8(float a, float b, float c, float d) {
  uint32_t high, word;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(rn_nearest_integer(d)), "r"(rn_nearest_integer(c)));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(word)
      : "r"(rn_nearest_integer(b)), "r"(rn_nearest_integer(a)), "r"(high));
  return word;
}

/* Clusters (sm_90 and later; elsewhere a cluster is one block). The barrier makes what was written before it, in shared
 * and global memory, visible to every block of the cluster after it. No block may leave while another one may still
 * look into its shared memory. */
RN_DEVICE int rn_cluster_rank(void) {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
#else
  return 0;
#endif
}
RN_DEVICE int rn_cluster_blocks(void) {
#if __CUDA_ARCH__ >= 900
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return (int)blocks;
#else
  return 1;
#endif
}
RN_DEVICE void rn_cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
RN_DEVICE void rn_cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/* *at of the block `rank`, where `at` is in the shared memory of this block. */
RN_DEVICE float rn_cluster_load(const float *at, int rank) {
#if __CUDA_ARCH__ >= 900
  float v;
  uint32_t own = (uint32_t)__cvta_generic_to_shared(at), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
  return v;
#else
  (void)rank;
  return *at;
#endif
}

/* The other way round: v into *at of the block `rank`, which must have started (meet at a cluster barrier first). */
RN_DEVICE void rn_cluster_store(float *at, int rank, float v) {
#if __CUDA_ARCH__ >= 900
  uint32_t own = (uint32_t)__cvta_generic_to_shared(at), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
#else
  (void)rank;
  *at = v;
#endif
}

/* Bulk copies from global to shared memory (sm_90 and later): `bytes` a multiple of 16, both addresses aligned to 16.
 * An rn_transfer in shared memory counts them: init once (arrivals = 1) and publish with a block barrier; one thread
 * says how many bytes it expects and starts the copies; everybody waits for the phase, whose parity alternates 0, 1. */
typedef uint64_t rn_transfer;
#if __CUDA_ARCH__ >= 900
RN_DEVICE uint32_t rn_shared_address(const void *at) {
  return (uint32_t)__cvta_generic_to_shared(at);
}
#endif
RN_DEVICE void rn_transfer_init(rn_transfer *t, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(rn_shared_address(t)), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
RN_DEVICE void rn_transfer_expect(rn_transfer *t, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(rn_shared_address(t)), "r"(bytes)
               : "memory");
#endif
}
RN_DEVICE void rn_transfer_arrive(rn_transfer *t) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(rn_shared_address(t)) : "memory");
#endif
}
RN_DEVICE void rn_transfer_start(void *shared, const void *global, uint32_t bytes, rn_transfer *t) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   rn_shared_address(shared)),
               "l"(global), "r"(bytes), "r"(rn_shared_address(t))
               : "memory");
#endif
}
RN_DEVICE void rn_transfer_wait(rn_transfer *t, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again_%=;\n"
               "}\n" ::"r"(rn_shared_address(t)),
               "r"(parity)
               : "memory");
#endif
}

/* A value for *at of the block `rank`, four bytes of the transfer `t` of that block; and the wait for such values,
 * which makes them visible. Needs no barrier but a first one: the blocks have met after their transfers were made. */
RN_DEVICE void rn_cluster_send(float *at, int rank, float v, rn_transfer *t) {
#if __CUDA_ARCH__ >= 900
  uint32_t there, count;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(rn_shared_address(at)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(count) : "r"(rn_shared_address(t)), "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
               "r"(__float_as_uint(v)), "r"(count)
               : "memory");
#endif
}
RN_DEVICE void rn_cluster_receive(rn_transfer *t, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again_%=;\n"
               "}\n" ::"r"(rn_shared_address(t)),
               "r"(parity)
               : "memory");
#endif
}
/* Arrives at the cluster's barrier without making any writes visible: for the first meeting. */
RN_DEVICE void rn_cluster_arrive_relaxed(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/* Dependent launch: wait for the kernel before this one in the stream (a kernel reads nothing before that), and let the
 * one after it be started early. Nothing happens in launches that were not asked to depend. */
RN_DEVICE void rn_wait_for_previous(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
RN_DEVICE void rn_let_next_start(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif /* RN_EMULATED */
#endif /* RN_CUDA_DEVICE_H */
