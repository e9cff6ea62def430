/* coroutine.h - stacks and the switch between them, in a few nanoseconds.
 *
 * ucontext would do, but saves the signal mask at every switch: a system call, and a block of 1024 threads switches
 * tens of thousands of times. Here a switch saves the registers that a call preserves, and nothing else.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_COROUTINE_H
#define RN_EMULATED_COROUTINE_H

#include "asan.h"

#include <stddef.h>
#include <stdint.h>

struct rn_coroutine {
  void *at;                 /* stack pointer while it is not running */
  const void *stack_bottom; /* lowest address */
  size_t stack_bytes;
  void *fake_stack; /* of the address sanitizer */
};

/* Lowest address of stack number i; the page below it faults. NULL when there is no memory. Stacks are kept. */
char *rn_coroutine_stack(size_t i);
size_t rn_coroutine_stack_bytes();
/* After coroutines have been dropped in the middle of their work: their frames are gone. */
void rn_coroutine_forget();
/* Which stack has run over its end at this address? -1: none. */
long rn_coroutine_overrun(const void *at);

/* A coroutine on stack i, which will start in entry(); entry never returns. */
void rn_coroutine_make(rn_coroutine *c, size_t i, void (*entry)());

extern "C" void rn_coroutine_jump(void **save, void *to);

/* Leaves `from` for `to`. `leaving`: for good. */
static inline void rn_coroutine_switch(rn_coroutine *from, rn_coroutine *to, [[maybe_unused]] bool leaving) {
#ifdef RN_EMULATED_ASAN
  __sanitizer_start_switch_fiber(leaving ? nullptr : &from->fake_stack, to->stack_bottom, to->stack_bytes);
#endif
  rn_coroutine_jump(&from->at, to->at);
#ifdef RN_EMULATED_ASAN
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

/* The first thing in entry(). `origin` gets the stack of the first caller when it is not known yet. */
static inline void rn_coroutine_begin([[maybe_unused]] rn_coroutine *origin) {
#ifdef RN_EMULATED_ASAN
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!origin->stack_bottom) origin->stack_bottom = bottom, origin->stack_bytes = bytes;
#endif
}

#endif /* RN_EMULATED_COROUTINE_H */
