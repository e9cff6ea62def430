/* kernels.h - the list of all kernels, by family. A family is one .cu file and one image in the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_KERNELS_H
#define RN_CUDA_KERNELS_H

/* X(name): the entry point in the image. */
#define RN_GENERAL_KERNELS(X)                                                                                          \
  X(rn_general_forward)                                                                                                \
  X(rn_general_quantise)                                                                                               \
  X(rn_general_stats) X(rn_general_row_sums) X(rn_general_dx) X(rn_general_dweight) X(rn_general_dweight_sum)

/* forward.cu: X(type, sum, team, loads): the element type of x; what is normalised: x alone, the stored sum, the
 * float32 sum; threads a row (0: the whole block, or all blocks of a cluster); 16-byte steps of eight columns a thread.
 * The name is rn_forward_<type>_<sum>_<team>_<loads>. */
/* clang-format off */
#define RN_FORWARD_TEAMS(X, type, sum)                                                                                 \
  X(type, sum, 8, 1) X(type, sum, 8, 2) X(type, sum, 8, 4) X(type, sum, 8, 6) X(type, sum, 8, 8)                       \
  X(type, sum, 16, 4) X(type, sum, 16, 6) X(type, sum, 16, 8)                                                          \
  X(type, sum, 32, 4) X(type, sum, 32, 6) X(type, sum, 32, 8)                                                          \
  X(type, sum, 0, 4) X(type, sum, 0, 5) X(type, sum, 0, 6) X(type, sum, 0, 8)
#define RN_FORWARD_INSTANCES(X)                                                                                        \
  RN_FORWARD_TEAMS(X, bf16, none) RN_FORWARD_TEAMS(X, bf16, stored) RN_FORWARD_TEAMS(X, bf16, exact)                   \
  RN_FORWARD_TEAMS(X, f16, none) RN_FORWARD_TEAMS(X, f16, stored) RN_FORWARD_TEAMS(X, f16, exact)                      \
  RN_FORWARD_TEAMS(X, f32, none) RN_FORWARD_TEAMS(X, f32, stored)

/* The bytes of x and residual that a thread holds; from them the largest block and the registers of a thread. A
 * multiprocessor wants 32 to 64 KiB of loads under way: the fewer a thread has, the more threads must fit. */
#define RN_FORWARD_HELD(type, sum, loads) ((loads) * RN_FORWARD_HELD_##type * RN_FORWARD_HELD_##sum)
#define RN_FORWARD_HELD_bf16   16
#define RN_FORWARD_HELD_f16    16
#define RN_FORWARD_HELD_f32    32
#define RN_FORWARD_HELD_none   1
#define RN_FORWARD_HELD_stored 2
#define RN_FORWARD_HELD_exact  2
#define RN_FORWARD_THREADS(team, held) ((team) > 0 ? 128 : (held) > 256 ? 256 : 512)
#define RN_FORWARD_REGISTERS(held)                                                                                     \
  ((held) <= 32 ? 48 : (held) <= 64 ? 64 : (held) <= 128 ? 80 : (held) <= 192 ? 104 :              \
   (held) <= 256 ? 144 : 255)
/* clang-format on */

/* backward.cu: X(reach, type, lanes, loads, rows, adds, threads, registers): who shares a row (a warp or less, a block,
 * a ring of bulk copies for a block or cluster; few_*: few rows in one launch); the element type; neighbouring lanes a
 * thread; steps a row; rows at once; dresidual_out, 0 or 1; the largest block and the registers of a thread, from what
 * it holds: x, dy, dresidual_out and the weight packed, dweight in float32.
 * The name is rn_backward_<reach>_<type>_<lanes>_<loads>_<adds>. */
/* clang-format off */
#define RN_BACKWARD_SHAPES(X, type, lanes, adds)                                                                       \
  X(WARP, type, lanes, 1, 4, adds, 256, 128)                                                                           \
  X(WARP, type, lanes, 2, 2, adds, 256, 128)                                                                           \
  X(WARP, type, lanes, 4, 1, adds, 256, 128)                                                                           \
  X(WARP, type, lanes, 6, 1, adds, 128, 168)                                                                           \
  X(WARP, type, lanes, 8, 1, adds, 128, 240)                                                                           \
  X(BLOCK, type, lanes, 4, 1, adds, 512, 128)                                                                          \
  X(BLOCK, type, lanes, 5, 1, adds, 384, 168)                                                                          \
  X(BLOCK, type, lanes, 6, 1, adds, 384, 168)                                                                          \
  X(BLOCK, type, lanes, 8, 1, adds, 256, 240)                                                                          \
  X(RING, type, lanes, 4, 1, adds, 512, 128)                                                                           \
  X(RING, type, lanes, 6, 1, adds, 256, 168)                                                                           \
  X(RING, type, lanes, 8, 1, adds, 256, 240)
#define RN_BACKWARD_FEW_SHAPES(X, type, lanes, adds)                                                                   \
  X(FEW_WARP, type, lanes, 4, 1, adds, 512, 128)                                                                       \
  X(FEW_WARP, type, lanes, 8, 1, adds, 512, 128)                                                                       \
  X(FEW_BLOCK, type, lanes, 4, 1, adds, 512, 128)                                                                      \
  X(FEW_BLOCK, type, lanes, 8, 1, adds, 512, 128)                                                                      \
  X(FEW_CLUSTER, type, lanes, 4, 1, adds, 512, 128)                                                                    \
  X(FEW_CLUSTER, type, lanes, 8, 1, adds, 512, 128)
#define RN_BACKWARD_TYPE(X, SHAPES, type, lanes) SHAPES(X, type, lanes, 0) SHAPES(X, type, lanes, 1)
#define RN_BACKWARD_ALL(X, SHAPES)                                                                                     \
  RN_BACKWARD_TYPE(X, SHAPES, bf16, 8) RN_BACKWARD_TYPE(X, SHAPES, f16, 8) RN_BACKWARD_TYPE(X, SHAPES, f32, 4)
#define RN_BACKWARD_INSTANCES(X) RN_BACKWARD_ALL(X, RN_BACKWARD_SHAPES)
#define RN_BACKWARD_FEW_INSTANCES(X) RN_BACKWARD_ALL(X, RN_BACKWARD_FEW_SHAPES)
/* clang-format on */
enum { RN_TREE_THREADS = 1024 };

/* copy.cu: X(reads, writes, words): streams in, streams out, 16-byte words a thread. Blocks of any size up to 1024. */
#define RN_COPY_SHAPE(X, reads, writes) X(reads, writes, 1) X(reads, writes, 2) X(reads, writes, 4)
#define RN_COPY_INSTANCES(X)            RN_COPY_SHAPE(X, 1, 1) RN_COPY_SHAPE(X, 2, 1) RN_COPY_SHAPE(X, 2, 2) RN_COPY_SHAPE(X, 3, 1)

/* X(family): the .cu files, in the order of rn_cuda_device.families. */
#define RN_CUDA_FAMILIES(X) X(general) X(forward) X(backward) X(copy)

#define RN_FORWARD_NAME(type, sum, team, loads)           rn_forward_##type##_##sum##_##team##_##loads
#define RN_ENUM_FORWARD(type, sum, team, loads)           RN_KERNEL_rn_forward_##type##_##sum##_##team##_##loads,
#define RN_ENUM_COPY(reads, writes, words)                RN_KERNEL_rn_copy_##reads##_##writes##_##words,
#define RN_BACKWARD_NAME(reach, type, lanes, loads, adds) rn_backward_##reach##_##type##_##lanes##_##loads##_##adds
#define RN_ENUM_BACKWARD(reach, type, lanes, loads, rows, adds, threads, registers)                                    \
  RN_KERNEL_rn_backward_##reach##_##type##_##lanes##_##loads##_##adds,
#define RN_ENUM_KERNEL(name)   RN_KERNEL_##name,
#define RN_ENUM_FAMILY(family) RN_FAMILY_##family,
enum rn_cuda_kernel {
  RN_GENERAL_KERNELS(RN_ENUM_KERNEL) RN_FORWARD_INSTANCES(RN_ENUM_FORWARD) RN_BACKWARD_INSTANCES(RN_ENUM_BACKWARD)
      RN_BACKWARD_FEW_INSTANCES(RN_ENUM_BACKWARD) RN_KERNEL_rn_backward_tree,
  RN_COPY_INSTANCES(RN_ENUM_COPY) RN_CUDA_KERNELS
};
enum rn_cuda_family { RN_CUDA_FAMILIES(RN_ENUM_FAMILY) RN_CUDA_FAMILY_COUNT };

#endif /* RN_CUDA_KERNELS_H */
