/* bisect_dump.c - what tensors lie in a folder: every .npy, .safetensors and .gguf file in it and in the folders below.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Folders deeper than this, and more tensors than this, are no dump. */
enum { DEPTH_MOST = 4, TENSORS_MOST = 1 << 20 };

static const char *const endings[] = {".npy", ".safetensors", ".gguf"};
enum { ENDINGS = sizeof endings / sizeof *endings };

/* The ending of a path that can be read, NULL = none. */
static const char *ending_of(const char *path) {
  const size_t length = strlen(path);
  for (int i = 0; i < ENDINGS; i++) {
    const size_t own = strlen(endings[i]);
    if (length > own && strcmp(path + length - own, endings[i]) == 0) return path + length - own;
  }
  return NULL;
}

static char *join(const char *a, const char *between, const char *b) {
  const size_t bytes = strlen(a) + strlen(between) + strlen(b) + 1;
  char *text = malloc(bytes);
  if (text != NULL) snprintf(text, bytes, "%s%s%s", a, between, b);
  return text;
}

/* Takes over name and spec. */
static bool add(rn_dump *dump, char *name, char *spec, const rn_entry *entry) {
  if (dump->count == dump->room && name != NULL && spec != NULL) {
    const size_t room = dump->room ? 2 * dump->room : 64;
    rn_dump_tensor *more = realloc(dump->tensors, room * sizeof *more);
    if (more != NULL) dump->tensors = more, dump->room = room;
  }
  if (dump->count == dump->room || name == NULL || spec == NULL) {
    free(name), free(spec);
    return false;
  }
  rn_dump_tensor *t = &dump->tensors[dump->count++];
  t->name = name, t->spec = spec, t->rank = entry->rank;
  memcpy(t->shape, entry->shape, sizeof t->shape);
  return true;
}

/* All tensors of one file. `inner`: its path within the folder. A file that can not be read is counted, no more. */
static bool add_file(rn_dump *dump, const char *path, const char *inner, FILE *err) {
  rn_index index;
  bool good = true;
  if (!rn_index_file(&index, path, err)) {
    rn_index_free(&index);
    dump->unreadable++;
    return true;
  }
  if (*index.facts.architecture) dump->facts = index.facts;
  const int stem = (int)(ending_of(inner) - inner);
  for (size_t i = 0; i < index.count && good; i++) {
    const char *name = index.entries[i].name;
    good = dump->count < TENSORS_MOST;
    if (*name == 0) /* .npy: the file has the name */
      good = good && add(dump, strndup(inner, (size_t)stem), strdup(path), &index.entries[i]);
    else
      good = good && add(dump, strdup(name), join(path, ":", name), &index.entries[i]);
  }
  if (!good) fprintf(err, "%s: no memory for the names of so many tensors\n", path);
  rn_index_free(&index);
  return good;
}

static bool add_folder(rn_dump *dump, const char *path, const char *inner, int depth, FILE *err) {
  DIR *folder = opendir(path);
  bool good = folder != NULL;
  if (!good) fprintf(err, "%s: can not be opened: %s\n", path, strerror(errno));
  for (struct dirent *found; good && (found = readdir(folder)) != NULL;) {
    struct stat info;
    if (found->d_name[0] == '.') continue;
    char *whole = join(path, "/", found->d_name), *part = join(inner, *inner ? "/" : "", found->d_name);
    good = whole != NULL && part != NULL;
    if (!good) fprintf(err, "%s: no memory\n", path);
    /* Links to files are followed, links to folders are not: they may lead in a circle. */
    if (good && lstat(whole, &info) == 0 && S_ISDIR(info.st_mode)) {
      if (depth < DEPTH_MOST) good = add_folder(dump, whole, part, depth + 1, err);
    } else if (good && ending_of(part) != NULL && stat(whole, &info) == 0 && S_ISREG(info.st_mode)) {
      good = add_file(dump, whole, part, err);
    }
    free(whole), free(part);
  }
  if (folder != NULL) closedir(folder);
  return good;
}

static int by_name(const void *a, const void *b) {
  const rn_dump_tensor *x = a, *y = b;
  const int order = strcmp(x->name, y->name);
  return order != 0 ? order : strcmp(x->spec, y->spec);
}

/* Tensors of one name, out of several files of a folder, are told apart by those files' names. */
static bool tell_apart(rn_dump *dump, size_t root) {
  bool good = true;
  for (size_t i = 0, end; i < dump->count && good; i = end) {
    for (end = i + 1; end < dump->count && strcmp(dump->tensors[i].name, dump->tensors[end].name) == 0; end++) {
    }
    if (end == i + 1) continue;
    char *shared = strdup(dump->tensors[i].name);
    for (size_t k = i; k < end && shared != NULL && good; k++) {
      rn_dump_tensor *t = &dump->tensors[k];
      size_t length;
      if (rn_spec_split(t->spec, &length) == NULL) continue;
      char *file = length > root ? strndup(t->spec + root, length - root) : NULL;
      if (file != NULL && ending_of(file) != NULL) file[ending_of(file) - file] = 0;
      char *name = file != NULL ? join(file, "/", shared) : NULL;
      free(file);
      good = name != NULL;
      if (good) free(t->name), t->name = name;
    }
    good = good && shared != NULL;
    free(shared);
  }
  return good;
}

bool rn_dump_open(rn_dump *dump, const char *path, FILE *err) {
  struct stat info;
  memset(dump, 0, sizeof *dump);
  dump->facts.eps = -1;
  if (stat(path, &info) != 0) {
    fprintf(err, "%s: can not be opened: %s\n", path, strerror(errno));
    return false;
  }
  const bool folder = S_ISDIR(info.st_mode);
  const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
  if (!folder && ending_of(base) == NULL) {
    fprintf(err, "%s: expected a folder, or a file that ends in .safetensors, .gguf or .npy\n", path);
    return false;
  }
  if (!(folder ? add_folder(dump, path, "", 0, err) : add_file(dump, path, base, err))) return false;
  if (dump->count > 0) qsort(dump->tensors, dump->count, sizeof *dump->tensors, by_name);
  if (!tell_apart(dump, folder ? strlen(path) + 1 : 0)) {
    fprintf(err, "%s: no memory\n", path);
    return false;
  }
  if (dump->count > 0) qsort(dump->tensors, dump->count, sizeof *dump->tensors, by_name);
  if (dump->count > 0) return true;
  fprintf(err, "%s: holds no tensor: expected files that end in .npy, .safetensors or .gguf\n", path);
  return false;
}

void rn_dump_close(rn_dump *dump) {
  for (size_t i = 0; i < dump->count; i++) free(dump->tensors[i].name), free(dump->tensors[i].spec);
  free(dump->tensors);
  memset(dump, 0, sizeof *dump);
}
