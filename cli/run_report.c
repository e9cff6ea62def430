/* run_report.c - after the call of `rmsnorm run`: write the outputs, compare them, say what happened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "json.h"
#include "message.h"
#include "run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
      const char *name = rn_spec_split(j->out[k].spec, &other);
      if (other != length || strncmp(j->out[k].spec, j->out[i].spec, length) != 0) continue;
      if (k < i) break; /* written together with that one */
      group[count].name = name != NULL && *name ? name : j->out[k].name;
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

static void print_text(const rn_job *j) {
  const rmsnorm_forward_args *a = &j->args;
  printf("%" PRId64 " x ", a->rows);
  if (a->heads > 1) printf("%" PRId64 " x ", a->heads);
  printf("%" PRId64 " %s -> %s, cpu, %s, %.2f us, %.2f GB/s\n", a->cols, rmsnorm_dtype_name(j->x.dtype),
         rmsnorm_dtype_name(j->out[j->quant_name ? OUT_Q : OUT_Y].tensor.dtype), j->impl, 1e6 * j->seconds,
         j->seconds > 0 ? 1e-9 * j->bytes / j->seconds : 0.0);
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
         ",\"groups\":%" PRId64 ",\"eps\":%.17g,\"weight_offset\":%.9g,\"dtype\":\"%s\",\"device\":\"cpu\",\"impl\":",
         a->rows, a->heads, a->cols, a->groups, a->eps, (double)a->numerics.weight_offset,
         rmsnorm_dtype_name(j->x.dtype));
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
