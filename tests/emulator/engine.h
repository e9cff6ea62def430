/* engine.h - the emulated device as its host sees it: memory and launches. driver.cpp and the tests use it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_ENGINE_H
#define RN_EMULATED_ENGINE_H

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

/* memory.cpp: memory of the device. Starts are aligned to 256 bytes, as a driver aligns them, and no better; the end is
 * followed by a page that nobody may touch. Fresh memory holds NaNs (unless it is huge). */
void *rn_emulated_alloc(size_t bytes); /* NULL when there is none left */
bool rn_emulated_free(void *at);       /* false when it is no start of an allocation */
/* Do the bytes [at, at + bytes) lie within one allocation? *start and *size (may be NULL) are those of the one at `at`.
 */
bool rn_emulated_holds(const void *at, size_t bytes);
/* NULL, or which allocation was written around. */
const char *rn_emulated_damage();
size_t rn_emulated_memory_total();
size_t rn_emulated_memory_used();
/* Once shut, memory of the device can be touched only by kernels, after rn_wait_for_previous, and between open and
 * shut: a host program that reads a device pointer stops. */
void rn_emulated_shut();
void rn_emulated_open();
bool rn_emulated_is_shut();

#endif /* RN_EMULATED_ENGINE_H */
