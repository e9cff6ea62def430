/* diff.c - `rmsnorm diff`: read tensors, ask the engine (or, without inputs, only measure), say what it found.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff.h"

#include "commands.h"
#include "diff_options.h"
#include "measure.h"
#include "message.h"
#include "picture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- inputs ---- */

static bool read_one(const rn_diff_job *j, const char *spec, int dtype, rn_tensor *t, rn_model_facts *facts) {
  if (!spec) return true;
  if (!rn_tensor_read(spec, dtype ? dtype : j->dtype, t, facts, stderr)) return false;
  if (t->dtype != RMSNORM_DTYPE_NONE) return true;
  rn_trouble("diff", "%s: holds raw %d-byte elements and does not say of which type. Try: --dtype %s", spec,
             t->item_bytes, t->item_bytes == 2 ? "bf16" : "fp8_e4m3");
  return false;
}

static rn_diff_tensor whole(const rn_tensor *t) {
  rn_diff_tensor v = {t->data, t->dtype};
  return v;
}

static bool same_count(const char *spec, const char *what, const rn_tensor *t, int64_t count) {
  if (!t->data || t->count == count) return true;
  rn_trouble("diff", "%s: %s has %lld elements, expected %lld, as x has", spec, what, (long long)t->count,
             (long long)count);
  return false;
}

/* The weights beside the given one in its file, and those named: any of the same size may have been taken by mistake.
 */
static bool take_others(rn_diff_job *j) {
  for (int i = 0; i < j->other_count; i++) {
    rn_tensor *t = &j->other_tensor[i];
    if (!read_one(j, j->other_spec[i], 0, t, NULL)) return false;
    int64_t count = j->weight.data ? j->weight.count : j->in.cols;
    if (count < 1 || t->count % count != 0)
      return rn_trouble("diff", "%s: --other-weight wants %lld elements (or a multiple), found %lld", j->other_spec[i],
                        (long long)count, (long long)t->count),
             false;
    for (int64_t k = 0; k < t->count / count && j->in.other_count < RN_DIFF_OTHERS; k++) {
      rn_diff_weight *w = &j->other[j->in.other_count];
      char *name = j->other_name[j->in.other_count++];
      snprintf(name, sizeof j->other_name[0], t->count == count ? "%.200s" : "%.200s, row %lld", j->other_spec[i],
               (long long)k);
      w->name = name, w->tensor = whole(t);
      w->tensor.data = (const char *)t->data + k * count * t->item_bytes;
    }
  }
  j->in.others = j->other;
  return true;
}

static int take_shapes(rn_diff_job *j) {
  rn_diff_input *in = &j->in;
  const rn_tensor *x = &j->x, *w = &j->weight;
  if (x->rank == 0) return rn_trouble("diff", "%s: a single number; expected at least one dimension", j->x_spec);
  in->cols = x->shape[x->rank - 1], in->heads = 1;
  if (in->cols < 1 || x->count < 1) return rn_trouble("diff", "%s: holds no elements", j->x_spec);
  in->rows = x->count / in->cols;
  if (in->groups > 1 && in->cols % in->groups)
    return rn_trouble("diff", "--groups %lld does not divide %lld columns", (long long)in->groups, (long long)in->cols);
  if (w->data) {
    bool heads = w->rank == 2 && x->rank > 1 && w->shape[1] == in->cols && w->shape[0] == x->shape[x->rank - 2];
    if (heads)
      in->weight_shape = RMSNORM_WEIGHT_HEADS_COLS, in->heads = w->shape[0], in->rows /= in->heads;
    else if (in->groups > 1 && w->count == in->cols / in->groups)
      in->weight_shape = RMSNORM_WEIGHT_GROUP;
    else if (w->count != in->cols)
      return rn_trouble("diff", "%s: the weight has %lld elements, expected %lld", j->weight_spec, (long long)w->count,
                        (long long)in->cols);
  }
  if (x->rank > 2 && in->heads == 1) in->heads = x->shape[x->rank - 2], in->rows /= in->heads;
  const struct {
    const char *spec, *what;
    const rn_tensor *t;
  } like_x[] = {{j->residual_spec, "the residual", &j->residual},
                {j->gate_spec, "the gate", &j->gate},
                {j->dy_spec, "dy", &j->dy},
                {j->dresidual_spec, "dresidual", &j->dresidual}};
  for (size_t i = 0; i < sizeof like_x / sizeof *like_x; i++)
    if (!same_count(like_x[i].spec, like_x[i].what, like_x[i].t, x->count)) return 2;
  in->subject = j->quant_name ? RN_DIFF_Q : !j->dy.data ? RN_DIFF_Y : RN_DIFF_DX;
  if (in->subject == RN_DIFF_DX && j->theirs.count != x->count) in->subject = RN_DIFF_DWEIGHT;
  int64_t expected = in->subject == RN_DIFF_DWEIGHT ? (w->data ? w->count : in->cols) : x->count;
  if (!same_count(j->theirs_spec, in->subject == RN_DIFF_DWEIGHT ? "dweight" : "theirs", &j->theirs, expected))
    return 2;
  if (!same_count(j->reference_spec, "the reference", &j->reference, j->theirs.count)) return 2;
  return 0;
}

static int explain(rn_diff_job *j) {
  rn_diff_input *in = &j->in;
  rn_model_facts facts = {{0}, -1};
  int codes = j->quant_name ? in->quant.q.dtype : 0, status;
  if (!read_one(j, j->x_spec, 0, &j->x, NULL) || !read_one(j, j->theirs_spec, codes, &j->theirs, NULL) ||
      !read_one(j, j->weight_spec, 0, &j->weight, &facts) || !read_one(j, j->residual_spec, 0, &j->residual, NULL) ||
      !read_one(j, j->gate_spec, 0, &j->gate, NULL) || !read_one(j, j->dy_spec, 0, &j->dy, NULL) ||
      !read_one(j, j->dresidual_spec, 0, &j->dresidual, NULL) ||
      !read_one(j, j->reference_spec, codes, &j->reference, NULL) || !read_one(j, j->scale_spec, 0, &j->scale, NULL))
    return 2;
  if ((status = take_shapes(j)) != 0 || !take_others(j)) return 2;
  if (in->eps < 0 && facts.eps >= 0) in->eps = facts.eps;
  in->x = whole(&j->x), in->theirs = whole(&j->theirs), in->weight = whole(&j->weight);
  in->residual = whole(&j->residual), in->gate = whole(&j->gate), in->dy = whole(&j->dy);
  in->dresidual = whole(&j->dresidual), in->reference = whole(&j->reference), in->scale = whole(&j->scale);
  if (in->gate.data && in->numerics_given && !in->numerics.gate)
    return rn_trouble("diff", "--gate needs a preset with a gate, or none at all");
  rn_diff_options options = {!j->no_pairs, isatty(2) && !j->json && !j->quiet ? stderr : NULL};
  rn_diff_result result;
  status = rn_diff_explain(in, &options, &result);
  if (status == 0) status = rn_diff_report(j, &result);
  rn_diff_free(&result);
  return status;
}

/* ---- two arrays and nothing else ---- */

static int measure(rn_diff_job *j) {
  rn_measured m;
  if (!read_one(j, j->theirs_spec, 0, &j->theirs, NULL) || !read_one(j, j->second_spec, 0, &j->reference, NULL))
    return 2;
  if (!rn_measure(&j->theirs, &j->reference, &m, stderr)) return 2;
  int status = rn_measured_equal(&m) ? 0 : 1;
  if (j->json) {
    printf("{\"format\":1,\"command\":\"diff\",\"equal\":%s,\"measured\":", status ? "false" : "true");
    rn_measured_json(stdout, &m);
    printf("}\n");
  } else if (!j->quiet) {
    rn_measured_print(stdout, &m);
  }
  rn_measured_free(&m);
  if (status == 1 && !j->json && !j->quiet && !rn_diff_picture(stdout, &j->theirs, &j->reference)) return 2;
  if (j->svg && !rn_picture_svg_file(j->svg, &j->theirs, &j->reference, j->theirs_spec, stderr)) return 2;
  return status;
}

int rn_cmd_diff(int argc, char **argv) {
  rn_diff_job *j = calloc(1, sizeof *j);
  if (!j) return rn_trouble("diff", "there is no memory");
  int status = rn_diff_options_read(j, argc, argv);
  if (status < 0) status = j->x_spec ? explain(j) : measure(j);
  rn_tensor *all[] = {&j->x,  &j->theirs, &j->weight,    &j->residual, &j->gate,
                      &j->dy, &j->scale,  &j->dresidual, &j->reference};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) rn_tensor_free(all[i]);
  for (int i = 0; i < RN_DIFF_OTHERS; i++) rn_tensor_free(&j->other_tensor[i]);
  free(j);
  return status;
}
