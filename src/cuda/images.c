/* images.c - the kernels as the build has compiled them, inside the library: one fatbin a family, put in by the
 * assembler.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "built_families.h" /* made by the build: RN_BUILT_FAMILIES(X), RN_BUILT_CAPABILITIES, RN_IMAGE_FOLDER, where the images are */
#include "host.h"

/* The driver reads the header of an image as words of 8 bytes. */
#define EMBED(family)                                                                                                  \
  __asm__(".pushsection .rodata\n"                                                                                     \
          ".hidden rn_cuda_image_" #family "\n"                                                                        \
          ".globl rn_cuda_image_" #family "\n"                                                                         \
          ".type rn_cuda_image_" #family ", %object\n"                                                                 \
          ".balign 64\n"                                                                                               \
          "rn_cuda_image_" #family ":\n"                                                                               \
          ".incbin \"" RN_IMAGE_FOLDER "/" #family ".fatbin\"\n"                                                       \
          ".size rn_cuda_image_" #family ", . - rn_cuda_image_" #family "\n"                                           \
          ".popsection\n");                                                                                            \
  extern const unsigned char rn_cuda_image_##family[] __attribute__((visibility("hidden")));
RN_BUILT_FAMILIES(EMBED)

#define ROW(family) [RN_FAMILY_##family] = rn_cuda_image_##family,
const int32_t rn_cuda_capabilities[] = {RN_BUILT_CAPABILITIES 0};
const void *const rn_cuda_images[RN_CUDA_FAMILY_COUNT] = {RN_BUILT_FAMILIES(ROW)};
