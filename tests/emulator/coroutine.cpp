/* coroutine.cpp - see coroutine.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "coroutine.h"

#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace {

/* Enough for the deepest kernel; instrumented code needs much more. */
#ifdef RN_EMULATED_ASAN
constexpr size_t stack_bytes = 256 * 1024;
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif
constexpr size_t stacks_a_chunk = 128;
constexpr size_t guard_bytes = 4096;
std::vector<char *> chunks;

bool add_chunk() {
  char *chunk = (char *)mmap(nullptr, stacks_a_chunk * stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (chunk == MAP_FAILED) return false;
  for (size_t i = 0; i < stacks_a_chunk; i++) mprotect(chunk + i * stack_bytes, guard_bytes, PROT_NONE);
  chunks.push_back(chunk);
  return true;
}

} // namespace

char *rn_coroutine_stack(size_t i) {
  while (i / stacks_a_chunk >= chunks.size())
    if (!add_chunk()) return nullptr;
  return chunks[i / stacks_a_chunk] + i % stacks_a_chunk * stack_bytes + guard_bytes;
}

size_t rn_coroutine_stack_bytes() {
  return stack_bytes - guard_bytes;
}

void rn_coroutine_forget() {
#ifdef RN_EMULATED_ASAN
  for (char *chunk : chunks) __asan_unpoison_memory_region(chunk, stacks_a_chunk * stack_bytes);
#endif
}

long rn_coroutine_overrun(const void *at) {
  for (size_t c = 0; c < chunks.size(); c++) {
    const char *p = (const char *)at;
    if (p < chunks[c] || p >= chunks[c] + stacks_a_chunk * stack_bytes) continue;
    const size_t into = (size_t)(p - chunks[c]);
    return into % stack_bytes < guard_bytes ? (long)(c * stacks_a_chunk + into / stack_bytes) : -1;
  }
  return -1;
}

/* The registers that a called function preserves go onto the stack, the stack pointer to *save, and the same of the
 * other side comes back. Floating-point modes are not switched: nobody changes them in between. */
#if defined(__x86_64__)
asm(R"(
  .text
  .p2align 4
  .hidden rn_coroutine_jump
  .globl rn_coroutine_jump
  .type rn_coroutine_jump, @function
rn_coroutine_jump:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size rn_coroutine_jump, .-rn_coroutine_jump
)");
constexpr size_t frame_words = 8; /* six registers, where to return to, and what keeps the stack aligned */
constexpr size_t return_word = 6;
#elif defined(__aarch64__)
asm(R"(
  .text
  .p2align 4
  .hidden rn_coroutine_jump
  .globl rn_coroutine_jump
  .type rn_coroutine_jump, %function
rn_coroutine_jump:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size rn_coroutine_jump, .-rn_coroutine_jump
)");
constexpr size_t frame_words = 20;
constexpr size_t return_word = 11; /* x30 */
#else
#error "the switch between coroutines is written for x86-64 and 64-bit Arm"
#endif

void rn_coroutine_make(rn_coroutine *c, size_t i, void (*entry)()) {
  char *bottom = rn_coroutine_stack(i);
  /* Stacks start at different places of their pages: at the same one they would all meet in the same cache sets. */
  char *top = bottom + rn_coroutine_stack_bytes() - i % 21 * 192;
  uintptr_t *frame = (uintptr_t *)top - frame_words;
#ifdef RN_EMULATED_ASAN
  /* The last functions of the thread that was here before have never returned. */
  __asan_unpoison_memory_region(bottom + rn_coroutine_stack_bytes() - 8192, 8192);
#endif
  for (size_t w = 0; w < frame_words; w++) frame[w] = 0;
  frame[return_word] = (uintptr_t)entry;
  c->at = frame;
  c->stack_bottom = bottom;
  c->stack_bytes = rn_coroutine_stack_bytes();
  c->fake_stack = nullptr;
}
