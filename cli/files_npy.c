/* files_npy.c - numpy's .npy format, versions 1 to 3 (numpy.lib.format): magic, version, length, a Python dictionary
 * {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, padding, data.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include <stdlib.h>
#include <string.h>

/* The dictionary, as text with an end. */
typedef struct cursor {
  const char *at, *end;
} cursor;

static char peek(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
  return c->at < c->end ? *c->at : 0;
}

static bool take(cursor *c, char wanted) {
  if (peek(c) != wanted) return false;
  c->at++;
  return true;
}

/* A quoted string of at most room - 1 characters without escapes; numpy's own headers need no more. */
static bool take_string(cursor *c, char *text, size_t room) {
  const char quote = peek(c);
  size_t n = 0;
  if (quote != '\'' && quote != '"') return false;
  for (c->at++; c->at < c->end && *c->at != quote; c->at++) {
    if (n + 1 >= room || *c->at == '\\' || *c->at == 0) return false;
    text[n++] = *c->at;
  }
  text[n] = 0;
  return c->at++ < c->end;
}

static bool take_word(cursor *c, const char *word) {
  const size_t n = strlen(word);
  peek(c);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
  c->at += n;
  return true;
}

/* (3, 4), (3,) or (): numpy 1 under Python 2 wrote (3L, 4L). */
static bool take_shape(cursor *c, rn_entry *e) {
  if (!take(c, '(')) return false;
  while (!take(c, ')')) {
    int64_t value = 0;
    const char first = peek(c);
    if (first < '0' || first > '9' || e->rank == RN_RANK_MAX) return false;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
      if (value > (INT64_MAX - 9) / 10) return false;
      value = value * 10 + (*c->at - '0');
    }
    if (c->at < c->end && *c->at == 'L') c->at++;
    e->shape[e->rank++] = value;
    if (!take(c, ',') && peek(c) != ')') return false;
  }
  return true;
}

/* numpy's type string. An unknown one leaves item_bytes 0, to be refused when it is loaded. */
static void set_type(rn_entry *e) {
  static const struct {
    const char *code;
    int dtype, item_bytes;
  } known[] = {
      {"f4", RMSNORM_DTYPE_F32, 4},
      {"f2", RMSNORM_DTYPE_F16, 2},
      {"f8", RMSNORM_DTYPE_F64, 8},
      {"i1", RMSNORM_DTYPE_INT8, 1},
      /* How arrays of ml_dtypes come out of numpy.save: two or one raw bytes; e5m2 even as an f1 that nobody else
       * knows. Unsigned integers are the other habit of storing bits. */
      {"V2", RMSNORM_DTYPE_NONE, 2},
      {"V1", RMSNORM_DTYPE_NONE, 1},
      {"f1", RMSNORM_DTYPE_NONE, 1},
      {"u2", RMSNORM_DTYPE_NONE, 2},
      {"u1", RMSNORM_DTYPE_NONE, 1},
  };
  const bool marked = strchr("<>|=", e->type[0]) != NULL && e->type[0] != 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (marked && strcmp(e->type + 1, known[i].code) == 0) {
      e->dtype = known[i].dtype, e->item_bytes = known[i].item_bytes;
      e->swapped = e->type[0] == '>' && e->item_bytes > 1;
      return;
    }
  e->dtype = rn_dtype_parse(e->type);
  e->item_bytes = (int)rmsnorm_dtype_bytes(e->dtype);
}

/* NULL, or what is wrong with the dictionary. */
static const char *read_header(cursor *c, rn_entry *e) {
  bool descr = false, order = false, shape = false;
  if (!take(c, '{')) return "its header is not a dictionary";
  while (!take(c, '}')) {
    char key[16];
    if (!take_string(c, key, sizeof key) || !take(c, ':')) return "its header has a key that does not belong there";
    if (strcmp(key, "descr") == 0 && !descr) {
      if (peek(c) == '[') return "it holds a structured array (fields); expected one plain type";
      descr = take_string(c, e->type, sizeof e->type);
      if (!descr) return "its type is not a short string";
    } else if (strcmp(key, "fortran_order") == 0 && !order) {
      e->fortran = take_word(c, "True");
      order = e->fortran || take_word(c, "False");
      if (!order) return "its fortran_order is neither True nor False";
    } else if (strcmp(key, "shape") == 0 && !shape) {
      shape = take_shape(c, e);
      if (!shape) return "its shape is not a list of at most 8 sizes";
    } else {
      return "its header has a key that does not belong there, or twice";
    }
    if (!take(c, ',') && peek(c) != '}') return "its header is not a dictionary";
  }
  if (!descr || !order || !shape) return "its header lacks descr, fortran_order or shape";
  return NULL;
}

bool rn_index_npy(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err) {
  index->format = "npy";
  const int major = bytes >= 8 ? file[6] : 0;
  const size_t start = major == 1 ? 10 : 12;
  if (bytes < start) {
    fprintf(err, "%s: truncated: %zu bytes do not hold the header of a .npy file\n", path, bytes);
    return false;
  }
  if (major < 1 || major > 3) {
    fprintf(err, "%s: a .npy file of version %d; expected 1, 2 or 3\n", path, major);
    return false;
  }
  size_t length = (size_t)file[8] | (size_t)file[9] << 8;
  if (major > 1) length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
  if (length > bytes - start) {
    fprintf(err, "%s: truncated: its header needs %zu bytes, the file has %zu\n", path, length + start, bytes);
    return false;
  }
  rn_entry *e = rn_index_add(index);
  if (e == NULL || (e->name = strdup("")) == NULL) {
    fprintf(err, "%s: no memory\n", path);
    return false;
  }
  cursor c = {(const char *)file + start, (const char *)file + start + length};
  const char *wrong = read_header(&c, e);
  if (wrong != NULL) {
    fprintf(err, "%s: %s\n", path, wrong);
    return false;
  }
  set_type(e);
  e->offset = start + length;
  if (e->item_bytes == 0) return true; /* refused by name when it is loaded */
  if (!rn_shape_bytes(e->rank, e->shape, e->item_bytes, &e->bytes)) {
    fprintf(err, "%s: its shape is larger than any memory\n", path);
    return false;
  }
  if (e->bytes > bytes - e->offset) {
    fprintf(err, "%s: truncated: its shape and type need %zu bytes of data, the file has %zu\n", path, e->bytes,
            bytes - e->offset);
    return false;
  }
  return true;
}

bool rn_write_npy(FILE *out, const rn_tensor *tensor) {
  static const char *const types[] = {
      [RMSNORM_DTYPE_F32] = "<f4", [RMSNORM_DTYPE_F16] = "<f2",  [RMSNORM_DTYPE_BF16] = "|V2",
      [RMSNORM_DTYPE_F64] = "<f8", [RMSNORM_DTYPE_INT8] = "|i1",
  };
  const char *type = tensor->dtype <= RMSNORM_DTYPE_INT8 ? types[tensor->dtype] : NULL;
  char header[512];
  int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (", type ? type : "|V1");
  for (int i = 0; i < tensor->rank; i++)
    n += snprintf(header + n, sizeof header - (size_t)n, "%lld%s", (long long)tensor->shape[i],
                  i + 1 < tensor->rank ? ", "
                  : tensor->rank == 1  ? ","
                                       : "");
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  while ((n + 11) % 64 != 0) header[n++] = ' '; /* the data begins at a multiple of 64 */
  header[n++] = '\n';
  const unsigned char magic[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
  const size_t bytes = (size_t)tensor->count * (size_t)tensor->item_bytes;
  return fwrite(magic, 1, sizeof magic, out) == sizeof magic && fwrite(header, 1, (size_t)n, out) == (size_t)n &&
         fwrite(tensor->data, 1, bytes, out) == bytes;
}
