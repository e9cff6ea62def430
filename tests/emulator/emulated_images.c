/* emulated_images.c - stands in for src/cuda/images.c where the driver is the emulated one: it has the kernels itself,
 * so an image is no more than a name.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cuda/host.h"
#include "emulated_families.h" /* made by the build: the families that the driver has */

/* Of every major that a device of the tests has. */
const int32_t rn_cuda_capabilities[] = {80, 90, 100, 120, 0};
#define IMAGE(family) [RN_FAMILY_##family] = #family,
const void *const rn_cuda_images[RN_CUDA_FAMILY_COUNT] = {RN_EMULATED_FAMILIES(IMAGE)};
