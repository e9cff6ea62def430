/* kernels.h - the list of all kernels, by family. A family is one .cu file and one image in the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_KERNELS_H
#define RN_CUDA_KERNELS_H

/* X(name): the entry point in the image. */
#define RN_GENERAL_KERNELS(X)                                                                                          \
  X(rn_general_forward) X(rn_general_stats) X(rn_general_row_sums) X(rn_general_dx) X(rn_general_dweight)

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
  ((held) <= 16 ? 40 : (held) <= 32 ? 48 : (held) <= 64 ? 56 : (held) <= 128 ? 80 : (held) <= 192 ? 104 :              \
   (held) <= 256 ? 144 : 255)
/* clang-format on */

/* backward.cu */
#define RN_BACKWARD_KERNELS(X)

/* copy.cu: X(reads, writes, words): streams in, streams out, 16-byte words a thread. Blocks of any size up to 1024. */
#define RN_COPY_SHAPE(X, reads, writes) X(reads, writes, 1) X(reads, writes, 2) X(reads, writes, 4)
#define RN_COPY_INSTANCES(X)            RN_COPY_SHAPE(X, 1, 1) RN_COPY_SHAPE(X, 2, 1) RN_COPY_SHAPE(X, 2, 2) RN_COPY_SHAPE(X, 3, 1)

/* X(family): the .cu files, in the order of rn_cuda_device.families. */
#define RN_CUDA_FAMILIES(X) X(general) X(forward) X(backward) X(copy)

#define RN_FORWARD_NAME(type, sum, team, loads) rn_forward_##type##_##sum##_##team##_##loads
#define RN_ENUM_FORWARD(type, sum, team, loads) RN_KERNEL_rn_forward_##type##_##sum##_##team##_##loads,
#define RN_ENUM_COPY(reads, writes, words)      RN_KERNEL_rn_copy_##reads##_##writes##_##words,
#define RN_ENUM_KERNEL(name)                    RN_KERNEL_##name,
#define RN_ENUM_FAMILY(family)                  RN_FAMILY_##family,
enum rn_cuda_kernel {
  RN_GENERAL_KERNELS(RN_ENUM_KERNEL) RN_FORWARD_INSTANCES(RN_ENUM_FORWARD) RN_BACKWARD_KERNELS(RN_ENUM_KERNEL)
      RN_COPY_INSTANCES(RN_ENUM_COPY) RN_CUDA_KERNELS
};
enum rn_cuda_family { RN_CUDA_FAMILIES(RN_ENUM_FAMILY) RN_CUDA_FAMILY_COUNT };

#endif /* RN_CUDA_KERNELS_H */
