/* kernels.h - the list of all kernels of the library, by family. A family is one .cu file and one image.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_KERNELS_H
#define RN_CUDA_KERNELS_H

/* X(name, threads): the entry point in the image; the largest block (params.h). */
#define RN_GENERAL_KERNELS(X)                                                                                          \
  X(rn_general_forward, RN_GENERAL_THREADS)                                                                            \
  X(rn_general_quantise, RN_GENERAL_BOUND)                                                                             \
  X(rn_general_stats, RN_GENERAL_THREADS)                                                                              \
  X(rn_general_row_sums, RN_GENERAL_BOUND)                                                                             \
  X(rn_general_dx, RN_GENERAL_BOUND)                                                                                   \
  X(rn_general_dweight, RN_GENERAL_BOUND)                                                                              \
  X(rn_general_dweight_sum, RN_GENERAL_THREADS)

/* forward.cu: X(type, sum, lanes, span, threads, loads, rows): the element type; what is normalised: x alone, the
 * stored sum, the float32 sum; lanes of a thread; who shares a row: a part of a WARP (with how many threads), a BLOCK,
 * a CLUSTER of blocks; the most steps of W columns in a row; rows at the same time. Rows of few steps go several at a
 * time, so that a thread has four loads under way and the statistic is shared. The name is
 * rn_forward_<type>_<sum>_<lanes>_<span>_<threads>_<loads>. */
/* clang-format off */
#define RN_FORWARD_WIDE(X, type, sum)                                                                                  \
  X(type, sum, 8, WARP, 8, 1, 4) X(type, sum, 8, WARP, 8, 2, 2) X(type, sum, 8, WARP, 8, 4, 1)                         \
  X(type, sum, 8, WARP, 8, 8, 1)                                                                                       \
  X(type, sum, 8, WARP, 16, 4, 1) X(type, sum, 8, WARP, 16, 6, 1) X(type, sum, 8, WARP, 16, 8, 1)                      \
  X(type, sum, 8, WARP, 32, 4, 1) X(type, sum, 8, WARP, 32, 6, 1) X(type, sum, 8, WARP, 32, 8, 1)                      \
  X(type, sum, 8, BLOCK, 0, 4, 1) X(type, sum, 8, BLOCK, 0, 6, 1) X(type, sum, 8, BLOCK, 0, 8, 1)                      \
  X(type, sum, 8, CLUSTER, 0, 4, 1) X(type, sum, 8, CLUSTER, 0, 8, 1)
#define RN_FORWARD_INSTANCES(X)                                                                                        \
  RN_FORWARD_WIDE(X, bf16, none) RN_FORWARD_WIDE(X, bf16, stored) RN_FORWARD_WIDE(X, bf16, exact)                      \
  RN_FORWARD_WIDE(X, f16, none) RN_FORWARD_WIDE(X, f16, stored) RN_FORWARD_WIDE(X, f16, exact)                         \
  RN_FORWARD_WIDE(X, f32, none) RN_FORWARD_WIDE(X, f32, stored)

/* The bytes of x and residual that a thread holds; from them the largest block and the registers of a thread. A
 * multiprocessor wants 32 to 64 KiB of loads under way: the fewer a thread has, the more threads must fit. */
#define RN_FORWARD_HELD(type, sum, lanes, loads, rows) \
  ((lanes) * (loads) * (rows) * RN_FORWARD_SIZE_##type * RN_FORWARD_TENSORS_##sum)
#define RN_FORWARD_SIZE_bf16      2
#define RN_FORWARD_SIZE_f16       2
#define RN_FORWARD_SIZE_f32       4
#define RN_FORWARD_TENSORS_none   1
#define RN_FORWARD_TENSORS_stored 2
#define RN_FORWARD_TENSORS_exact  2
#define RN_FORWARD_THREADS(type, sum, lanes, span, loads) \
  (RN_FORWARD_THREADS_##span < 512 || RN_FORWARD_HELD(type, sum, lanes, loads, 1) <= 256 ? RN_FORWARD_THREADS_##span : 256)
#define RN_FORWARD_THREADS_WARP    128
#define RN_FORWARD_THREADS_BLOCK   512
#define RN_FORWARD_THREADS_CLUSTER 512
#define RN_FORWARD_REGISTERS(span, held) \
  ((held) <= 32 ? 48 : (held) <= 64 ? RN_FORWARD_REGISTERS_##span : (held) <= 128 ? 104 : (held) <= 192 ? 104 :        \
   (held) <= 256 ? 144 : 255)
#define RN_FORWARD_REGISTERS_WARP    72
#define RN_FORWARD_REGISTERS_BLOCK   64
#define RN_FORWARD_REGISTERS_CLUSTER 80
/* clang-format on */

/* forward_few.h: X(type, sum, lanes, span, loads): as in forward.cu, for few rows. A step is one access, so float32 has
 * at most four lanes. The name is rn_few_<type>_<sum>_<lanes>_<span>_<loads>. */
/* clang-format off */
#define RN_FEW_NARROW(X, type, sum)                                                                                    \
  X(type, sum, 2, WARP, 1) X(type, sum, 2, WARP, 2) X(type, sum, 2, WARP, 4) X(type, sum, 2, WARP, 6)                  \
  X(type, sum, 2, WARP, 8)                                                                                             \
  X(type, sum, 2, BLOCK, 4) X(type, sum, 2, BLOCK, 6) X(type, sum, 2, BLOCK, 8) X(type, sum, 2, CLUSTER, 8)            \
  X(type, sum, 4, BLOCK, 4) X(type, sum, 4, BLOCK, 6) X(type, sum, 4, BLOCK, 8)
#define RN_FEW_SHAPES(X, type, sum)                                                                                    \
  RN_FEW_NARROW(X, type, sum)                                                                                          \
  X(type, sum, 8, BLOCK, 4) X(type, sum, 8, BLOCK, 6) X(type, sum, 8, BLOCK, 8)                                        \
  X(type, sum, 8, CLUSTER, 4) X(type, sum, 8, CLUSTER, 8)
#define RN_FEW_SHAPES_F32(X, type, sum)                                                                                \
  RN_FEW_NARROW(X, type, sum) X(type, sum, 4, CLUSTER, 4) X(type, sum, 4, CLUSTER, 8)
#define RN_FEW_INSTANCES(X)                                                                                            \
  RN_FEW_SHAPES(X, bf16, none) RN_FEW_SHAPES(X, bf16, stored)                                                          \
  RN_FEW_SHAPES(X, f16, none) RN_FEW_SHAPES(X, f16, stored)                                                            \
  RN_FEW_SHAPES_F32(X, f32, none) RN_FEW_SHAPES_F32(X, f32, stored)
#define RN_FEW_NAME(type, sum, lanes, span, loads) rn_few_##type##_##sum##_##lanes##_##span##_##loads
/* clang-format on */
enum { RN_FEW_WARP_THREADS = 64 };
/* The largest block; a thread with 64 elements needs 200 registers. */
#define RN_FEW_IS_HEAVY(lanes, loads) ((lanes) * (loads) >= 64)
#define RN_FEW_THREADS(lanes, span, loads)                                                                             \
  (RN_FEW_THREADS_##span < 512 || !RN_FEW_IS_HEAVY(lanes, loads) ? RN_FEW_THREADS_##span : 256)
#define RN_FEW_THREADS_WARP            RN_FEW_WARP_THREADS
#define RN_FEW_THREADS_BLOCK           512
#define RN_FEW_THREADS_CLUSTER         512
#define RN_FEW_REGISTERS(lanes, loads) (RN_FEW_IS_HEAVY(lanes, loads) ? 200 : 104)

/* forward_ring.h: X(type, sum, span, loads, stages, threads, registers): as in forward.cu, with stages of shared
 * memory; the largest block and the registers of a thread. The stages of two tensors, and of f32, take so much that
 * some shapes are not for them. The name is rn_ring_<type>_<sum>_<span>_<loads>_<threads>. */
/* clang-format off */
#define RN_RING_HALF(X, type)                                                                                          \
  X(type, none, BLOCK, 4, 2, 512, 64) X(type, none, BLOCK, 8, 2, 256, 128)                                             \
  X(type, none, CLUSTER, 4, 2, 512, 64) X(type, none, CLUSTER, 8, 2, 256, 128)                                         \
  X(type, stored, CLUSTER, 4, 2, 256, 80) X(type, stored, CLUSTER, 4, 2, 512, 64)                                      \
  X(type, stored, CLUSTER, 8, 2, 256, 128)
#define RN_RING_INSTANCES(X)                                                                                           \
  RN_RING_HALF(X, bf16) RN_RING_HALF(X, f16)                                                                           \
  X(f32, none, BLOCK, 8, 2, 256, 200)                                                                                  \
  X(f32, none, CLUSTER, 4, 2, 256, 120) X(f32, none, CLUSTER, 4, 2, 512, 120) X(f32, none, CLUSTER, 8, 2, 256, 200)    \
  X(f32, stored, CLUSTER, 4, 2, 256, 120)
/* clang-format on */
enum { RN_FORWARD_STAGES = 2 };
#define RN_RING_NAME(type, sum, span, loads, threads) rn_ring_##type##_##sum##_##span##_##loads##_##threads

/* quantise.cu: X(type, sum, span, threads, loads): as in forward.cu, eight lanes a thread, one row at a time; sum: none
 * or residual. A thread keeps a row as float32 from the sum of squares on, so it has more registers than in forward.cu.
 * The name is rn_quantise_<type>_<sum>_<span>_<threads>_<loads>. */
/* clang-format off */
#define RN_QUANTISE_SHAPES(X, type, sum)                                                                               \
  X(type, sum, WARP, 8, 8)                                                                                             \
  X(type, sum, WARP, 16, 4) X(type, sum, WARP, 16, 8)                                                                  \
  X(type, sum, WARP, 32, 4) X(type, sum, WARP, 32, 8)                                                                  \
  X(type, sum, BLOCK, 0, 4) X(type, sum, BLOCK, 0, 8)                                                                  \
  X(type, sum, CLUSTER, 0, 4) X(type, sum, CLUSTER, 0, 8)
#define RN_QUANTISE_SHAPES_F32(X, type, sum)                                                                           \
  X(type, sum, WARP, 8, 8) X(type, sum, WARP, 16, 8) X(type, sum, WARP, 32, 8)                                         \
  X(type, sum, BLOCK, 0, 4) X(type, sum, BLOCK, 0, 8) X(type, sum, CLUSTER, 0, 4) X(type, sum, CLUSTER, 0, 8)
#define RN_QUANTISE_INSTANCES(X)                                                                                       \
  RN_QUANTISE_SHAPES(X, bf16, none) RN_QUANTISE_SHAPES(X, bf16, residual)                                              \
  RN_QUANTISE_SHAPES(X, f16, none) RN_QUANTISE_SHAPES(X, f16, residual)                                                \
  RN_QUANTISE_SHAPES_F32(X, f32, none) RN_QUANTISE_SHAPES_F32(X, f32, residual)
/* The words of x and residual of a thread, which are under way at the same time. */
#define RN_QUANTISE_WORDS(type, sum, loads) ((loads) * 2 * RN_FORWARD_SIZE_##type * RN_QUANTISE_TENSORS_##sum)
#define RN_QUANTISE_TENSORS_none     1
#define RN_QUANTISE_TENSORS_residual 2
/* With four loads 64 registers are some too few, and some words of a thread go to memory and back for each row; but
 * then a multiprocessor has twice the threads: 65536 rows of 4096 in 250 us instead of 327 (bf16, one scale). */
#define RN_QUANTISE_REGISTERS(type, sum, loads) RN_QUANTISE_REGISTERS_##loads(type, sum)
#define RN_QUANTISE_REGISTERS_4(type, sum) \
  (RN_QUANTISE_WORDS(type, sum, 4) > 32 ? 128 : RN_QUANTISE_WORDS(type, sum, 4) > 16 ? 96 : 64)
#define RN_QUANTISE_REGISTERS_8(type, sum) \
  (RN_QUANTISE_WORDS(type, sum, 8) > 64 ? 200 : RN_FORWARD_SIZE_##type == 4 ? 168 : RN_QUANTISE_TENSORS_##sum == 2 ? 144 : 112)
#define RN_QUANTISE_THREADS(type, sum, span, loads) \
  (RN_FORWARD_THREADS_##span < 512 || RN_QUANTISE_REGISTERS(type, sum, loads) <= 128 ? RN_FORWARD_THREADS_##span : 256)
#define RN_QUANTISE_NAME(type, sum, span, threads, loads) rn_quantise_##type##_##sum##_##span##_##threads##_##loads
/* clang-format on */

/* backward.cu: X(reach, type, lanes, loads, rows, adds, threads, registers): who shares a row (a warp or less, a block,
 * a ring of bulk copies for a block or cluster; few_*: few rows in one launch); the element type; neighbouring lanes a
 * thread, of 16 or 8 bytes; steps a row; rows at once; dresidual_out, 0 or 1; the largest block and the registers of a
 * thread, from what it holds: x, dy, dresidual_out and the weight packed, dweight in float32.
 * The name is rn_backward_<reach>_<type>_<lanes>_<loads>_<adds>. */
/* clang-format off */
#define RN_BACKWARD_SHAPES(X, type, lanes)                                                                             \
  X(WARP, type, lanes, 1, 2, 0, 256, 80) X(WARP, type, lanes, 1, 4, 1, 256, 128)                                       \
  X(WARP, type, lanes, 2, 1, 0, 256, 80) X(WARP, type, lanes, 2, 2, 1, 256, 128)                                       \
  X(WARP, type, lanes, 4, 1, 0, 256, 128) X(WARP, type, lanes, 4, 1, 1, 128, 168)                                      \
  X(WARP, type, lanes, 6, 1, 0, 128, 168) X(WARP, type, lanes, 6, 1, 1, 128, 240)                                      \
  X(WARP, type, lanes, 8, 1, 1, 128, 240)                                                                              \
  X(BLOCK, type, lanes, 4, 1, 0, 512, 128) X(BLOCK, type, lanes, 8, 1, 1, 256, 240)                                    \
  X(RING, type, lanes, 4, 1, 1, 512, 128) X(RING, type, lanes, 6, 1, 1, 256, 168)                                      \
  X(RING, type, lanes, 8, 1, 1, 256, 240)
#define RN_BACKWARD_NARROW_SHAPES(X, type, lanes)                                                                      \
  X(BLOCK, type, lanes, 4, 1, 1, 512, 80)                                                                              \
  X(BLOCK, type, lanes, 6, 1, 0, 512, 96) X(BLOCK, type, lanes, 6, 1, 1, 512, 128)                                     \
  X(RING, type, lanes, 6, 1, 1, 512, 128)
#define RN_BACKWARD_FEW_SHAPES(X, type, lanes)                                                                         \
  X(FEW_WARP, type, lanes, 4, 1, 1, 256, 168) X(FEW_WARP, type, lanes, 8, 1, 1, 256, 168)                              \
  X(FEW_CLUSTER, type, lanes, 4, 1, 1, 512, 128) X(FEW_CLUSTER, type, lanes, 8, 1, 1, 256, 168)
#define RN_BACKWARD_FEW_NARROW_SHAPES(X, type, lanes)                                                                  \
  X(FEW_BLOCK, type, lanes, 4, 1, 1, 512, 128) X(FEW_BLOCK, type, lanes, 8, 1, 1, 512, 128)
#define RN_BACKWARD_ALL(X, SHAPES, NARROW)                                                                             \
  SHAPES(X, bf16, 8) SHAPES(X, f16, 8) SHAPES(X, f32, 4) NARROW(X, bf16, 4) NARROW(X, f16, 4)
#define RN_BACKWARD_INSTANCES(X)                                                                                       \
  RN_BACKWARD_ALL(X, RN_BACKWARD_SHAPES, RN_BACKWARD_NARROW_SHAPES)                                                    \
  X(BLOCK, f32, 4, 4, 1, 1, 256, 168)                                                                                  \
  X(FEW_BLOCK, f32, 4, 4, 1, 1, 256, 168) X(FEW_BLOCK, f32, 4, 8, 1, 1, 256, 168)
#define RN_BACKWARD_FEW_INSTANCES(X) RN_BACKWARD_ALL(X, RN_BACKWARD_FEW_SHAPES, RN_BACKWARD_FEW_NARROW_SHAPES)
/* clang-format on */
enum { RN_TREE_THREADS = 1024 };

/* X(family): the .cu files, in the order of rn_cuda_device.families. */
#define RN_CUDA_FAMILIES(X) X(general) X(forward) X(quantise) X(backward)

#define RN_FORWARD_NAME(type, sum, lanes, span, threads, loads)                                                        \
  rn_forward_##type##_##sum##_##lanes##_##span##_##threads##_##loads
#define RN_BACKWARD_NAME(reach, type, lanes, loads, adds) rn_backward_##reach##_##type##_##lanes##_##loads##_##adds

/* All kernels: RN_LISTED(family, name, threads) for each, which whoever uses the list defines; threads: the largest
 * block. */
/* clang-format off */
#define RN_LISTED_GENERAL(name, threads) RN_LISTED(general, name, threads)
#define RN_LISTED_FORWARD(type, sum, lanes, span, threads, loads, rows)                                                \
  RN_LISTED(forward, RN_FORWARD_NAME(type, sum, lanes, span, threads, loads),                                          \
            RN_FORWARD_THREADS(type, sum, lanes, span, loads))
#define RN_LISTED_FEW(type, sum, lanes, span, loads)                                                                   \
  RN_LISTED(forward, RN_FEW_NAME(type, sum, lanes, span, loads), RN_FEW_THREADS(lanes, span, loads))
#define RN_LISTED_RING(type, sum, span, loads, stages, threads, registers)                                             \
  RN_LISTED(forward, RN_RING_NAME(type, sum, span, loads, threads), threads)
#define RN_LISTED_QUANTISE(type, sum, span, threads, loads)                                                             \
  RN_LISTED(quantise, RN_QUANTISE_NAME(type, sum, span, threads, loads), RN_QUANTISE_THREADS(type, sum, span, loads))
#define RN_LISTED_BACKWARD(reach, type, lanes, loads, rows, adds, threads, registers)                                  \
  RN_LISTED(backward, RN_BACKWARD_NAME(reach, type, lanes, loads, adds), threads)
#define RN_CUDA_LIST                                                                                                   \
  RN_GENERAL_KERNELS(RN_LISTED_GENERAL)                                                                                \
  RN_FORWARD_INSTANCES(RN_LISTED_FORWARD)                                                                              \
  RN_FEW_INSTANCES(RN_LISTED_FEW)                                                                                      \
  RN_RING_INSTANCES(RN_LISTED_RING)                                                                                    \
  RN_QUANTISE_INSTANCES(RN_LISTED_QUANTISE)                                                                            \
  RN_BACKWARD_INSTANCES(RN_LISTED_BACKWARD)                                                                            \
  RN_BACKWARD_FEW_INSTANCES(RN_LISTED_BACKWARD)                                                                        \
  RN_LISTED(backward, rn_backward_tree, RN_TREE_THREADS)
/* clang-format on */

#define RN_KERNEL_NUMBER(name)           RN_KERNEL_##name
#define RN_LISTED(family, name, threads) RN_KERNEL_NUMBER(name),
enum rn_cuda_kernel { RN_CUDA_LIST RN_CUDA_KERNELS };
#undef RN_LISTED

#define RN_ENUM_FAMILY(family) RN_FAMILY_##family,
enum rn_cuda_family { RN_CUDA_FAMILIES(RN_ENUM_FAMILY) RN_CUDA_FAMILY_COUNT };

#endif /* RN_CUDA_KERNELS_H */
