/* fpenv.h - the arithmetic of the library is the same whatever the host process did to its floating-point unit.
 *
 * rn_fp_enter sets round-to-nearest, subnormals kept (no flush-to-zero, no denormals-are-zero) and no traps, and
 * returns what the caller had; rn_fp_leave puts that back, exception flags included. The pair belongs around a call
 * through a function pointer: the compiler may move arithmetic across it, but not across such a call.
 *
 * On x86 and AArch64 the registers are used directly: fesetenv costs more than a short row, and <fenv.h> knows nothing
 * about flush-to-zero.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_FPENV_H
#define RN_FPENV_H

#include <float.h>
#include <stdint.h>

#ifdef __FAST_MATH__
#error "-ffast-math reorders sums and drops NaN: the results would not be those of docs/numerics.md"
#endif

/* 16 is what a compiler with _Float16 instructions says; for float and double it means the same as 0. */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "float and double must be computed in their own width (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif

#if defined(__SSE__)

#include <xmmintrin.h>

typedef struct rn_fp {
  unsigned mxcsr;
} rn_fp;

/* All exceptions masked, nearest, no flush-to-zero, no denormals-are-zero, all flags clear. */
#define RN_MXCSR       0x1f80u
#define RN_MXCSR_FLAGS 0x3fu

static inline rn_fp rn_fp_enter(void) {
  rn_fp saved = {_mm_getcsr()};
  /* Writing the register is the dear part, and flags that are up already change no result. */
  if ((saved.mxcsr & ~RN_MXCSR_FLAGS) != RN_MXCSR) _mm_setcsr(RN_MXCSR);
  return saved;
}

static inline void rn_fp_leave(rn_fp saved) {
  if (_mm_getcsr() != saved.mxcsr) _mm_setcsr(saved.mxcsr);
}

#elif defined(__aarch64__)

typedef struct rn_fp {
  uint64_t fpcr, fpsr;
} rn_fp;

static inline rn_fp rn_fp_enter(void) {
  rn_fp saved;
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved.fpcr)::"memory");
  __asm__ volatile("mrs %0, fpsr" : "=r"(saved.fpsr)::"memory");
  if (saved.fpcr != 0) __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
  return saved;
}

static inline void rn_fp_leave(rn_fp saved) {
  if (saved.fpcr != 0) __asm__ volatile("msr fpcr, %0" ::"r"(saved.fpcr) : "memory");
  __asm__ volatile("msr fpsr, %0" ::"r"(saved.fpsr) : "memory");
}

#else

#include <fenv.h>

typedef struct rn_fp {
  fenv_t env;
} rn_fp;

static inline rn_fp rn_fp_enter(void) {
  rn_fp saved;
  feholdexcept(&saved.env);
  fesetround(FE_TONEAREST);
  return saved;
}

static inline void rn_fp_leave(rn_fp saved) {
  fesetenv(&saved.env);
}

#endif

#endif /* RN_FPENV_H */
