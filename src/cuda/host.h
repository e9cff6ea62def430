/* host.h - the host side of the CUDA kernels: devices as the plans see them, kernels loaded and launched.
 *
 * The driver itself is that of src/gpu. What a thread has made current is used and never changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_HOST_H
#define RN_CUDA_HOST_H

#include "../gpu/cuda_driver.h"
#include "plan.h"

/* loader.c
 * A device, and what the plans want to know of it. */
typedef struct rn_place {
  int32_t number;
  rn_cuda_device facts;
} rn_place;
/* That of the current context, or why there is none. */
rmsnorm_status rn_place_of_context(rn_place *place);
/* The same without an error: device 0 stands in when no context is current. false: not even that can be asked. */
bool rn_place_to_explain(rn_place *place);

/* Queues one step of a plan. dependent: it may start before what precedes it has ended. */
rmsnorm_status rn_loader_launch(const rn_cuda_step *step, const rn_place *place, bool dependent, void *params,
                                void *stream);
/* Every kernel of the build, ready in the current context. */
rmsnorm_status rn_loader_preload(void);

/* images.c: one image a family, NULL where the family is not in this build */
extern const void *const rn_cuda_images[RN_CUDA_FAMILY_COUNT];
/* the compute capabilities (90 for 9.0) with machine code in those images; 0 behind the last */
extern const int32_t rn_cuda_capabilities[];
uint32_t rn_cuda_families(void); /* as rn_cuda_device.families */

#endif /* RN_CUDA_HOST_H */
