/* files_safetensors.c - the safetensors format: 8 bytes with the length of the header, the header (JSON), the data.
 *
 *   {"__metadata__": {"key": "text"}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "files.h"
#include "json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 100 * 1000 * 1000 }; /* the format's own limit */

static const struct {
  const char *name;
  int dtype, item_bytes;
} types[] = {
    {"F32", RMSNORM_DTYPE_F32, 4},      {"F16", RMSNORM_DTYPE_F16, 2},          {"BF16", RMSNORM_DTYPE_BF16, 2},
    {"F64", RMSNORM_DTYPE_F64, 8},      {"F8_E4M3", RMSNORM_DTYPE_FP8_E4M3, 1}, {"F8_E5M2", RMSNORM_DTYPE_FP8_E5M2, 1},
    {"F8_E8M0", RMSNORM_DTYPE_E8M0, 1}, {"I8", RMSNORM_DTYPE_INT8, 1},          {"U8", RMSNORM_DTYPE_NONE, 1},
};
enum { TYPES = sizeof types / sizeof *types };

/* One entry's object. NULL, or what is wrong. */
static const char *read_entry(rn_json *json, rn_entry *e, size_t data_start, size_t data_bytes) {
  bool first = true, dtype = false, shape = false, offsets = false;
  int64_t begin = 0, end = 0;
  if (!rn_json_take(json, '{')) return "is not described by an object";
  while (rn_json_more(json, '}', &first)) {
    bool inner = true;
    char *key = rn_json_string(json);
    if (key == NULL || !rn_json_take(json, ':')) {
      free(key);
      return "is described by broken JSON";
    }
    bool good = true, known = true;
    if (strcmp(key, "dtype") == 0 && !dtype) {
      char *text = rn_json_string(json);
      good = dtype = text != NULL && snprintf(e->type, sizeof e->type, "%s", text) < (int)sizeof e->type;
      free(text);
    } else if (strcmp(key, "shape") == 0 && !shape) {
      good = shape = rn_json_take(json, '[');
      while (good && rn_json_more(json, ']', &inner))
        good = e->rank < RN_RANK_MAX && rn_json_count(json, &e->shape[e->rank++]);
    } else if (strcmp(key, "data_offsets") == 0 && !offsets) {
      good = offsets = rn_json_take(json, '[') && rn_json_count(json, &begin) && rn_json_take(json, ',') &&
                       rn_json_count(json, &end) && rn_json_take(json, ']');
    } else {
      known = false;
    }
    free(key);
    if (!known) return "has a key other than dtype, shape and data_offsets, or one of them twice";
    if (!good || json->wrong != NULL) return "has a dtype, shape or data_offsets of a wrong form";
  }
  if (json->wrong != NULL || !dtype || !shape || !offsets) return "lacks a proper dtype, shape or data_offsets";
  if (begin > end) return "ends before it begins";
  if ((uint64_t)end > data_bytes) return "lies beyond the end of the file: it is truncated, or the header is wrong";
  e->offset = data_start + (size_t)begin;
  e->bytes = (size_t)(end - begin);
  for (int i = 0; i < TYPES; i++)
    if (strcmp(e->type, types[i].name) == 0) e->dtype = types[i].dtype, e->item_bytes = types[i].item_bytes;
  size_t bytes;
  if (e->item_bytes != 0 && (!rn_shape_bytes(e->rank, e->shape, e->item_bytes, &bytes) || bytes != e->bytes))
    return "has a shape and type that do not fill its data_offsets";
  return NULL;
}

bool rn_index_safetensors(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err) {
  uint64_t length = 0;
  index->format = "safetensors";
  if (bytes < 8) {
    fprintf(err, "%s: truncated: %zu bytes do not hold the header of a .safetensors file\n", path, bytes);
    return false;
  }
  for (int i = 0; i < 8; i++) length |= (uint64_t)file[i] << (8 * i);
  if (length > bytes - 8 || length > HEADER_MAX) {
    fprintf(err, "%s: its header claims %" PRIu64 " bytes, %s; truncated, or not a .safetensors file\n", path, length,
            length > HEADER_MAX ? "the format allows 100000000" : "more than the file has");
    return false;
  }
  rn_json json = {(const char *)file + 8, (const char *)file + 8 + length, NULL};
  bool first = true;
  if (!rn_json_take(&json, '{')) {
    fprintf(err, "%s: its header does not begin with {\n", path);
    return false;
  }
  while (rn_json_more(&json, '}', &first)) {
    char *name = rn_json_string(&json);
    if (name == NULL || !rn_json_take(&json, ':')) {
      free(name);
      break;
    }
    if (strcmp(name, "__metadata__") == 0) {
      free(name);
      if (!rn_json_skip(&json, 4)) break;
      continue;
    }
    rn_entry *e = rn_index_add(index);
    if (e == NULL) {
      free(name);
      fprintf(err, "%s: no memory\n", path);
      return false;
    }
    e->name = name;
    const char *wrong = read_entry(&json, e, 8 + (size_t)length, bytes - 8 - (size_t)length);
    if (wrong != NULL) {
      fprintf(err, "%s: tensor ", path);
      rn_print_name(err, name);
      fprintf(err, " %s\n", wrong);
      return false;
    }
  }
  if (json.wrong == NULL && rn_json_peek(&json) != 0) json.wrong = "something behind the closing }";
  if (json.wrong != NULL) {
    fprintf(err, "%s: broken JSON in its header, at byte %td: %s\n", path, json.at - (const char *)file, json.wrong);
    return false;
  }
  return true;
}

bool rn_write_safetensors(FILE *out, const rn_named_tensor *tensors, int count) {
  char *header = NULL;
  size_t length = 0, offset = 0;
  FILE *text = open_memstream(&header, &length);
  if (text == NULL) return false;
  fputc('{', text);
  for (int i = 0; i < count; i++) {
    const rn_tensor *t = tensors[i].tensor;
    const size_t bytes = (size_t)t->count * (size_t)t->item_bytes;
    const char *type = "U8";
    for (int k = 0; k < TYPES; k++)
      if (types[k].dtype == t->dtype) type = types[k].name;
    fputs(i ? "," : "", text);
    rn_json_put(text, tensors[i].name);
    fprintf(text, ":{\"dtype\":\"%s\",\"shape\":[", type);
    for (int d = 0; d < t->rank; d++) fprintf(text, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    fprintf(text, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
    offset += bytes;
  }
  fputc('}', text);
  bool good = fflush(text) == 0;
  while (good && length % 8 != 0) { /* so that the data is aligned */
    fputc(' ', text);
    good = fflush(text) == 0;
  }
  good = fclose(text) == 0 && good;
  unsigned char size[8];
  for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)length >> (8 * i));
  good = good && fwrite(size, 1, 8, out) == 8 && fwrite(header, 1, length, out) == length;
  for (int i = 0; i < count && good; i++) {
    const rn_tensor *t = tensors[i].tensor;
    const size_t bytes = (size_t)t->count * (size_t)t->item_bytes;
    good = fwrite(t->data, 1, bytes, out) == bytes;
  }
  free(header);
  return good;
}
