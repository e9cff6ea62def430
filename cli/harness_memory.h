/* harness_memory.h - one array of a call under test, in guarded memory: pages that may not be touched on both sides, a
 * pattern around and between the rows, and an image of what every byte has to be afterwards. For a call on a device
 * everything between the two pages has a mirror there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_HARNESS_MEMORY_H
#define RN_HARNESS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rn_slot {
  char *map; /* guard page, usable bytes, guard page */
  size_t usable;
  char *mirror; /* the usable bytes on the current device; NULL = not there yet */
  size_t mirror_bytes;
  char *image; /* what [low, high) has to look like again */
  size_t image_bytes;
  char *low, *high;
  char *data; /* element (0, 0, 0) */
  int64_t rows, heads, cols;
  int64_t row_stride, head_stride, col_stride; /* elements */
  size_t size;                                 /* bytes of one element */
} rn_slot;

/* The shape and strides are set by the caller; this finds room. false: no memory. */
bool rn_slot_place(rn_slot *s, int offset, bool at_end);
/* Every byte of the region becomes pattern. Then elements may be written, and rn_slot_keep makes that the image. */
void rn_slot_poison(rn_slot *s, int pattern);
void rn_slot_keep(rn_slot *s);
void rn_slot_restore(rn_slot *s);
/* Elements out to, and in from, a packed array. */
void rn_slot_get(const rn_slot *s, void *packed);
void rn_slot_put(rn_slot *s, const void *packed);
/* Elements become those of the image again, whatever the call wrote there. */
void rn_slot_forget_elements(rn_slot *s);
/* The first byte that is not as the image has it, as an offset from `data` in bytes; false when all are right. */
bool rn_slot_damage(const rn_slot *s, int64_t *offset);
/* The whole mirror gets what is here. false: see rn_device_error. */
bool rn_slot_upload(rn_slot *s);
/* Element (0, 0, 0) in the mirror. */
char *rn_slot_mirrored(const rn_slot *s);
/* [low, high) gets what is in the mirror. *wild: whether a byte of it outside of that was changed, and where, as an
 * offset from `data`. `room` has as many bytes as the slot is usable. */
bool rn_slot_download(const rn_slot *s, char *room, bool *wild, int64_t *offset);
/* The current context has to be that of the mirror. */
void rn_slot_free(rn_slot *s);

#endif /* RN_HARNESS_MEMORY_H */
