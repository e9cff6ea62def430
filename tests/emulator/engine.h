/* engine.h - the emulated device as its host sees it: memory and launches. driver.cpp and the tests use it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_ENGINE_H
#define RN_EMULATED_ENGINE_H

#include "asan.h"
#include "emulated.h"

/* The kernel of that name, or NULL. */
const rn_emulated_kernel *rn_emulated_kernel_named(const char *name);

/* Runs a whole grid. NULL, or what went wrong (also on stderr); the text lives until the next call. */
const char *rn_emulate(const rn_emulated_kernel *kernel, const void *params, uint32_t blocks, uint32_t threads,
                       uint32_t cluster, uint32_t shared);
/* The same by the kernel's name. */
const char *rn_emulate_named(const char *kernel, const void *params, uint32_t blocks, uint32_t threads,
                             uint32_t cluster, uint32_t shared);

/* How threads and blocks take turns: "forward", "reverse" or "random:<seed>"; false if it is none of these. The
 * environment variable RMSNORM_EMULATED_ORDER says it for a whole process. */
bool rn_emulated_order(const char *order);

/* The compute capability in tens; below 90 the device has no clusters and no transfers. */
extern int rn_emulated_capability;
/* Static and dynamic shared memory that a block may have. */
extern uint32_t rn_emulated_shared_limit;

/* memory.cpp: memory of the device. Starts are aligned to 256 bytes, as a driver aligns them, and no better; the end is
 * followed by a page that nobody may touch. Fresh memory holds NaNs (unless it is huge). */
void *rn_emulated_alloc(size_t bytes); /* NULL when there is none left */
bool rn_emulated_free(void *at);       /* false when it is no start of an allocation */
/* Do the bytes [at, at + bytes) lie within one allocation of the current owner? */
bool rn_emulated_holds(const void *at, size_t bytes);
/* The host reads and writes bytes of any owner: from, to may be host memory too. false: out of bounds. */
bool rn_emulated_copy(void *to, const void *from, size_t bytes, bool to_device, bool from_device);
bool rn_emulated_fill(void *at, int byte, size_t bytes);
/* NULL, or which allocation was written around. */
const char *rn_emulated_damage();
/* Allocations belong to an owner (a context); kernels see those of the current owner only. Owner 0 to begin with. */
void rn_emulated_own(uint32_t owner);
void rn_emulated_free_all_of(uint32_t owner);
size_t rn_emulated_memory_total();
size_t rn_emulated_memory_used();
/* Once shut, memory of the device can be touched only by kernels, after rn_wait_for_previous, and between open and
 * shut: a host program that reads a device pointer stops. */
void rn_emulated_shut();
void rn_emulated_open();
bool rn_emulated_is_shut();

#endif /* RN_EMULATED_ENGINE_H */
