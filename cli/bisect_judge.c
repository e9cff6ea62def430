/* bisect_judge.c - one norm of two dumps, see bisect_judge.h.
 *
 * The reference is explained first: which roundings, which eps. A side whose input is the same is then held to exactly
 * that; and a side whose input has drifted is not blamed for it, as long as its output is what that norm makes of that
 * input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect_judge.h"
#include "message.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct norm_data {
  rn_tensor of[RN_SIDES][RN_ROLES]; /* data NULL: not there */
  const char *weight_spec;
  rn_tensor weight;
  int x_side[RN_SIDES]; /* whose inputs serve for a side: its own, or, where it has none, the other's */
  bool same_inputs;     /* equal, or the one that there is serves for both */
} norm_data;

static rn_finding trouble(const rn_norm *norm) {
  fprintf(stderr, "  at the norm ");
  rn_print_name(stderr, norm->name);
  fputc('\n', stderr);
  return RN_FINDING_TROUBLE;
}

static bool read_tensor(const rn_judge *j, const char *spec, rn_tensor *t) {
  if (!rn_tensor_read(spec, j->dtype, t, NULL, stderr)) return false;
  if (t->dtype != RMSNORM_DTYPE_NONE) return true;
  rn_trouble("bisect", "%s: holds raw %d-byte elements and does not say of which type. Try: --dtype %s", spec,
             t->item_bytes, t->item_bytes == 2 ? "bf16" : "TYPE");
  return false;
}

/* Where a norm's weight is: in the model, else in the reference's folder, else in the other. */
static const char *weight_spec(const rn_judge *j, const rn_norm *norm) {
  const char *spec = rn_checkpoint_weight(j->model, norm->name);
  if (spec == NULL) spec = norm->spec[RN_SIDE_B][RN_ROLE_WEIGHT];
  return spec != NULL ? spec : norm->spec[RN_SIDE_A][RN_ROLE_WEIGHT];
}

static bool read_inputs(const rn_judge *j, const rn_norm *norm, norm_data *d) {
  static const int roles[] = {RN_ROLE_X, RN_ROLE_RESIDUAL};
  for (int side = 0; side < RN_SIDES; side++)
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
      const char *spec = norm->spec[side][roles[i]];
      rn_tensor *t = &d->of[side][roles[i]];
      if (spec == NULL) continue;
      if (!read_tensor(j, spec, t)) return false;
      if (t->count == d->of[side][RN_ROLE_Y].count) continue;
      rn_trouble("bisect", "%s: has %" PRId64 " elements, the output of this norm has %" PRId64, spec, t->count,
                 d->of[side][RN_ROLE_Y].count);
      return false;
    }
  return true;
}

static bool compare(const rn_tensor *a, const rn_tensor *b, rn_step_pair *pair) {
  rn_measured m;
  if (!rn_measure(a, b, &m, stderr)) return false;
  pair->there = true;
  pair->elements += m.elements, pair->differ += m.differ;
  if (m.ulp > pair->ulp) pair->ulp = m.ulp;
  if (m.rms > pair->rms) pair->rms = m.rms;
  pair->nonfinite = pair->nonfinite || m.classes[RN_ULP_CLASS_NONFINITE] > 0;
  rn_measured_free(&m);
  return true;
}

static bool compare_inputs(norm_data *d, rn_step_pair *pair) {
  static const int roles[] = {RN_ROLE_X, RN_ROLE_RESIDUAL};
  bool both = true;
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
    const rn_tensor *a = &d->of[RN_SIDE_A][roles[i]], *b = &d->of[RN_SIDE_B][roles[i]];
    both = both && (a->data != NULL) == (b->data != NULL);
    if (a->data != NULL && b->data != NULL && !compare(a, b, pair)) return false;
  }
  d->same_inputs = pair->there && both && pair->differ == 0;
  for (int side = 0; side < RN_SIDES; side++) {
    const bool own = d->of[side][RN_ROLE_X].data != NULL;
    d->x_side[side] = own ? side : 1 - side;
    if (!own) d->same_inputs = true;
  }
  return true;
}

/* ------------------------------------------------------------------------------------------------------------------
 * What the engine is given. */

static rn_diff_tensor given(const rn_tensor *t) {
  return (rn_diff_tensor){t->data, t->dtype};
}

/* How the weight lies on the output: per column, per head, or per column of heads that the dump has laid side by side.
 */
static bool lay_weight(const norm_data *d, const rn_tensor *y, rn_diff_input *in) {
  const rn_tensor *w = &d->weight;
  in->heads = 1, in->cols = y->rank > 0 ? y->shape[y->rank - 1] : 1;
  if (w->data != NULL && w->count != in->cols) {
    if (w->rank == 2 && y->rank > 1 && w->shape[1] == in->cols && w->shape[0] == y->shape[y->rank - 2]) {
      in->heads = w->shape[0], in->weight_shape = RMSNORM_WEIGHT_HEADS_COLS;
    } else if (w->rank == 1 && w->count > 0 && in->cols % w->count == 0) {
      in->heads = in->cols / w->count, in->cols = w->count;
    } else {
      rn_trouble("bisect", "%s: has %" PRId64 " elements, and the norm %" PRId64 " columns. Try: --weight PATTERN",
                 d->weight_spec, w->count, in->cols);
      return false;
    }
  }
  if (w->data != NULL) in->weight = given(w);
  in->rows = in->cols > 0 ? y->count / (in->heads * in->cols) : 0;
  return true;
}

static bool fill(const rn_judge *j, const norm_data *d, int side, rn_diff_input *in) {
  const rn_tensor *y = &d->of[side][RN_ROLE_Y];
  const int x_side = d->x_side[side];
  memset(in, 0, sizeof *in);
  in->subject = RN_DIFF_Y, in->eps = j->eps;
  in->theirs = given(y), in->x = given(&d->of[x_side][RN_ROLE_X]);
  if (d->of[x_side][RN_ROLE_RESIDUAL].data != NULL) in->residual = given(&d->of[x_side][RN_ROLE_RESIDUAL]);
  in->numerics_given = j->numerics_given, in->numerics = j->numerics;
  return lay_weight(d, y, in);
}

static int explain(const rn_judge *j, const rn_norm *norm, rn_diff_input *in, bool pairs, rn_diff_result *result) {
  rn_diff_weight others[RN_OTHERS_MOST];
  const rn_diff_options options = {pairs, j->progress};
  const int64_t count = (in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? in->heads : 1) * in->cols;
  for (int i = 0; i < j->other_count && in->weight.data != NULL; i++) {
    const rn_tensor *t = &j->other_tensors[i];
    if (j->other_names[i] == norm->name || t->count != count) continue;
    others[in->other_count].name = j->other_names[i];
    others[in->other_count++].tensor = given(t);
  }
  in->others = others;
  memset(result, 0, sizeof *result);
  const int status = rn_diff_explain(in, &options, result);
  in->others = NULL, in->other_count = 0;
  return status;
}

static bool is_good(rn_diff_verdict verdict) {
  return verdict == RN_DIFF_EQUAL || verdict == RN_DIFF_BENIGN;
}

static double parameter(const rn_diff_explanation *e, const char *name, double otherwise) {
  for (int i = 0; i < e->parameter_count; i++)
    if (strcmp(e->parameters[i].name, name) == 0) return e->parameters[i].value;
  return otherwise;
}

/* The same mistakes with the same numbers. */
static bool same_explanation(const rn_diff_explanation *a, const rn_diff_explanation *b) {
  if (a->count != b->count || strcmp(a->preset, b->preset) != 0 || strcmp(a->roundings, b->roundings) != 0)
    return false;
  for (int i = 0; i < a->count; i++)
    if (a->hypothesis[i] != b->hypothesis[i]) return false;
  if (a->parameter_count != b->parameter_count) return false;
  for (int i = 0; i < a->parameter_count; i++) {
    const double x = a->parameters[i].value, y = b->parameters[i].value;
    if (strcmp(a->parameters[i].name, b->parameters[i].name) != 0 || fabs(x - y) > 1e-6 * fabs(x)) return false;
  }
  return true;
}

/* ------------------------------------------------------------------------------------------------------------------
 * What the reference does. */

/* A name without the parts that are numbers: norms with the same of it do the same. */
static void kind_of(const char *name, char *kind, size_t room) {
  size_t length = 0;
  while (*name) {
    const size_t part = strcspn(name, ".");
    if (strspn(name, "0123456789") < part)
      for (size_t i = 0; i < part && length + 2 < room; i++) kind[length++] = name[i];
    if (length + 2 < room) kind[length++] = '.';
    name += part + (name[part] == '.');
  }
  kind[length] = 0;
}

static void learn(const rn_judge *j, const rn_norm *norm, const norm_data *d, rn_convention *c) {
  rn_diff_input in;
  rn_diff_result r;
  c->eps = j->eps, c->verdict = RN_DIFF_UNEXPLAINED;
  if (!fill(j, d, RN_SIDE_B, &in)) return;
  if (explain(j, norm, &in, false, &r) == 0) {
    c->verdict = r.verdict;
    c->explained = r.count > 0 && r.verdict != RN_DIFF_UNEXPLAINED;
    if (c->explained) c->explanation = r.explanation[0];
    snprintf(c->text, sizeof c->text, "%s", r.sentence);
    c->known = c->explained && is_good(r.verdict) &&
               (j->numerics_given || rmsnorm_preset(c->explanation.preset, &c->numerics) == RMSNORM_OK);
    if (j->numerics_given) c->numerics = j->numerics;
    if (c->known && c->eps < 0) c->eps = parameter(&c->explanation, "eps", -1);
  }
  rn_diff_free(&r);
}

/* Learnt once for each kind of norm, from the first whose outputs differ and whose reference is explained. */
static const rn_convention *convention(rn_judge *j, const rn_norm *norm, const norm_data *d) {
  rn_convention *c = &j->conventions[j->convention_count];
  memset(c, 0, sizeof *c);
  kind_of(norm->name, c->kind, sizeof c->kind);
  for (int i = 0; i < j->convention_count; i++)
    if (strcmp(j->conventions[i].kind, c->kind) == 0) return &j->conventions[i];
  learn(j, norm, d, c);
  if (c->known && j->convention_count + 1 < RN_CONVENTIONS_MOST) j->convention_count++;
  return c;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The judgement, and its account. */

void rn_walk_forget(rn_walk *walk) {
  if (walk->measured) rn_measured_free(&walk->measure);
  rn_picture_free(&walk->picture), rn_picture_free(&walk->fine);
  if (walk->diffed) rn_diff_free(&walk->diff);
  walk->measured = walk->diffed = false;
  walk->weight = walk->x = walk->against = NULL, walk->expected[0] = 0, walk->side = RN_SIDE_A;
}

/* Measure the output of the side at fault: against the other's while the inputs are the same, otherwise against what is
 * right for its own. */
static bool account(rn_walk *walk, const norm_data *d) {
  const rn_tensor *y = &d->of[walk->side][RN_ROLE_Y];
  rn_tensor against = d->of[1 - walk->side][RN_ROLE_Y];
  walk->against = walk->side == RN_SIDE_A ? "the output of b" : "the output of a";
  if (walk->diffed && !d->same_inputs && walk->diff.ours != NULL) {
    against = *y;
    against.dtype = walk->diff.ours_dtype, against.item_bytes = (int)rmsnorm_dtype_bytes(against.dtype);
    against.data = walk->diff.ours;
    walk->against = "what is right for its input";
  }
  if (!rn_measure(y, &against, &walk->measure, stderr)) return false;
  walk->measured = true;
  return rn_picture_make(&walk->picture, y, &against, RN_PICTURE_TEXT_ROWS, RN_PICTURE_TEXT_COLS, stderr) &&
         rn_picture_make(&walk->fine, y, &against, RN_PICTURE_SVG_ROWS, RN_PICTURE_SVG_COLS, stderr);
}

/* Whether the output of one side is what this norm makes of its input: BENIGN when it is. TROUBLE: *r is empty. */
static rn_finding judge_side(const rn_judge *j, const rn_norm *norm, const norm_data *d, int side,
                             const rn_convention *c, rn_diff_result *r) {
  rn_diff_input in;
  memset(r, 0, sizeof *r);
  if (!fill(j, d, side, &in)) return RN_FINDING_TROUBLE;
  if (c->known) in.numerics_given = true, in.numerics = c->numerics, in.eps = c->eps;
  int status = explain(j, norm, &in, false, r);
  if (status == 0 && r->verdict == RN_DIFF_UNEXPLAINED) {
    rn_diff_free(r);
    status = explain(j, norm, &in, true, r);
  }
  if (status != 0) {
    rn_diff_free(r);
    return RN_FINDING_TROUBLE;
  }
  return r->verdict == RN_DIFF_UNEXPLAINED ? RN_FINDING_UNEXPLAINED
         : is_good(r->verdict)             ? RN_FINDING_BENIGN
                                           : RN_FINDING_FAULT;
}

static rn_finding judge(rn_judge *j, const rn_norm *norm, norm_data *d, rn_walk *walk) {
  rn_diff_result r;
  int side = RN_SIDE_A;
  if (d->of[RN_SIDE_A][RN_ROLE_X].data == NULL && d->of[RN_SIDE_B][RN_ROLE_X].data == NULL) {
    if (walk->measured) return RN_FINDING_BLIND; /* the account is of the first of them */
    return account(walk, d) ? RN_FINDING_BLIND : trouble(norm);
  }
  d->weight_spec = weight_spec(j, norm);
  if (d->weight_spec != NULL && !read_tensor(j, d->weight_spec, &d->weight)) return trouble(norm);
  if (d->weight_spec == NULL && j->model->files.count > 0) {
    fprintf(stderr, "note: the model has no weight for the norm ");
    rn_print_name(stderr, norm->name);
    fprintf(stderr, ", which is judged without one. Try: --weight PATTERN\n");
  }
  const rn_convention *c = convention(j, norm, d);
  rn_finding finding = judge_side(j, norm, d, side, c, &r);
  /* A mistake that the reference makes as well is none of this side's. */
  if (finding == RN_FINDING_FAULT && c->explained && same_explanation(&r.explanation[0], &c->explanation))
    finding = RN_FINDING_BENIGN;
  else if (finding == RN_FINDING_BENIGN && d->same_inputs) { /* a is right: then what of b? */
    rn_diff_free(&r);
    side = RN_SIDE_B;
    finding = judge_side(j, norm, d, side, c, &r);
  }
  if (finding == RN_FINDING_TROUBLE) return trouble(norm);
  if (finding == RN_FINDING_BENIGN && !d->same_inputs) finding = RN_FINDING_INPUTS;
  if (finding == RN_FINDING_UNEXPLAINED && !d->same_inputs && c->verdict == RN_DIFF_UNEXPLAINED)
    finding = RN_FINDING_BLIND; /* nor is the reference */
  const bool told = finding == RN_FINDING_FAULT || finding == RN_FINDING_UNEXPLAINED;
  if (!told && (finding != RN_FINDING_BLIND || walk->measured)) {
    rn_diff_free(&r);
    return finding;
  }
  rn_walk_forget(walk);
  walk->side = side, walk->diff = r, walk->diffed = true;
  walk->weight = d->weight_spec;
  walk->x = d->x_side[side] != side ? norm->spec[1 - side][RN_ROLE_X] : NULL;
  if (side == RN_SIDE_A) snprintf(walk->expected, sizeof walk->expected, "%s", c->text);
  return account(walk, d) ? finding : trouble(norm);
}

void rn_judge_step(rn_judge *j, const rn_norm *norm, rn_step *step, rn_walk *walk) {
  norm_data d;
  memset(&d, 0, sizeof d);
  memset(step, 0, sizeof *step);
  step->norm = norm;
  const char *a = norm->spec[RN_SIDE_A][RN_ROLE_Y], *b = norm->spec[RN_SIDE_B][RN_ROLE_Y];
  rn_tensor *y_a = &d.of[RN_SIDE_A][RN_ROLE_Y], *y_b = &d.of[RN_SIDE_B][RN_ROLE_Y];
  if (a == NULL || b == NULL) {
    step->finding = RN_FINDING_ONE_SIDED;
    return;
  }
  const bool good = read_tensor(j, a, y_a) && read_tensor(j, b, y_b) && compare(y_a, y_b, &step->y) &&
                    read_inputs(j, norm, &d) && compare_inputs(&d, &step->x);
  step->cols = y_a->rank > 0 ? y_a->shape[y_a->rank - 1] : 1;
  step->rows = step->cols > 0 ? y_a->count / step->cols : 0;
  step->finding = !good ? trouble(norm) : step->y.differ == 0 ? RN_FINDING_EQUAL : judge(j, norm, &d, walk);
  for (int side = 0; side < RN_SIDES; side++)
    for (int role = 0; role < RN_ROLES; role++) rn_tensor_free(&d.of[side][role]);
  rn_tensor_free(&d.weight);
}

void rn_judge_others(rn_judge *j, const rn_norms *norms) {
  for (size_t i = 0; i < norms->count && j->other_count < RN_OTHERS_MOST; i++) {
    rn_tensor *t = &j->other_tensors[j->other_count];
    const char *spec = weight_spec(j, &norms->at[i]);
    if (spec == NULL || !rn_tensor_read(spec, j->dtype, t, NULL, stderr)) continue;
    if (t->dtype == RMSNORM_DTYPE_NONE) {
      rn_tensor_free(t);
      continue;
    }
    j->other_names[j->other_count++] = norms->at[i].name;
  }
}

void rn_judge_close(rn_judge *j) {
  for (int i = 0; i < j->other_count; i++) rn_tensor_free(&j->other_tensors[i]);
  j->other_count = 0;
}
