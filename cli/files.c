/* files.c - find a tensor in an indexed file and load it; write files without ever leaving half of one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian, and so is this program"
#endif

enum { LIST_MAX = 40 }; /* names shown when one is not found */

void rn_print_name(FILE *out, const char *text) {
  for (; *text; text++) fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
}

int rn_dtype_parse(const char *name) {
  static const struct {
    const char *name;
    int dtype;
  } known[] = {
      {"f32", RMSNORM_DTYPE_F32},
      {"float32", RMSNORM_DTYPE_F32},
      {"f16", RMSNORM_DTYPE_F16},
      {"float16", RMSNORM_DTYPE_F16},
      {"bf16", RMSNORM_DTYPE_BF16},
      {"bfloat16", RMSNORM_DTYPE_BF16},
      {"f64", RMSNORM_DTYPE_F64},
      {"float64", RMSNORM_DTYPE_F64},
      {"e4m3", RMSNORM_DTYPE_FP8_E4M3},
      {"float8_e4m3fn", RMSNORM_DTYPE_FP8_E4M3},
      {"fp8", RMSNORM_DTYPE_FP8_E4M3},
      {"fp8_e4m3", RMSNORM_DTYPE_FP8_E4M3},
      {"e5m2", RMSNORM_DTYPE_FP8_E5M2},
      {"float8_e5m2", RMSNORM_DTYPE_FP8_E5M2},
      {"fp8_e5m2", RMSNORM_DTYPE_FP8_E5M2},
      {"int8", RMSNORM_DTYPE_INT8},
      {"i8", RMSNORM_DTYPE_INT8},
      {"e8m0", RMSNORM_DTYPE_E8M0},
      {"float8_e8m0fnu", RMSNORM_DTYPE_E8M0},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i].name) == 0) return known[i].dtype;
  return RMSNORM_DTYPE_NONE;
}

bool rn_shape_bytes(int rank, const int64_t *shape, int item_bytes, size_t *bytes) {
  /* A zero anywhere makes the product zero; it must not hide an absurd size beside it. */
  size_t total = (size_t)item_bytes, product = total;
  for (int i = 0; i < rank; i++) {
    if (shape[i] < 0) return false;
    const size_t size = shape[i] == 0 ? 1 : (size_t)shape[i];
    if (total > (size_t)INT64_MAX / size) return false;
    total *= size;
    product *= (size_t)shape[i];
  }
  *bytes = product;
  return true;
}

bool rn_tensor_new(rn_tensor *tensor, int dtype, int rank, const int64_t *shape) {
  size_t bytes;
  memset(tensor, 0, sizeof *tensor);
  tensor->dtype = dtype;
  tensor->item_bytes = (int)rmsnorm_dtype_bytes(dtype);
  tensor->rank = rank;
  tensor->count = 1;
  if (!rn_shape_bytes(rank, shape, tensor->item_bytes, &bytes)) return false;
  for (int i = 0; i < rank; i++) tensor->shape[i] = shape[i], tensor->count *= shape[i];
  if (posix_memalign(&tensor->data, 64, bytes ? bytes : 1) != 0) {
    tensor->data = NULL;
    return false;
  }
  memset(tensor->data, 0, bytes);
  return true;
}

void rn_tensor_free(rn_tensor *tensor) {
  free(tensor->data);
  memset(tensor, 0, sizeof *tensor);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Index. */

rn_entry *rn_index_add(rn_index *index) {
  if (index->count == index->room) {
    const size_t room = index->room ? index->room * 2 : 16;
    rn_entry *entries = realloc(index->entries, room * sizeof *entries);
    if (entries == NULL) return NULL;
    index->entries = entries, index->room = room;
  }
  rn_entry *entry = &index->entries[index->count++];
  memset(entry, 0, sizeof *entry);
  return entry;
}

void rn_index_free(rn_index *index) {
  for (size_t i = 0; i < index->count; i++) free(index->entries[i].name);
  free(index->entries);
  memset(index, 0, sizeof *index);
}

bool rn_index_read(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err) {
  memset(index, 0, sizeof *index);
  index->facts.eps = -1;
  if (bytes >= 6 && memcmp(file, "\x93NUMPY", 6) == 0) return rn_index_npy(index, path, file, bytes, err);
  if (bytes >= 4 && memcmp(file, "GGUF", 4) == 0) return rn_index_gguf(index, path, file, bytes, err);
  if (bytes >= 9 && file[8] == '{') return rn_index_safetensors(index, path, file, bytes, err);
  if (bytes >= 4 && memcmp(file, "PK\3\4", 4) == 0)
    fprintf(err,
            "%s: a zip archive (.npz or .pt), which this program does not read. Save the one array with numpy.save, or "
            "the tensors as .safetensors\n",
            path);
  else
    fprintf(err, "%s: expected a .npy, .safetensors or GGUF file, found %s%zu bytes that begin like none of them\n",
            path, bytes < 9 ? "only " : "", bytes);
  return false;
}

static void print_shape(FILE *out, int rank, const int64_t *shape) {
  fputc('[', out);
  for (int i = 0; i < rank; i++) fprintf(out, "%s%lld", i ? ", " : "", (long long)shape[i]);
  fputc(']', out);
}

/* What there is, the norms first: they are what one looks for here. */
static void list_entries(const rn_index *index, FILE *err) {
  size_t shown = 0;
  for (int pass = 0; pass < 2; pass++)
    for (size_t i = 0; i < index->count && shown < LIST_MAX; i++) {
      const rn_entry *e = &index->entries[i];
      if ((strstr(e->name, "norm") != NULL) == (pass == 1)) continue;
      fprintf(err, "  ");
      rn_print_name(err, e->name);
      fprintf(err, "  %s ", e->type);
      print_shape(err, e->rank, e->shape);
      fputc('\n', err);
      shown++;
    }
  if (index->count > shown) fprintf(err, "  ... and %zu more\n", index->count - shown);
}

static const rn_entry *find(const rn_index *index, const char *path, const char *name, FILE *err) {
  const rn_entry *found = NULL;
  if (name == NULL || *name == 0) {
    if (index->count == 1) return &index->entries[0];
    fprintf(err, "%s: holds %zu tensors; say which as %s:NAME%s\n", path, index->count, path,
            index->count ? ". There are:" : "");
    list_entries(index, err);
    return NULL;
  }
  for (size_t i = 0; i < index->count; i++) {
    if (strcmp(index->entries[i].name, name) != 0) continue;
    if (found != NULL) {
      fprintf(err, "%s: holds two tensors called ", path);
      rn_print_name(err, name);
      fprintf(err, "; the file is damaged\n");
      return NULL;
    }
    found = &index->entries[i];
  }
  if (found == NULL) {
    fprintf(err, "%s: holds no tensor called ", path);
    rn_print_name(err, name);
    fprintf(err, "%s\n", index->count ? ". There are:" : ": it is empty");
    list_entries(index, err);
  }
  return found;
}

/* Element (i0, ..., ik) of a Fortran file lies where the reversed index would: walk the row-major target. */
static void copy_fortran(unsigned char *to, const unsigned char *from, const rn_entry *e, int64_t count) {
  int64_t at[RN_RANK_MAX] = {0}, stride[RN_RANK_MAX], offset = 0;
  for (int d = 0; d < e->rank; d++) stride[d] = d ? stride[d - 1] * e->shape[d - 1] : 1;
  for (int64_t i = 0; i < count; i++) {
    memcpy(to + (size_t)i * (size_t)e->item_bytes, from + (size_t)offset * (size_t)e->item_bytes,
           (size_t)e->item_bytes);
    for (int d = e->rank - 1; d >= 0; d--) {
      offset += stride[d];
      if (++at[d] < e->shape[d]) break;
      offset -= stride[d] * e->shape[d];
      at[d] = 0;
    }
  }
}

static void swap_bytes(unsigned char *data, int64_t count, int item_bytes) {
  for (int64_t i = 0; i < count; i++, data += item_bytes)
    for (int a = 0, b = item_bytes - 1; a < b; a++, b--) {
      const unsigned char held = data[a];
      data[a] = data[b], data[b] = held;
    }
}

bool rn_index_load(const rn_index *index, const char *path, const unsigned char *file, const char *name, int dtype,
                   rn_tensor *tensor, FILE *err) {
  memset(tensor, 0, sizeof *tensor);
  const rn_entry *e = find(index, path, name, err);
  if (e == NULL) return false;
  if (e->item_bytes == 0) {
    fprintf(err, "%s: ", path);
    rn_print_name(err, e->name);
    fprintf(err, "%sis of type ", *e->name ? " " : "the array ");
    rn_print_name(err, e->type);
    fprintf(err, ", which is not read here%s\n",
            strcmp(index->format, "gguf") == 0 ? ": expected F32, F16 or BF16 (a norm's weight is F32 in most files)"
                                               : ": expected a float type, 8-bit codes, or V2/V1 with --dtype");
    return false;
  }
  void *data = NULL;
  if (posix_memalign(&data, 64, e->bytes ? e->bytes : 1) != 0) {
    fprintf(err, "%s: no memory for %zu bytes\n", path, e->bytes);
    return false;
  }
  tensor->dtype = e->dtype;
  if (e->dtype == RMSNORM_DTYPE_NONE && (int)rmsnorm_dtype_bytes(dtype) == e->item_bytes)
    tensor->dtype = dtype, tensor->assumed = true;
  tensor->item_bytes = e->item_bytes;
  tensor->rank = e->rank;
  memcpy(tensor->shape, e->shape, sizeof tensor->shape);
  tensor->count = (int64_t)(e->bytes / (size_t)e->item_bytes);
  tensor->data = data;
  if (e->fortran)
    copy_fortran(data, file + e->offset, e, tensor->count);
  else
    memcpy(data, file + e->offset, e->bytes);
  if (e->swapped) swap_bytes(data, tensor->count, e->item_bytes);
  return true;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Reading files. */

const char *rn_spec_split(const char *spec, size_t *path_length) {
  /* A name may contain colons and so may a path; the ending in between settles it. */
  static const char *const ends[] = {".safetensors:", ".gguf:", ".npy:"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    const char *found = strstr(spec, ends[i]);
    if (found == NULL) continue;
    *path_length = (size_t)(found - spec) + strlen(ends[i]) - 1;
    return spec + *path_length + 1;
  }
  *path_length = strlen(spec);
  return NULL;
}

/* Map the whole file. NULL: message written. Unmap with munmap(file, *bytes). */
static unsigned char *map_file(const char *path, size_t *bytes, FILE *err) {
  struct stat info;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &info) != 0) {
    fprintf(err, "%s: can not be opened: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
  }
  if (!S_ISREG(info.st_mode) || info.st_size <= 0) {
    fprintf(err, "%s: expected a file, found %s\n", path,
            S_ISDIR(info.st_mode)   ? "a directory"
            : S_ISREG(info.st_mode) ? "an empty one"
                                    : "something that is not one (a pipe or device)");
    close(fd);
    return NULL;
  }
  *bytes = (size_t)info.st_size;
  void *file = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int reason = errno;
  close(fd);
  if (file == MAP_FAILED) {
    fprintf(err, "%s: can not be mapped: %s\n", path, strerror(reason));
    return NULL;
  }
  return file;
}

bool rn_index_file(rn_index *index, const char *path, FILE *err) {
  size_t bytes = 0;
  unsigned char *file = map_file(path, &bytes, err);
  memset(index, 0, sizeof *index);
  if (file == NULL) return false;
  const bool good = rn_index_read(index, path, file, bytes, err);
  munmap(file, bytes);
  return good;
}

bool rn_tensor_read(const char *spec, int dtype, rn_tensor *tensor, rn_model_facts *facts, FILE *err) {
  size_t path_length, bytes = 0;
  const char *name = rn_spec_split(spec, &path_length);
  char *path = strndup(spec, path_length);
  rn_index index = {0};
  bool good = false;
  memset(tensor, 0, sizeof *tensor);
  unsigned char *file = path != NULL ? map_file(path, &bytes, err) : NULL;
  if (file != NULL) {
    good = rn_index_read(&index, path, file, bytes, err) && rn_index_load(&index, path, file, name, dtype, tensor, err);
    if (good && facts != NULL) *facts = index.facts;
    rn_index_free(&index);
    munmap(file, bytes);
  }
  free(path);
  return good;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Writing files. */

static bool ends_with(const char *text, const char *end) {
  const size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

int64_t rn_file_others(const char *path, const char *const *names, int count) {
  size_t bytes = 0;
  unsigned char *file = map_file(path, &bytes, stderr);
  rn_index index = {0};
  int64_t others = 0;
  if (file == NULL) return 0;
  if (rn_index_read(&index, path, file, bytes, stderr) && strcmp(index.format, "npy") != 0)
    for (size_t i = 0; i < index.count; i++) {
      bool named = false;
      for (int k = 0; k < count; k++) named |= strcmp(index.entries[i].name, names[k]) == 0;
      others += !named;
    }
  rn_index_free(&index);
  munmap(file, bytes);
  return others;
}

bool rn_file_writable(const char *path, int count, FILE *err) {
  const bool npy = ends_with(path, ".npy");
  if (!npy && !ends_with(path, ".safetensors")) {
    fprintf(err, "%s: can not be written: expected a name that ends in .npy or .safetensors\n", path);
    return false;
  }
  if (npy && count != 1) {
    fprintf(err, "%s: a .npy file holds one array, %d were to go into it; use .safetensors\n", path, count);
    return false;
  }
  return true;
}

bool rn_file_write(const char *name, const rn_named_tensor *tensors, int count, FILE *err) {
  const bool npy = ends_with(name, ".npy");
  if (!rn_file_writable(name, count, err)) return false;
  char *real = realpath(name, NULL); /* NULL: not there yet */
  const char *path = real != NULL ? real : name;
  static const char suffix[] = ".XXXXXX";
  char *temporary = malloc(strlen(path) + sizeof suffix);
  if (temporary == NULL) {
    fprintf(err, "%s: no memory\n", path);
    free(real);
    return false;
  }
  strcpy(temporary, path);
  strcat(temporary, suffix);
  const int fd = mkstemp(temporary);
  FILE *out = fd >= 0 ? fdopen(fd, "wb") : NULL;
  bool good = out != NULL;
  if (good) {
    const mode_t mask = umask(0); /* mkstemp makes a private file; a result should have the usual rights */
    umask(mask);
    good = fchmod(fd, 0666 & ~mask) == 0;
    good = (npy ? rn_write_npy(out, tensors[0].tensor) : rn_write_safetensors(out, tensors, count)) && good;
    good = fclose(out) == 0 && good;
  } else if (fd >= 0) {
    close(fd);
  }
  good = good && rename(temporary, path) == 0;
  if (!good) {
    fprintf(err, "%s: can not be written: %s\n", name, strerror(errno));
    if (fd >= 0) unlink(temporary);
  }
  free(temporary);
  free(real);
  const int dtype = tensors[0].tensor->dtype;
  if (good && npy && dtype != RMSNORM_DTYPE_F32 && dtype != RMSNORM_DTYPE_F16 && dtype != RMSNORM_DTYPE_F64 &&
      dtype != RMSNORM_DTYPE_INT8)
    fprintf(err,
            "note: %s: numpy has no %s; stored as raw %d-byte elements (V%d), read it with --dtype %s, or .view() "
            "it as the ml_dtypes type\n",
            name, rmsnorm_dtype_name(dtype), tensors[0].tensor->item_bytes, tensors[0].tensor->item_bytes,
            rmsnorm_dtype_name(dtype));
  return good;
}
