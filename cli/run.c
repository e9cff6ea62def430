/* run.c - `rmsnorm run`: read tensors, normalise, write tensors, say what happened.
 *
 * Options -> inputs -> arguments of the library -> outputs (run.h). Everything that could go wrong is refused before
 * the first file is written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "commands.h"
#include "message.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------------------------
 * Inputs. */

static bool read_input(rn_job *j, const char *spec, rn_tensor *t, rn_model_facts *facts) {
  if (spec == NULL) return true;
  if (!rn_tensor_read(spec, j->dtype, t, facts, stderr)) return false;
  if (t->dtype != RMSNORM_DTYPE_NONE) return true;
  rn_trouble("run", "%s: holds raw %d-byte elements and does not say of which type. Try: --dtype %s", spec,
             t->item_bytes, t->item_bytes == 2 ? "bf16" : "TYPE");
  return false;
}

static void print_shape(FILE *out, const rn_tensor *t) {
  fputc('[', out);
  for (int i = 0; i < t->rank; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", t->shape[i]);
  fputc(']', out);
}

static bool same_shape(const rn_tensor *a, const rn_tensor *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->rank) == 0;
}

static int bad_shape(const char *spec, const char *what, const rn_tensor *t, const char *expected, const rn_tensor *x) {
  rn_trouble("run", "%s: the %s has another shape than expected", spec, what);
  fprintf(stderr, "  expected %s", expected);
  if (x != NULL) print_shape(stderr, x);
  fprintf(stderr, "\n  found    ");
  print_shape(stderr, t);
  fputc('\n', stderr);
  return 2;
}

/* rows, heads and cols from the shape of x, the weight's form from its own. */
static int take_shapes(rn_job *j) {
  rmsnorm_forward_args *a = &j->args;
  const rn_tensor *x = &j->x, *w = &j->weight;
  char expected[160];
  if (x->rank == 0) return rn_trouble("run", "%s: a single number; expected at least one dimension", j->x_spec);
  a->cols = x->shape[x->rank - 1];
  a->rows = 1;
  for (int i = 0; i + 1 < x->rank; i++) a->rows *= x->shape[i];
  if (j->residual_spec != NULL && !same_shape(&j->residual, x))
    return bad_shape(j->residual_spec, "residual", &j->residual, "the shape of x, ", x);
  if (j->gate_spec != NULL && !same_shape(&j->gate, x))
    return bad_shape(j->gate_spec, "gate", &j->gate, "the shape of x, ", x);
  if (w->data == NULL) return 0;
  a->weight = w->data, a->weight_dtype = w->dtype;
  if (w->rank == 1 && w->shape[0] == a->cols) return 0;
  if (w->rank == 1 && a->groups > 1 && w->shape[0] == a->cols / a->groups) {
    a->weight_shape = RMSNORM_WEIGHT_GROUP;
    return 0;
  }
  if (w->rank == 2 && x->rank > 1 && w->shape[1] == a->cols && w->shape[0] > 0 &&
      w->shape[0] == x->shape[x->rank - 2]) {
    a->weight_shape = RMSNORM_WEIGHT_HEADS_COLS;
    a->heads = w->shape[0];
    a->rows /= a->heads;
    return 0;
  }
  int n = snprintf(expected, sizeof expected, "[%" PRId64 "]", a->cols);
  if (a->groups > 1) n += snprintf(expected + n, sizeof expected - (size_t)n, " or [%" PRId64 "]", a->cols / a->groups);
  if (x->rank > 1)
    snprintf(expected + n, sizeof expected - (size_t)n, " or, per head, [%" PRId64 ", %" PRId64 "]",
             x->shape[x->rank - 2], a->cols);
  return bad_shape(j->weight_spec, "weight", w, expected, NULL);
}

/* A weight out of a GGUF file never wants the offset of its model (see rn_gguf_offset_folded): leave it out and say so.
 */
static void settle_offset(rn_job *j) {
  const char *architecture = j->facts.architecture;
  if (*architecture == 0) return;
  const bool added = rn_gguf_offset_folded(architecture);
  const double offset = (double)j->args.numerics.weight_offset;
  fprintf(stderr, "note: %s: architecture ", j->weight_spec);
  rn_print_name(stderr, architecture);
  fprintf(stderr, "%s",
          added ? ": the weight in this file already has the model's + 1 folded in"
                : ": the weight in this file is used as it is, nothing is to be added");
  if (offset == 0)
    fprintf(stderr, "; offset 0 is right\n");
  else if (j->offset_given)
    fprintf(stderr, "; --offset %g is added all the same, as asked\n", offset);
  else
    fprintf(stderr, "; the preset's offset %g is left out (--offset %g would add it)\n", offset, offset);
  if (!j->offset_given) j->args.numerics.weight_offset = 0;
}

static int missing_eps(const rn_job *j) {
  if (j->facts.eps >= 0)
    return rn_trouble("run", "--eps is missing and has no default. The file of the weight says %.7g. Try: --eps %.7g",
                      j->facts.eps, j->facts.eps);
  return rn_trouble(
      "run", "--eps is missing and has no default: it belongs to the model. Look for rms_norm_eps (or layer_norm_eps, "
             "norm_eps) in its config.json. Try: --eps 1e-5 or --eps 1e-6");
}

/* ------------------------------------------------------------------------------------------------------------------
 * Outputs and the call. */

static int promote(int a, int b) {
  return a == b ? a : a == RMSNORM_DTYPE_F64 || b == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
}

/* Row strides of a packed [rows, heads, cols] tensor. */
static rmsnorm_input_tensor input(const rn_tensor *t, const rmsnorm_forward_args *a) {
  return rmsnorm_input_heads(t->data, t->dtype, a->heads * a->cols, a->cols);
}

static rmsnorm_output_tensor output_like_x(const rn_tensor *t, const rmsnorm_forward_args *a) {
  return rmsnorm_output_heads(t->data, t->dtype, a->heads * a->cols, a->cols);
}

static bool make_output(rn_job *j, int which, int dtype, int rank, const int64_t *shape) {
  if (rn_tensor_new(&j->out[which].tensor, dtype, rank, shape)) return true;
  rn_trouble("run", "there is no memory for %s", j->out[which].name);
  return false;
}

/* The shape of the scales: x's outer dimensions, then the blocks; [blocks, rows] in column-major order. */
static bool make_scale(rn_job *j) {
  rmsnorm_quant *q = &j->args.quant;
  const int outer = j->x.rank - 1;
  const int64_t block = q->granularity == RMSNORM_QUANT_MX ? 32 : q->block_cols;
  int64_t shape[RN_RANK_MAX];
  int rank = outer;
  memcpy(shape, j->x.shape, sizeof shape);
  if (q->granularity != RMSNORM_QUANT_ROW) {
    const int64_t blocks = (j->args.cols + block - 1) / block;
    shape[rank++] = blocks;
    if (q->scale_layout == RMSNORM_SCALE_COL_MAJOR)
      shape[0] = blocks, shape[1] = j->args.rows * j->args.heads, rank = 2;
  }
  if (!make_output(j, OUT_SCALE, q->granularity == RMSNORM_QUANT_MX ? RMSNORM_DTYPE_E8M0 : RMSNORM_DTYPE_F32, rank,
                   shape))
    return false;
  q->scale_out = j->out[OUT_SCALE].tensor.data;
  return true;
}

static int make_outputs(rn_job *j) {
  rmsnorm_forward_args *a = &j->args;
  const rn_tensor *x = &j->x;
  if (j->quant_name == NULL || rn_run_wanted(j, OUT_Y)) {
    if (!make_output(j, OUT_Y, j->out_dtype ? j->out_dtype : x->dtype, x->rank, x->shape)) return 2;
    a->y = output_like_x(&j->out[OUT_Y].tensor, a);
  }
  if (j->quant_name != NULL) {
    const bool tensor = a->quant.granularity == RMSNORM_QUANT_TENSOR;
    if (!make_output(j, OUT_Q, a->quant.q.dtype, x->rank, x->shape)) return 2;
    a->quant.q = output_like_x(&j->out[OUT_Q].tensor, a);
    if (tensor != j->scale_given)
      return tensor ? rn_trouble("run", "--quant %s needs the scale: --scale S", j->quant_name)
                    : rn_trouble("run", "--scale is for -tensor kinds; --quant %s finds its own scales (--scale-out)",
                                 j->quant_name);
    if (tensor && rn_run_wanted(j, OUT_SCALE))
      return rn_trouble("run", "--quant %s has no scales to write", j->quant_name);
    if (tensor) a->quant.scale = &j->scale_in;
    if (!tensor && !make_scale(j)) return 2;
  } else if (rn_run_wanted(j, OUT_SCALE) || j->scale_given) {
    return rn_trouble("run", "scales are for --quant. Try: --quant fp8-row");
  }
  if (rn_run_wanted(j, OUT_RESIDUAL)) {
    /* The promoted type, which is also what round_sum STORED uses when nothing is written: asking for this output
     * does not change the others. */
    if (j->residual_spec == NULL) return rn_trouble("run", "--residual-out needs --residual");
    if (!make_output(j, OUT_RESIDUAL, promote(x->dtype, j->residual.dtype), x->rank, x->shape)) return 2;
    a->residual_out = output_like_x(&j->out[OUT_RESIDUAL].tensor, a);
  }
  if (rn_run_wanted(j, OUT_RSTD)) {
    int64_t shape[RN_RANK_MAX];
    int rank = x->rank - 1;
    memcpy(shape, x->shape, sizeof shape);
    if (a->groups > 1) shape[rank++] = a->groups;
    if (!make_output(j, OUT_RSTD, x->dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32, rank, shape))
      return 2;
    a->rstd = j->out[OUT_RSTD].tensor.data;
  }
  return 0;
}

static int refused(rmsnorm_status status) {
  const char *why = rmsnorm_last_error();
  return rn_trouble("run", "%s", *why ? why : rmsnorm_status_string(status));
}

/* What was asked for and has no effect, or is lost. */
static void print_notes(const rn_job *j) {
  if (j->offset_given && j->weight_spec == NULL) fprintf(stderr, "note: --offset does nothing without --weight\n");
  if (j->out[OUT_Q].spec != NULL && j->args.quant.scale_out != NULL && !rn_run_wanted(j, OUT_SCALE))
    fprintf(stderr, "note: the scales of --quant %s are not kept; --scale-out FILE writes them\n", j->quant_name);
}

static int explain(const rn_job *j) {
  char text[4096];
  const rmsnorm_status status = rmsnorm_explain(RMSNORM_OP_FORWARD, &j->args, text, sizeof text);
  if (status != RMSNORM_OK && status != RMSNORM_ERROR_BUFFER) return refused(status);
  printf("%s%s", text, *text && text[strlen(text) - 1] != '\n' ? "\n" : "");
  return 0;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The call. It is made again, up to three times within a second, and the fastest is reported: the first one also pays
 * for starting the threads. */
static int call(rn_job *j) {
  rmsnorm_status status = rmsnorm_impl_for(RMSNORM_OP_FORWARD, &j->args, &j->impl);
  if (status != RMSNORM_OK) return refused(status);
  const int on_device = j->where.device == RMSNORM_DEVICE_CPU ? 0 : rn_run_on_device(j);
  if (on_device != 0) return on_device;
  double total = 0;
  for (int i = 0; i < 4 && total < 1 && j->where.device == RMSNORM_DEVICE_CPU; i++) {
    const double start = now();
    status = rmsnorm_forward(&j->args, NULL);
    const double seconds = now() - start;
    if (status != RMSNORM_OK) return refused(status);
    if (i == 0 || seconds < j->seconds) j->seconds = seconds;
    total += seconds;
  }
  const rn_tensor *in[] = {&j->x, &j->residual, &j->gate, &j->weight};
  for (size_t i = 0; i < sizeof in / sizeof *in; i++)
    if (in[i]->data != NULL) j->bytes += (double)in[i]->count * in[i]->item_bytes;
  for (int i = 0; i < OUTS; i++)
    if (j->out[i].tensor.data != NULL) j->bytes += (double)j->out[i].tensor.count * j->out[i].tensor.item_bytes;
  return 0;
}

static int work(rn_job *j) {
  rmsnorm_forward_args *a = &j->args;
  int status;
  if (!read_input(j, j->weight_spec, &j->weight, &j->facts)) return 2;
  if (!j->eps_given) return missing_eps(j);
  if (!read_input(j, j->x_spec, &j->x, NULL) || !read_input(j, j->residual_spec, &j->residual, NULL) ||
      !read_input(j, j->gate_spec, &j->gate, NULL))
    return 2;
  if (j->dtype && !j->x.assumed && !j->weight.assumed && !j->residual.assumed && !j->gate.assumed)
    return rn_trouble("run",
                      "--dtype %s: every input names its own type (x is %s), there is nothing to assume. Leave --dtype "
                      "away; for the type of the result there is --out-dtype",
                      rmsnorm_dtype_name(j->dtype), rmsnorm_dtype_name(j->x.dtype));
  if (a->groups < 1) return rn_trouble("run", "--groups: expected 1 or more");
  if ((status = take_shapes(j)) != 0) return status;
  if (j->gate_spec != NULL && a->numerics.gate == RMSNORM_GATE_NONE)
    return rn_trouble("run", "--gate needs its activation, and %s has none. Try: --gate-act silu",
                      j->preset ? "this preset" : "a run without preset");
  if (j->gate_spec == NULL && a->numerics.gate != RMSNORM_GATE_NONE)
    return rn_trouble("run", "%s wants a gate. Try: --gate FILE, or --gate-act none",
                      j->preset ? "this preset" : "--gate-act");
  settle_offset(j);
  a->device = j->where.device;
  a->x = input(&j->x, a);
  if (j->residual_spec != NULL) a->residual = input(&j->residual, a);
  if (j->gate_spec != NULL) a->gate = input(&j->gate, a);
  if ((status = make_outputs(j)) != 0 || (status = rn_run_targets(j)) != 0) return status;
  print_notes(j);
  if (j->explain && (status = explain(j)) != 0) return status;
  bool any = false;
  for (int i = 0; i < OUTS; i++) any = any || rn_run_wanted(j, i);
  if (!any) return 0;
  if ((status = call(j)) != 0 || (status = rn_run_write(j)) != 0) return status;
  const int answer = rn_run_compare(j);
  if (answer == 2) return 2;
  rn_run_report(j);
  return answer;
}

int rn_cmd_run(int argc, char **argv) {
  static const char *const names[OUTS] = {"y", "q", "scale", "residual_out", "rstd"};
  rn_job j;
  memset(&j, 0, sizeof j);
  j.args = RMSNORM_FORWARD_ARGS_INIT;
  j.facts.eps = -1;
  for (int i = 0; i < OUTS; i++) j.out[i].name = names[i];
  int status = rn_run_options(&j, argc, argv);
  if (status < 0) status = work(&j);
  rn_tensor *all[] = {&j.x, &j.weight, &j.residual, &j.gate};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) rn_tensor_free(all[i]);
  for (int i = 0; i < OUTS; i++) rn_tensor_free(&j.out[i].tensor);
  return status;
}
