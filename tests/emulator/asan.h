/* asan.h - is this built with the address sanitizer? It wants to know of stacks and of memory that nobody may touch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_ASAN_H
#define RN_EMULATED_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define RN_EMULATED_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RN_EMULATED_ASAN 1
#endif
#endif
#ifdef RN_EMULATED_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#endif /* RN_EMULATED_ASAN_H */
