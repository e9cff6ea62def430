/* run_report.c - the outputs of `rmsnorm run`: whether every one can be kept, asked before the call; after it, write
 * them, compare them, say what happened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "json.h"
#include "message.h"
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file that is to be written: one that is there is known by its number, any other by its folder and name. */
typedef struct target {
  char *path; /* as given; NULL = no file */
  char *full; /* of a file that is not there yet */
  struct stat info;
} target;

static bool same_file(const target *a, const target *b) {
  if (a->full != NULL || b->full != NULL) return a->full != NULL && b->full != NULL && strcmp(a->full, b->full) == 0;
  return a->info.st_dev == b->info.st_dev && a->info.st_ino == b->info.st_ino;
}

static int find_target(target *t, const char *spec) {
  size_t length;
  rn_spec_split(spec, &length);
  t->path = strndup(spec, length);
  if (t->path == NULL) return rn_trouble("run", "%s: no memory", spec);
  if (stat(t->path, &t->info) == 0) return 0;
  if (lstat(t->path, &t->info) == 0)
    return rn_trouble("run", "%s: can not be written: a symbolic link that leads nowhere. Remove it, or name the file",
                      t->path);
  const char *slash = strrchr(t->path, '/'), *name = slash != NULL ? slash + 1 : t->path;
  char *folder = slash == NULL ? strdup(".") : strndup(t->path, (size_t)(name - t->path));
  char *real = folder != NULL ? realpath(folder, NULL) : NULL;
  free(folder);
  if (real == NULL) return rn_trouble("run", "%s: can not be written: %s", t->path, strerror(errno));
  t->full = malloc(strlen(real) + strlen(name) + 2);
  if (t->full != NULL) sprintf(t->full, "%s/%s", real, name);
  free(real);
  return t->full != NULL ? 0 : rn_trouble("run", "%s: no memory", spec);
}

static const char *written_name(const rn_output *o) {
  size_t length;
  const char *name = rn_spec_split(o->spec, &length);
  return name != NULL && *name ? name : o->name;
}

/* Whether this file, which is about to be replaced, is read by this run as well. */
static bool reads(const char *spec, const target *t) {
  target other = {0};
  if (spec == NULL || t->full != NULL) return false;
  const bool same = find_target(&other, spec) == 0 && same_file(&other, t);
  free(other.path), free(other.full);
  return same;
}

/* One file with all outputs that go into it. */
static int check_target(const rn_job *j, const target *targets, int which) {
  const target *t = &targets[which];
  const char *const inputs[] = {j->x_spec, j->weight_spec, j->residual_spec, j->gate_spec};
  const char *names[OUTS];
  int count = 0;
  for (int k = 0; k < OUTS; k++) {
    if (targets[k].path == NULL || !same_file(t, &targets[k])) continue;
    if (strcmp(t->path, targets[k].path) != 0)
      return rn_trouble("run", "%s and %s are the same file, and one would replace the other. %s", t->path,
                        targets[k].path, "Name two files, or one .safetensors file the same way in both places");
    names[count] = written_name(&j->out[k]);
    for (int i = 0; i < count; i++)
      if (strcmp(names[i], names[count]) == 0)
        return rn_trouble("run",
                          "%s: two outputs would be called %s in this file. Give each a name of its own: %s:NAME",
                          t->path, names[i], t->path);
    count++;
  }
  if (!rn_file_writable(t->path, count, stderr)) return 2;
  for (int k = 0; k < OUTS; k++)
    if (reads(j->out[k].expect, t))
      return rn_trouble("run", "%s: an output, and also what --expect compares with. Write to another file", t->path);
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    if (!reads(inputs[i], t)) continue;
    const int64_t lost = rn_file_others(t->path, names, count);
    if (lost > 0)
      return rn_trouble("run",
                        "%s: an output, and also an input that holds %" PRId64
                        " tensor%s of another name, which would be lost. Write to another file",
                        t->path, lost, lost == 1 ? "" : "s");
  }
  return 0;
}

int rn_run_targets(const rn_job *j) {
  target targets[OUTS] = {{0}};
  int status = 0;
  for (int i = 0; i < OUTS && status == 0; i++)
    if (j->out[i].spec != NULL) status = find_target(&targets[i], j->out[i].spec);
  for (int i = 0; i < OUTS && status == 0; i++)
    if (targets[i].path != NULL) status = check_target(j, targets, i);
  for (int i = 0; i < OUTS; i++) free(targets[i].path), free(targets[i].full);
  return status;
}

/* Every output with a file; those that share one go into it together. */
int rn_run_write(const rn_job *j) {
  for (int i = 0; i < OUTS; i++) {
    size_t length, other;
    rn_named_tensor group[OUTS];
    int count = 0;
    if (j->out[i].spec == NULL) continue;
    rn_spec_split(j->out[i].spec, &length);
    for (int k = 0; k < OUTS; k++) {
      if (j->out[k].spec == NULL) continue;
      rn_spec_split(j->out[k].spec, &other);
      if (other != length || strncmp(j->out[k].spec, j->out[i].spec, length) != 0) continue;
      if (k < i) break; /* written together with that one */
      group[count].name = written_name(&j->out[k]);
      group[count++].tensor = &j->out[k].tensor;
    }
    if (count == 0) continue;
    char *path = strndup(j->out[i].spec, length);
    const bool good = path != NULL && rn_file_write(path, group, count, stderr);
    free(path);
    if (!good) return 2;
  }
  return 0;
}

/* Zero ulp means the same bits: -0 is not +0 then. */
static bool within(const rn_job *j, const rn_difference *d) {
  return d->differ == 0 || (j->expect_ulp > 0 && d->ulp <= j->expect_ulp);
}

int rn_run_compare(rn_job *j) {
  int answer = 0;
  for (int i = 0; i < OUTS; i++) {
    rn_output *o = &j->out[i];
    rn_tensor expected;
    if (o->expect == NULL) continue;
    if (!rn_tensor_read(o->expect, o->tensor.dtype, &expected, NULL, stderr)) return 2;
    if (expected.dtype != o->tensor.dtype || expected.count != o->tensor.count) {
      rn_trouble("run", "%s: %s is %s with %" PRId64 " elements, expected the same, found %s with %" PRId64, o->expect,
                 o->name, rmsnorm_dtype_name(o->tensor.dtype), o->tensor.count, rmsnorm_dtype_name(expected.dtype),
                 expected.count);
      rn_tensor_free(&expected);
      return 2;
    }
    o->difference = rn_compare(&o->tensor, &expected);
    if (!within(j, &o->difference)) {
      const int64_t at = o->difference.worst;
      answer = 1;
      fprintf(stderr, "%s: element %" PRId64 " is %.9g, expected %.9g\n", o->name, at, rn_value(&o->tensor, at),
              rn_value(&expected, at));
    }
    rn_tensor_free(&expected);
  }
  return answer;
}

static void print_ulp(uint64_t ulp) {
  if (ulp == UINT64_MAX)
    printf("a NaN against a number");
  else
    printf("at most %" PRIu64 " ulp", ulp);
}

static const char *device_name(const rn_job *j) {
  return rn_where_name(&j->where);
}

static void print_text(const rn_job *j) {
  const rmsnorm_forward_args *a = &j->args;
  printf("%" PRId64 " x ", a->rows);
  if (a->heads > 1) printf("%" PRId64 " x ", a->heads);
  printf("%" PRId64 " %s -> %s, %s, %s, %.2f us, %.2f GB/s\n", a->cols, rmsnorm_dtype_name(j->x.dtype),
         rmsnorm_dtype_name(j->out[j->quant_name ? OUT_Q : OUT_Y].tensor.dtype), device_name(j), j->impl,
         1e6 * j->seconds, j->seconds > 0 ? 1e-9 * j->bytes / j->seconds : 0.0);
  for (int i = 0; i < OUTS; i++) {
    const rn_difference *d = &j->out[i].difference;
    if (j->out[i].expect == NULL) continue;
    printf("%s: %" PRId64 " of %" PRId64 " elements differ from %s", j->out[i].name, d->differ, d->elements,
           j->out[i].expect);
    if (d->differ > 0) printf(", "), print_ulp(d->ulp);
    putchar('\n');
  }
}

static void print_json(const rn_job *j) {
  const rmsnorm_forward_args *a = &j->args;
  const char *comma = "";
  printf("{\"format\":1,\"command\":\"run\",\"rows\":%" PRId64 ",\"heads\":%" PRId64 ",\"cols\":%" PRId64
         ",\"groups\":%" PRId64 ",\"eps\":%.17g,\"weight_offset\":%.9g,\"dtype\":\"%s\",\"device\":\"%s\",\"impl\":",
         a->rows, a->heads, a->cols, a->groups, a->eps, (double)a->numerics.weight_offset,
         rmsnorm_dtype_name(j->x.dtype), device_name(j));
  rn_json_put(stdout, j->impl);
  printf(",\"seconds\":%.9g,\"bytes\":%.0f,\"outputs\":[", j->seconds, j->bytes);
  for (int i = 0; i < OUTS; i++) {
    const rn_output *o = &j->out[i];
    if (o->spec == NULL && o->expect == NULL) continue;
    printf("%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":[", comma, o->name, rmsnorm_dtype_name(o->tensor.dtype));
    for (int d = 0; d < o->tensor.rank; d++) printf("%s%" PRId64, d ? "," : "", o->tensor.shape[d]);
    printf("]");
    if (o->spec != NULL) printf(",\"file\":"), rn_json_put(stdout, o->spec);
    if (o->expect != NULL) {
      printf(",\"expect\":");
      rn_json_put(stdout, o->expect);
      printf(",\"within\":%s,\"differ\":%" PRId64 ",\"ulp\":", within(j, &o->difference) ? "true" : "false",
             o->difference.differ);
      if (o->difference.ulp == UINT64_MAX)
        printf("null");
      else
        printf("%" PRIu64, o->difference.ulp);
    }
    printf("}");
    comma = ",";
  }
  printf("]}\n");
}

void rn_run_report(const rn_job *j) {
  if (j->json)
    print_json(j);
  else if (!j->quiet)
    print_text(j);
}
