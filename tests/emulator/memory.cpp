/* memory.cpp - the memory of the emulated device: host memory far away from everything else, with guards.
 *
 * Addresses are handed out once and never again, so a pointer to freed memory stays wrong for ever.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <sys/mman.h>

namespace {

constexpr size_t page = 4096;
constexpr size_t alignment = 256;        /* of a driver's allocations; never more, so that nobody gets used to more */
constexpr size_t poison_limit = 1 << 26; /* larger allocations stay untouched pages */
constexpr unsigned char poison = 0xff;   /* NaN in every type */
constexpr unsigned char red = 0xa5;

struct allocation {
  char *start;
  size_t bytes;
  char *first, *end; /* its pages */
  uint32_t owner;
};

char *arena, *arena_end, *fresh;
std::vector<allocation> live; /* by address: new ones come last */
size_t used;
size_t latest; /* where the last search ended */
bool shut, is_open;
uint32_t current;

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

bool reserve() {
  if (arena) return true;
  for (size_t bytes = (size_t)1 << 44; bytes >= (size_t)1 << 34; bytes >>= 1) {
    void *at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) continue;
    arena = fresh = (char *)at;
    arena_end = arena + bytes;
    return true;
  }
  return false;
}

const allocation *find(const void *at) {
  const char *p = (const char *)at;
  if (p < arena || p >= fresh) return nullptr;
  if (latest < live.size() && p >= live[latest].start && p < live[latest].start + live[latest].bytes)
    return &live[latest];
  auto after =
      std::upper_bound(live.begin(), live.end(), p, [](const char *q, const allocation &a) { return q < a.start; });
  if (after == live.begin()) return nullptr;
  const allocation &a = *(after - 1);
  if (p >= a.start + a.bytes) return nullptr;
  latest = (size_t)(&a - live.data());
  return &a;
}

void permit(const allocation &a, int access) {
  mprotect(a.first, (size_t)(a.end - a.first), access);
}

#ifndef RN_EMULATED_ASAN
/* At most a page and a bit. */
bool all_red(const char *from, const char *to) {
  static char pattern[2 * page];
  if (!pattern[0]) memset(pattern, red, sizeof pattern);
  return memcmp(from, pattern, (size_t)(to - from)) == 0;
}
#endif

} // namespace

size_t rn_emulated_memory_total() {
  const char *mib = getenv("RMSNORM_EMULATED_MEMORY_MIB");
  return (mib ? strtoull(mib, nullptr, 10) : 4096) << 20;
}
size_t rn_emulated_memory_used() {
  return used;
}

void *rn_emulated_alloc(size_t bytes) {
  if (!bytes || bytes > rn_emulated_memory_total() - used || !reserve()) return nullptr;
  /* The end, rounded to the alignment, is the end of a page; at least one byte of red before the start. */
  const size_t body = round_up(bytes, alignment), pages = round_up(body + 1, page);
  if (pages + page > (size_t)(arena_end - fresh)) return nullptr;
  const allocation a = {fresh + pages - body, bytes, fresh, fresh + pages, current};
  if (mprotect(a.first, pages, PROT_READ | PROT_WRITE)) return nullptr;
  memset(a.first, red, (size_t)(a.start - a.first));
  memset(a.start + bytes, red, (size_t)(a.end - a.start) - bytes);
  if (bytes <= poison_limit) memset(a.start, poison, bytes);
#ifdef RN_EMULATED_ASAN
  __asan_poison_memory_region(a.first, (size_t)(a.start - a.first));
  __asan_poison_memory_region(a.start + bytes, (size_t)(a.end - a.start) - bytes);
#endif
  live.push_back(a);
  used += bytes;
  fresh += pages + page;
  if (shut && !is_open) permit(a, PROT_NONE);
  return a.start;
}

bool rn_emulated_free(void *at) {
  const allocation *a = find(at);
  if (!a || a->start != at) return false;
#ifdef RN_EMULATED_ASAN
  __asan_unpoison_memory_region(a->first, (size_t)(a->end - a->first));
#endif
  permit(*a, PROT_NONE);
  madvise(a->first, (size_t)(a->end - a->first), MADV_DONTNEED);
  used -= a->bytes;
  live.erase(live.begin() + (a - live.data()));
  return true;
}

void rn_emulated_own(uint32_t owner) {
  current = owner;
}

void rn_emulated_free_all_of(uint32_t owner) {
  for (size_t i = live.size(); i-- > 0;)
    if (live[i].owner == owner) rn_emulated_free(live[i].start);
}

static bool within(const allocation *a, const void *at, size_t bytes) {
  return a && bytes <= (size_t)(a->start + a->bytes - (const char *)at);
}

bool rn_emulated_holds(const void *at, size_t bytes) {
  const allocation *a = find(at);
  return within(a, at, bytes) && a->owner == current;
}

bool rn_emulated_copy(void *to, const void *from, size_t bytes, bool to_device, bool from_device) {
  const allocation *there = to_device ? find(to) : nullptr, *here = from_device ? find(from) : nullptr;
  if ((to_device && !within(there, to, bytes)) || (from_device && !within(here, from, bytes))) return false;
  const bool was_shut = rn_emulated_is_shut();
  if (was_shut && there) permit(*there, PROT_READ | PROT_WRITE);
  if (was_shut && here) permit(*here, PROT_READ | PROT_WRITE);
  memmove(to, from, bytes);
  if (was_shut && there) permit(*there, PROT_NONE);
  if (was_shut && here) permit(*here, PROT_NONE);
  return true;
}

bool rn_emulated_fill(void *at, int byte, size_t bytes) {
  const allocation *a = find(at);
  if (!within(a, at, bytes)) return false;
  const bool was_shut = rn_emulated_is_shut();
  if (was_shut) permit(*a, PROT_READ | PROT_WRITE);
  memset(at, byte, bytes);
  if (was_shut) permit(*a, PROT_NONE);
  return true;
}

const char *rn_emulated_damage() {
#ifndef RN_EMULATED_ASAN /* there the sanitizer sees the access itself, and must not see this one */
  static char text[160];
  for (const allocation &a : live) {
    if (a.owner != current) continue;
    const bool before = !all_red(a.first, a.start), after = !all_red(a.start + a.bytes, a.end);
    if (!before && !after) continue;
    snprintf(text, sizeof text, "memory was written %s the allocation of %zu bytes at %p", before ? "before" : "after",
             a.bytes, (void *)a.start);
    /* Said once is enough. */
    memset(a.first, red, (size_t)(a.start - a.first));
    memset(a.start + a.bytes, red, (size_t)(a.end - a.start) - a.bytes);
    return text;
  }
#endif
  return nullptr;
}

void rn_emulated_open() {
  if (shut && !is_open)
    for (const allocation &a : live)
      if (a.owner == current) permit(a, PROT_READ | PROT_WRITE);
  is_open = true;
}
void rn_emulated_shut() {
  shut = true;
  is_open = false;
  if (arena && fresh > arena) mprotect(arena, (size_t)(fresh - arena), PROT_NONE);
}
bool rn_emulated_is_shut() {
  return shut && !is_open;
}
