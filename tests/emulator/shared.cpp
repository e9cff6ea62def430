/* shared.cpp - the shared memory of the emulated blocks.
 *
 * A block has what the launch asks for, then its RN_SHARED arrays, with guards between all of them. Everything holds
 * NaNs when a block starts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <cstdio>

namespace rn_emulator {
namespace {

constexpr size_t static_limit = 48 * 1024, guard = 64;
constexpr unsigned char poison = 0xff, red = 0xa5;

struct array {
  const char *name;
  size_t offset, bytes, taken; /* taken: with what rounds it up */
};
std::vector<array> arrays; /* of this launch */
uint64_t launch_of_arrays;
size_t rest_end, high; /* of the dynamic part; of everything in use */
std::vector<char> memory;
size_t stride; /* from one block to the next */

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

void fill(size_t from, size_t bytes, unsigned char with) {
  for (cuda_block &b : now.home) memset(b.shared + from, with, bytes);
}

#ifdef RN_EMULATED_ASAN
void hide(size_t from, size_t to) {
  for (cuda_block &b : now.home) __asan_poison_memory_region(b.shared + from, to - from);
}
void show_all() {
  __asan_unpoison_memory_region(memory.data(), memory.size());
}
#else
void hide(size_t, size_t) {}
void show_all() {}
bool is_red(const cuda_block &b, size_t from, size_t to) {
  for (; from < to; from++)
    if ((unsigned char)b.shared[from] != red) return false;
  return true;
}
#endif

} // namespace

/* Within one array, or within what the launch asked for. */
bool in_shared(const cuda_block &b, const void *at, size_t bytes) {
  const char *p = (const char *)at;
  if (p < b.shared || p + bytes > b.shared + high) return false;
  const size_t from = (size_t)(p - b.shared);
  if (from + bytes <= now.shared) return true;
  for (const array &a : arrays)
    if (from >= a.offset && from + bytes <= a.offset + a.bytes) return true;
  return false;
}

void shared_set_up() {
  show_all();
  if (launch_of_arrays != now.serial) {
    arrays.clear();
    launch_of_arrays = now.serial;
    rest_end = round_up(now.shared, 128);
    high = rest_end + guard;
    /* Room for the largest set of arrays, each with a guard, and for the alignment of the first byte. */
    stride = round_up(rest_end + 4 * static_limit + guard, 128);
    if (memory.size() < stride * now.cluster + 128) memory.resize(stride * now.cluster + 128);
  }
  char *base = memory.data() + (128 - (uintptr_t)memory.data() % 128) % 128;
  for (uint32_t r = 0; r < now.cluster; r++) now.home[r].shared = base + r * stride;
  fill(0, high, poison);
  fill(now.shared, rest_end + guard - now.shared, red);
  hide(now.shared, rest_end + guard);
  for (const array &a : arrays) {
    fill(a.offset + a.bytes, a.taken - a.bytes, red);
    hide(a.offset + a.bytes, a.offset + a.taken);
  }
}

const char *shared_damage() {
#ifndef RN_EMULATED_ASAN /* there the sanitizer sees the access itself, and must not see this one */
  static char text[200];
  for (const cuda_block &b : now.home) {
    const char *name = is_red(b, now.shared, rest_end + guard) ? nullptr : "memory asked for at the launch";
    for (const array &a : arrays)
      if (!is_red(b, a.offset + a.bytes, a.offset + a.taken)) name = a.name;
    if (!name) continue;
    snprintf(text, sizeof text, "block %lld wrote past the end of the shared %s", (long long)b.number, name);
    return text;
  }
#endif
  return nullptr;
}

} // namespace rn_emulator

using namespace rn_emulator;

void *rn_emulated_shared(rn_emulated_site *site, const char *name, size_t bytes, size_t align) {
  if (site->launch != now.serial) {
    size_t total = bytes;
    for (const array &a : arrays) total += a.bytes;
    if (total > static_limit)
      fault("has %zu bytes of RN_SHARED arrays with %s; a block has %zu", total, name, static_limit);
    if (total + now.shared > rn_emulated_shared_limit)
      fault("has %zu bytes of RN_SHARED arrays beside %u bytes asked for; a block has %u", total, now.shared,
            rn_emulated_shared_limit);
    array a = {name, round_up(high, align < 16 ? 16 : align), bytes, 0};
    a.taken = round_up(bytes, 16) + guard;
    if (a.offset + a.taken > stride) fault("has more RN_SHARED arrays than the emulated device has room for");
    fill(a.offset, a.bytes, poison);
    fill(a.offset + a.bytes, a.taken - a.bytes, red);
    hide(a.offset + a.bytes, a.offset + a.taken);
    high = a.offset + a.taken;
    arrays.push_back(a);
    site->offset = a.offset;
    site->launch = now.serial;
  }
  return self().home->shared + site->offset;
}

char *rn_emulated_shared_rest() {
  return self().home->shared;
}
