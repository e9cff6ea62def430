/* harness_memory.c - guarded arrays for the calls under test.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "harness_memory.h"
#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD = 320 }; /* bytes of pattern on either side: more than the widest vector, and a tail loop's worth */

static size_t page_bytes(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

static bool reserve(rn_slot *s, size_t bytes) {
  size_t page = page_bytes();
  if (bytes > s->usable) {
    if (s->map) munmap(s->map, s->usable + 2 * page);
    size_t usable = 4 * page;
    while (usable < bytes) usable *= 2;
    s->usable = 0;
    s->map = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->map == MAP_FAILED) s->map = NULL;
    if (!s->map || mprotect(s->map + page, usable, PROT_READ | PROT_WRITE)) return false;
    s->usable = usable;
  }
  if (bytes > s->image_bytes) {
    char *image = realloc(s->image, bytes);
    if (!image) return false;
    s->image = image, s->image_bytes = bytes;
  }
  return true;
}

static int64_t span(int64_t n, int64_t stride, int64_t *lowest) {
  int64_t reach = n > 0 ? (n - 1) * stride : 0;
  if (reach < 0) *lowest += reach;
  return reach < 0 ? -reach : reach;
}

bool rn_slot_place(rn_slot *s, int offset, bool at_end) {
  int64_t lowest = 0, elements = 1;
  elements += span(s->rows, s->row_stride, &lowest) + span(s->heads, s->head_stride, &lowest) +
              span(s->cols, s->col_stride, &lowest);
  if (s->rows == 0 || s->heads == 0 || s->cols == 0) elements = 0, lowest = 0;
  size_t bytes = (size_t)elements * s->size, moved = (size_t)offset * s->size;
  if (!reserve(s, bytes + moved + 2 * GUARD)) return false;
  char *first = s->map + page_bytes(), *last = first + s->usable, *start;
  if (at_end) {
    start = last - bytes;
    s->low = start - GUARD, s->high = last;
  } else {
    start = first + GUARD + moved;
    s->low = start - GUARD, s->high = start + bytes + GUARD;
  }
  s->data = start - lowest * (int64_t)s->size;
  return true;
}

void rn_slot_poison(rn_slot *s, int pattern) {
  memset(s->low, pattern, (size_t)(s->high - s->low));
}
void rn_slot_keep(rn_slot *s) {
  memcpy(s->image, s->low, (size_t)(s->high - s->low));
}
void rn_slot_restore(rn_slot *s) {
  memcpy(s->low, s->image, (size_t)(s->high - s->low));
}

typedef enum direction { OUT, IN, FROM_IMAGE } direction;

static void move(const rn_slot *s, char *packed, direction way) {
  int64_t run = s->col_stride == 1 ? s->cols : 1; /* elements that lie next to each other */
  size_t bytes = (size_t)run * s->size;
  for (int64_t r = 0; r < s->rows; r++)
    for (int64_t h = 0; h < s->heads; h++)
      for (int64_t c = 0; c < s->cols; c += run) {
        char *at = s->data + (r * s->row_stride + h * s->head_stride + c * s->col_stride) * (int64_t)s->size;
        if (way == OUT)
          memcpy(packed, at, bytes);
        else
          memcpy(at, way == IN ? packed : s->image + (at - s->low), bytes);
        if (packed) packed += bytes;
      }
}

void rn_slot_get(const rn_slot *s, void *packed) {
  move(s, packed, OUT);
}
void rn_slot_put(rn_slot *s, const void *packed) {
  move(s, (char *)(uintptr_t)packed, IN);
}
void rn_slot_forget_elements(rn_slot *s) {
  move(s, NULL, FROM_IMAGE);
}

bool rn_slot_damage(const rn_slot *s, int64_t *offset) {
  size_t bytes = (size_t)(s->high - s->low);
  if (!memcmp(s->low, s->image, bytes)) return false;
  for (size_t i = 0; i < bytes; i++)
    if (s->low[i] != s->image[i]) {
      *offset = s->low + i - s->data;
      break;
    }
  return true;
}

/* ---- the mirror ---- */

bool rn_slot_upload(rn_slot *s) {
  if (s->mirror_bytes != s->usable) {
    rn_device_free(s->mirror);
    s->mirror_bytes = 0;
    s->mirror = rn_device_alloc(s->usable);
    if (!s->mirror) return false;
    s->mirror_bytes = s->usable;
  }
  return rn_device_upload(s->mirror, s->map + page_bytes(), s->usable);
}

char *rn_slot_mirrored(const rn_slot *s) {
  return s->mirror + (s->data - (s->map + page_bytes()));
}

/* Where two stretches of memory differ first. */
static bool differ(const char *a, const char *b, size_t bytes, size_t *at) {
  if (!memcmp(a, b, bytes)) return false;
  for (*at = 0; a[*at] == b[*at];) ++*at;
  return true;
}

bool rn_slot_download(const rn_slot *s, char *room, bool *wild, int64_t *offset) {
  const char *first = s->map + page_bytes();
  size_t low = (size_t)(s->low - first), high = (size_t)(s->high - first), at;
  if (!rn_device_download(room, s->mirror, s->usable)) return false;
  *wild = differ(room, first, low, &at);
  if (!*wild && differ(room + high, s->high, s->usable - high, &at)) *wild = true, at += high;
  if (*wild) *offset = first + at - s->data;
  memcpy(s->low, room + low, high - low);
  return true;
}

void rn_slot_free(rn_slot *s) {
  rn_device_free(s->mirror);
  if (s->map) munmap(s->map, s->usable + 2 * page_bytes());
  free(s->image);
  memset(s, 0, sizeof *s);
}
