/* files_gguf.c - GGUF, versions 2 and 3 (ggml's docs/gguf.md): counts, key-value pairs, tensor descriptions, aligned
 * data. Little-endian only. Dimensions are stored fastest first and turned round here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool rn_gguf_offset_folded(const char *architecture) {
  /* llama.cpp, conversion scripts: the classes that return weight + 1 for their norms. Gemma 3n and 4 do not, their
   * models have no offset. */
  static const char *const folded[] = {"gemma",     "gemma2", "gemma3",   "gemma-embedding",
                                       "qwen3next", "qwen35", "qwen35moe"};
  for (size_t i = 0; i < sizeof folded / sizeof *folded; i++)
    if (strcmp(architecture, folded[i]) == 0) return true;
  return false;
}

/* What is left of the file; reading past its end sets `wrong` and yields zeros. */
typedef struct cursor {
  const unsigned char *at, *end;
  const char *wrong;
} cursor;

static void fail(cursor *c, const char *wrong) {
  if (c->wrong == NULL) c->wrong = wrong;
}

static const unsigned char *take(cursor *c, uint64_t bytes) {
  if (c->wrong != NULL) return NULL;
  if (bytes > (uint64_t)(c->end - c->at)) {
    fail(c, "it is truncated, or a count in its header is wrong");
    return NULL;
  }
  const unsigned char *here = c->at;
  c->at += bytes;
  return here;
}

static uint32_t take_u32(cursor *c) {
  const unsigned char *p = take(c, 4);
  return p == NULL ? 0 : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t take_u64(cursor *c) {
  const uint64_t low = take_u32(c);
  return low | (uint64_t)take_u32(c) << 32;
}

/* A string in place; *length 0 and "" after an error. */
static const char *take_string(cursor *c, uint64_t *length) {
  *length = take_u64(c);
  const char *text = (const char *)take(c, *length);
  if (text == NULL) *length = 0;
  return text == NULL ? "" : text;
}

enum { KV_U32 = 4, KV_F32 = 6, KV_STRING = 8, KV_ARRAY = 9, KV_F64 = 12 };
static const unsigned char kv_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* u8 ... bool, string, array, ... */

static void skip_value(cursor *c, uint32_t type) {
  uint64_t length;
  if (type == KV_STRING) {
    take_string(c, &length);
  } else if (type < sizeof kv_bytes && kv_bytes[type] != 0) {
    take(c, kv_bytes[type]);
  } else if (type == KV_ARRAY) {
    const uint32_t item = take_u32(c);
    uint64_t count = take_u64(c);
    if (item == KV_STRING) {
      for (; count > 0 && c->wrong == NULL; count--) take_string(c, &length);
    } else if (item < sizeof kv_bytes && kv_bytes[item] != 0) {
      take(c, count > UINT64_MAX / 8 ? UINT64_MAX : count * kv_bytes[item]);
    } else {
      fail(c, "a list in its metadata has a type that is not known");
    }
  } else {
    fail(c, "a value in its metadata has a type that is not known");
  }
}

static bool key_is(const char *key, uint64_t length, const char *wanted) {
  return length == strlen(wanted) && memcmp(key, wanted, (size_t)length) == 0;
}

static bool key_ends(const char *key, uint64_t length, const char *wanted) {
  const uint64_t n = strlen(wanted);
  return length >= n && memcmp(key + (length - n), wanted, (size_t)n) == 0;
}

/* All pairs; keeps the architecture, the eps and the alignment. */
static uint64_t read_metadata(cursor *c, uint64_t count, rn_model_facts *facts) {
  uint64_t alignment = 32;
  for (; count > 0 && c->wrong == NULL; count--) {
    uint64_t length, n;
    const char *key = take_string(c, &length);
    const uint32_t type = take_u32(c);
    if (key_is(key, length, "general.architecture") && type == KV_STRING) {
      const char *text = take_string(c, &n);
      snprintf(facts->architecture, sizeof facts->architecture, "%.*s",
               (int)(n < sizeof facts->architecture ? n : sizeof facts->architecture - 1), text);
    } else if (key_is(key, length, "general.alignment") && type == KV_U32) {
      alignment = take_u32(c);
      if (alignment == 0 || (alignment & (alignment - 1)) != 0) fail(c, "its alignment is not a power of two");
    } else if (key_ends(key, length, ".attention.layer_norm_rms_epsilon") && type == KV_F32) {
      const uint32_t bits = take_u32(c);
      float eps;
      memcpy(&eps, &bits, sizeof eps);
      facts->eps = eps >= 0 && eps <= 1 ? eps : -1;
    } else {
      skip_value(c, type);
    }
  }
  return alignment;
}

/* Type number -> name, and what of it is read here. The quantised ones are known by name only: a norm's weight and
 * input are never among them in practice. */
static void set_type(rn_entry *e, uint32_t type) {
  static const char *const names[] = {
      "F32",    "F16",   "Q4_0",  "Q4_1",   NULL,    NULL,    "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
      "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
      "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
      "BF16",   NULL,    NULL,    NULL,     "TQ1_0", "TQ2_0", NULL,      NULL,     NULL,      "MXFP4",
  };
  const char *name = type < sizeof names / sizeof *names ? names[type] : NULL;
  if (name != NULL)
    snprintf(e->type, sizeof e->type, "%s", name);
  else
    snprintf(e->type, sizeof e->type, "number %" PRIu32, type);
  e->dtype = name == NULL                ? RMSNORM_DTYPE_NONE
             : strcmp(name, "F32") == 0  ? RMSNORM_DTYPE_F32
             : strcmp(name, "F16") == 0  ? RMSNORM_DTYPE_F16
             : strcmp(name, "BF16") == 0 ? RMSNORM_DTYPE_BF16
             : strcmp(name, "F64") == 0  ? RMSNORM_DTYPE_F64
                                         : RMSNORM_DTYPE_NONE;
  e->item_bytes = (int)rmsnorm_dtype_bytes(e->dtype);
}

/* One tensor description; the offset is still counted from the start of the data. */
static void read_entry(cursor *c, rn_entry *e) {
  uint64_t length;
  const char *name = take_string(c, &length);
  const uint32_t rank = take_u32(c);
  if (rank > 4) fail(c, "a tensor has more than 4 dimensions");
  if (c->wrong != NULL) return;
  if (memchr(name, 0, (size_t)length) != NULL) fail(c, "the name of a tensor contains a zero byte");
  e->name = strndup(name, (size_t)length);
  if (e->name == NULL) fail(c, "there is no memory for its names");
  e->rank = (int)rank;
  for (uint32_t d = 0; d < rank; d++) {
    const uint64_t size = take_u64(c);
    if (size > INT64_MAX) fail(c, "a dimension of a tensor is too large");
    e->shape[rank - 1 - d] = (int64_t)size;
  }
  set_type(e, take_u32(c));
  e->offset = (size_t)take_u64(c);
}

bool rn_index_gguf(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err) {
  cursor c = {file + 4, file + bytes, NULL};
  index->format = "gguf";
  const uint32_t version = take_u32(&c);
  if (c.wrong == NULL && version != 2 && version != 3)
    fail(&c, version == 1                         ? "it has version 1; expected 2 or 3: convert it again"
             : version != 0 && version << 16 == 0 ? "it is big-endian; expected a little-endian one: convert it again"
                                                  : "it has an unknown version; expected 2 or 3");
  const uint64_t tensors = take_u64(&c), pairs = take_u64(&c);
  const uint64_t alignment = read_metadata(&c, pairs, &index->facts);
  for (uint64_t i = 0; i < tensors && c.wrong == NULL; i++) {
    rn_entry *e = rn_index_add(index);
    if (e == NULL)
      fail(&c, "there is no memory for its index");
    else
      read_entry(&c, e);
    if (c.wrong != NULL && e != NULL && e->name == NULL) index->count--; /* no half-made entry stays */
  }
  if (c.wrong != NULL) {
    fprintf(err, "%s: a GGUF file that can not be read: %s\n", path, c.wrong);
    return false;
  }
  const size_t used = (size_t)(c.at - file);
  const size_t start = used + (size_t)((alignment - used % alignment) % alignment);
  const size_t room = start < bytes ? bytes - start : 0;
  for (size_t i = 0; i < index->count; i++) {
    rn_entry *e = &index->entries[i];
    const char *wrong = NULL;
    if (e->item_bytes != 0 && !rn_shape_bytes(e->rank, e->shape, e->item_bytes, &e->bytes))
      wrong = "is larger than any memory";
    else if (e->offset % alignment != 0)
      wrong = "is not aligned as the file says";
    else if (e->offset > room || e->bytes > room - e->offset)
      wrong = "lies beyond the end of the file: it is truncated, or the header is wrong";
    if (wrong != NULL) {
      fprintf(err, "%s: tensor ", path);
      rn_print_name(err, e->name);
      fprintf(err, " %s\n", wrong);
      return false;
    }
    e->offset += start;
  }
  return true;
}
