/* diff_table.c - the hypotheses, one entry each: what is seen, what theirs does, how to make sure, what to change;
 * which part of the model it concerns, and the models it proposes. A new mistake is one more entry.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list of proposals ---- */

bool rn_proposals_make(rn_proposals *list) {
  memset(list, 0, sizeof *list);
  list->model = malloc(sizeof *list->model * RN_PROPOSALS_MOST);
  list->score = malloc(sizeof *list->score * RN_PROPOSALS_MOST);
  if (list->model && list->score) return true;
  rn_proposals_free(list);
  return false;
}

void rn_proposals_free(rn_proposals *list) {
  free(list->model), free(list->score);
  memset(list, 0, sizeof *list);
}

rn_model *rn_propose(rn_proposals *list, const rn_model *from) {
  if (list->count == RN_PROPOSALS_MOST || from->faults == RN_FAULTS_MOST) return NULL;
  rn_model *m = &list->model[list->count++];
  *m = *from;
  m->note[m->faults][0] = 0;
  m->fault[m->faults++] = list->entry;
  return m;
}

void rn_propose_axis(const rn_diff *d, rn_axis axis, const rn_model *from, rn_proposals *list) {
  for (const rn_entry *e = rn_entries; e->text.name; e++) {
    if (e->axis != axis || !e->propose) continue;
    bool made = false; /* one mistake is not made twice */
    for (int i = 0; i < from->faults; i++) made = made || from->fault[i] == e;
    list->entry = e;
    if (!made) e->propose(d, from, list);
  }
}

void rn_model_parameter(rn_model *m, const char *name, double value) {
  if (m->parameter_count == RN_DIFF_PARAMETERS) return;
  rn_diff_parameter *p = &m->parameters[m->parameter_count++];
  snprintf(p->name, sizeof p->name, "%s", name);
  p->value = value;
}

void rn_model_note(rn_model *m, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(m->note[m->faults - 1], sizeof m->note[0], format, list);
  va_end(list);
}

const rn_entry *rn_entry_named(const char *name) {
  for (const rn_entry *e = rn_entries; e->text.name; e++)
    if (strcmp(e->text.name, name) == 0) return e;
  return NULL;
}

const rn_hypothesis *rn_hypothesis_at(int i) {
  int count = 0;
  while (rn_entries[count].text.name) count++;
  return i >= 0 && i < count ? &rn_entries[i].text : NULL;
}

/* ---- proposals that only set something ---- */

#define PROPOSE(name) static void name(const rn_diff *d, const rn_model *from, rn_proposals *list)

static rn_model *when(bool holds, rn_proposals *list, const rn_model *from) {
  return holds ? rn_propose(list, from) : NULL;
}

PROPOSE(source) {
  static const struct {
    const char *name;
    rn_source_kind source;
  } kinds[] = {{"residual-ignored", RN_SOURCE_X},
               {"residual-clobbered", RN_SOURCE_RESIDUAL},
               {"residual-twice", RN_SOURCE_RESIDUAL_TWICE},
               {"x-twice", RN_SOURCE_X_TWICE}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, list->entry->text.name) != 0) continue;
    rn_model *m = when(d->in->residual.data != NULL && from->source == RN_SOURCE_SUM, list, from);
    if (m) m->source = m->stat_source = kinds[i].source;
  }
}

PROPOSE(mean_removed) {
  rn_model *m = when(!from->stat_centred && d->cols > 1, list, from);
  if (m) m->centred = true;
}
PROPOSE(variance) {
  rn_model *m = when(!from->centred && d->cols > 1, list, from);
  if (m) m->stat_centred = true;
}
PROPOSE(twice) {
  (void)d;
  rn_model *m = when(from->groups == 1 && !from->centred, list, from);
  if (m) m->twice = true;
}
PROPOSE(groups) {
  for (int64_t g = 2; g <= 128 && from->groups == 1; g += g < 8 ? 1 : g) {
    rn_model *m = when(d->cols % g == 0 && d->cols / g >= 4, list, from);
    if (!m) continue;
    m->groups = g;
    rn_model_parameter(m, "groups", (double)g);
    rn_model_parameter(m, "width", (double)(d->cols / g));
  }
}
PROPOSE(groups_missing) {
  (void)d;
  rn_model *m = when(from->groups > 1, list, from);
  if (m) m->groups = 1;
}
PROPOSE(gate) {
  for (int kind = 0; kind < 3; kind++)
    for (int place = 0; place < (kind ? 2 : 1); place++) {
      bool same = kind == from->gate && (!kind || place == from->gate_place);
      rn_model *m = when(d->in->gate.data && !same, list, from);
      static const char *const names[] = {"no gate", "silu", "sigmoid"};
      if (!m) continue;
      m->gate = kind, m->gate_place = place;
      rn_model_note(m, "%s%s", names[kind], !kind ? "" : place ? " before the norm" : " after the norm");
    }
}
PROPOSE(flush) {
  (void)d;
  rn_model *m = when(!from->flush, list, from);
  if (!m) return;
  m->flush = true, m->out_narrow = rn_narrow_flush, m->stages.narrow = rn_narrow_flush;
}

PROPOSE(weight_missing) {
  rn_model *m = when(d->in->weight.data && from->weight == RN_WEIGHT_PLAIN, list, from);
  if (m) m->weight = RN_WEIGHT_NONE;
}
PROPOSE(weight_squared) {
  rn_model *m = when(d->in->weight.data && from->weight == RN_WEIGHT_PLAIN, list, from);
  if (m) m->weight = RN_WEIGHT_SQUARED;
  m = when(d->in->weight.data && from->weight == RN_WEIGHT_PLAIN, list, from);
  if (!m) return;
  m->weight = RN_WEIGHT_AGAIN;
  rn_model_note(m, ", the second time to the rounded result: by the caller");
}
PROPOSE(offset_narrow) {
  bool narrow = d->weight_type == RMSNORM_DTYPE_F16 || d->weight_type == RMSNORM_DTYPE_BF16;
  rn_model *m = when(d->in->weight.data && from->offset != 0 && narrow && !from->offset_narrow, list, from);
  if (m) m->offset_narrow = true;
}

PROPOSE(eps_place) {
  static const double usual[] = {1e-6, 1e-5, 1e-8, 1e-12, 1e-3};
  bool floor = strcmp(list->entry->text.name, "eps-floor") == 0;
  (void)d;
  for (int i = -1; i < 5 && from->eps_place == RN_EPS_INSIDE; i++) {
    rn_model *m = when(i < 0 ? from->eps > 0 : usual[i] != from->eps, list, from);
    if (!m) continue;
    m->eps_place = floor ? RN_EPS_AT_LEAST : RN_EPS_OUTSIDE;
    if (i >= 0) m->eps = usual[i];
    rn_model_parameter(m, "eps", m->eps);
  }
}
PROPOSE(root) {
  static const struct {
    const char *name;
    rn_root root;
  } kinds[] = {{"fast-inverse-root", RN_ROOT_QUAKE},
               {"fast-inverse-root", RN_ROOT_QUAKE2},
               {"not-normalised", RN_ROOT_ONE},
               {"zero-row", RN_ROOT_BARE}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, list->entry->text.name) != 0) continue;
    rn_model *m = when(from->root == RN_ROOT_RIGHT && (kinds[i].root != RN_ROOT_BARE || from->eps == 0), list, from);
    if (m) m->root = kinds[i].root;
    if (m) rn_model_parameter(m, "steps", kinds[i].root == RN_ROOT_QUAKE2 ? 2 : 1);
  }
  (void)d;
}
PROPOSE(f32_range) {
  bool large = false;
  for (int i = 0; i < d->samples; i++) large = large || d->squares[i * (d->cols + 1) + d->cols] > (double)FLT_MAX;
  rn_model *m = when(large && from->scheme == RN_SUM_EXACT, list, from);
  if (m) m->scheme = RN_SUM_F32_RANGE;
}
PROPOSE(statistic_source) {
  static const rn_source_kind kinds[] = {RN_SOURCE_X, RN_SOURCE_RESIDUAL, RN_SOURCE_SUM};
  int types[] = {from->sum_dtype == d->real ? d->x_type : d->real, from->sum_dtype};
  for (int i = 0; i < 3 && d->in->residual.data; i++)
    for (int t = 0; t < 2; t++) {
      bool same = kinds[i] == from->source && types[t] == from->sum_dtype;
      rn_model *m = when(!same && (kinds[i] == RN_SOURCE_SUM || t == 1), list, from);
      static const char *const names[] = {"x alone", "the residual alone", "a sum that is not the one normalised"};
      if (!m) continue;
      m->stat_source = kinds[i], m->stat_sum_dtype = types[t];
      rn_model_note(m, "%s",
                    kinds[i] != RN_SOURCE_SUM ? names[i]
                    : types[t] == d->real     ? "the sum before it is rounded"
                                              : "the rounded sum");
    }
}
PROPOSE(order) {
  static const int lanes[] = {1, -1, 2, 4, 8, -8, 16, -16, 32, -32, 64, 128, 256, 512, 1024};
  for (size_t i = 0; i < sizeof lanes / sizeof *lanes && from->scheme == RN_SUM_EXACT && d->real == RMSNORM_DTYPE_F32;
       i++) {
    if (list->count == RN_PROPOSALS_MOST) return;
    rn_model *m = &list->model[list->count++]; /* no fault */
    *m = *from;
    m->scheme = RN_SUM_LANES, m->lanes = lanes[i];
  }
}

/* ---- the table ---- */

#define ENTRY(name, kind, axis, symptom, cause, check, fix, sentence, propose)                                         \
  { {name, kind, symptom, cause, check, fix}, axis, sentence, propose }

const rn_entry rn_entries[] = {
    ENTRY("summation-order", "benign", RN_AXIS_BENIGN,
          "a few elements differ by one unit in the last place, whole rows by the same tiny factor",
          "the squares are added in another order, which float32 rounds differently",
          "every row agrees with one rstd that lies within the computed bound; no column and no row stands out",
          "nothing: neither is more right. For equal bits everywhere use this library on both sides",
          "the same norm, with the squares added in another order", order),
    ENTRY("multiplication-order", "benign", RN_AXIS_BENIGN, "float32 outputs differ by a unit or two, without any plan",
          "x * rstd * weight is multiplied in another order, or divided by the root",
          "each row agrees with one rstd once the order is known", "nothing: the roundings are of float32 itself",
          "the same norm, with the factors of a product taken in another order ({note})", NULL),
    ENTRY("double-precision", "benign", RN_AXIS_BENIGN, "the other side is closer to exact arithmetic, never further",
          "the norm is computed in float64 and rounded once", "float64 arithmetic gives theirs to the bit",
          "nothing: a reference may well be computed so", "computed in float64 and rounded once", NULL),
    /* The switches of the model families. */
    ENTRY("round-sum", "rounding", RN_AXIS_ROUNDING,
          "with a residual about one element in three differs by one unit, more where x and residual cancel",
          "the float32 sum x + residual is normalised where the model normalises the rounded one (or the reverse)",
          "without a residual, or with a residual of zeros, the difference is gone",
          "choose round_sum: STORED for most models, NONE for kernels that keep the sum in float32", "{note}", NULL),
    ENTRY("round-rstd", "rounding", RN_AXIS_ROUNDING,
          "whole rows are off by one factor, up to half a unit of the narrow type",
          "rstd is rounded to the type of x before it is used (or is not)",
          "all elements of a row agree on an rstd that the narrow type can hold", "choose round_rstd", "{note}", NULL),
    ENTRY("round-xhat", "rounding", RN_AXIS_ROUNDING,
          "about one element in four differs by one unit, in all rows and columns alike",
          "x * rstd is rounded to the narrow type before the weight is multiplied (or is not)",
          "with a weight of ones the difference is gone",
          "choose round_xhat: X in the order of Llama, NONE in that of torch and Gemma", "{note}", NULL),
    ENTRY("round-normed", "rounding", RN_AXIS_ROUNDING,
          "the values of one side are all representable in a narrower type",
          "the weighted value is rounded to a narrower type before it is stored (or before the gate)",
          "look at the low bits of the stored values", "choose round_normed", "{note}", NULL),
    ENTRY("output-type", "rounding", RN_AXIS_ROUNDING, "float32 comes out where the model gives bf16, or the reverse",
          "a float32 weight promotes the result, or the result is cast back", "compare the types of the two files",
          "name the type of y", "{note}", NULL),
    ENTRY("truncation", "rounding", RN_AXIS_ROUNDING, "half of all elements differ by one unit, always towards zero",
          "float32 is cut off to the narrow type instead of being rounded to nearest",
          "the mean of (|theirs| - |ours|) is clearly below zero",
          "convert with round-to-nearest-even; taking the upper 16 bits of a float is not a conversion to bf16",
          "the result is cut off, not rounded to nearest", NULL),
    ENTRY(
        "ties-away", "rounding", RN_AXIS_ROUNDING, "rare differences of one unit, only where the exact value is a tie",
        "ties are rounded away from zero instead of to even", "the elements that differ are halfway between two codes",
        "add the half minus one plus the last kept bit, not a plain half", "ties are rounded away from zero", NULL),
    ENTRY("gate", "rounding", RN_AXIS_INPUT, "nothing fits but elements with a gate near its fixed points",
          "another activation, on the other side of the norm, or none", "set the gate to a constant",
          "choose the gate of the model: silu or sigmoid, before or after the norm", "theirs apply {note}", gate),
    ENTRY("flush-to-zero", "rounding", RN_AXIS_INPUT, "the smallest numbers come out as zero, all others are right",
          "subnormal numbers are flushed: -ffast-math, -ftz=true, or a processor set so",
          "every element that differs is zero in theirs and subnormal in ours",
          "build without fast-math and -ftz, or accept it: these are the smallest numbers of the type",
          "subnormal numbers are flushed to zero", flush),
    /* Inputs. */
    ENTRY("mean-removed", "input", RN_AXIS_INPUT, "a row differs the more, the further its mean is from zero",
          "the mean is subtracted before the norm: LayerNorm", "rows with mean zero agree",
          "use an RMSNorm; with a vendor's layer norm ask for its rms mode", "mean was removed: this is LayerNorm",
          mean_removed),
    ENTRY("residual-ignored", "input", RN_AXIS_INPUT, "all is right for a residual of zeros",
          "x alone is normalised; the residual was not added", "run without --residual",
          "pass the residual, or add it first", "the residual was not added: x alone was normalised", source),
    ENTRY("residual-clobbered", "input", RN_AXIS_INPUT, "theirs is the norm of the residual as it was dumped",
          "the residual was overwritten in place by the sum before it was dumped, or x was forgotten",
          "dump the residual before the call",
          "compare with the residual from before the call; write the sum to a buffer of its own",
          "x plays no part: the residual given is what was normalised (it already holds the sum, overwritten in place)",
          source),
    ENTRY("residual-twice", "input", RN_AXIS_INPUT, "theirs is the norm of x + 2 residual",
          "the residual was added twice: once into x in place, and once more by the fused kernel", "zero the residual",
          "add it in one place", "the residual was added twice", source),
    ENTRY("x-twice", "input", RN_AXIS_INPUT, "theirs is the norm of 2 x + residual",
          "the residual buffer already held the sum, clobbered in place, when x was added to it",
          "run the kernel once on fresh buffers",
          "do not reuse the residual buffer of an in-place add; restore it between runs",
          "x was added twice: the residual had been clobbered in place by an earlier add", source),
    ENTRY("row-stride", "input", RN_AXIS_INPUT, "the first row is right, later ones are rows that straddle two of ours",
          "rows are read with another distance than they have: a slice taken as contiguous, or the reverse",
          "each row of theirs is found in x at row * stride + start", "pass the row stride of this very tensor",
          "row r was read from element {start} + r * {stride} of x, not r * {cols}", rn_propose_rows),
    ENTRY("heads-transposed", "input", RN_AXIS_INPUT, "each row of theirs is one of ours, in another place",
          "heads and tokens changed places: [rows, heads] was read or written as [heads, rows]",
          "the first and the last row are right", "pass the strides of the view, or transpose it before",
          "heads and rows have changed places", rn_propose_rows),
    ENTRY("norm-twice", "input", RN_AXIS_INPUT, "the weight counts twice and the scale of x not at all",
          "a result was normalised again: fused, and then once more by the plain code",
          "with a weight of ones the second norm changes nothing", "normalise once", "the norm was applied twice",
          twice),
    ENTRY("groups", "input", RN_AXIS_INPUT, "each stretch of a row has a factor of its own",
          "every group, head or shard has its own statistic where the model has one for the whole row",
          "within each stretch the ratio to ours is constant",
          "reduce over the whole row: add the sums of squares of all shards before the root",
          "each of {groups} groups of {width} columns was normalised by itself: groups, or the local shard only",
          groups),
    ENTRY("groups-missing", "input", RN_AXIS_INPUT, "each group is off by a factor of its own",
          "one statistic for the whole row where the model has one for each group",
          "the ratio is constant within a group", "pass the number of groups",
          "the whole row shares one statistic: the groups are missing", groups_missing),
    /* The statistic. */
    ENTRY("eps-default", "statistic", RN_AXIS_STATISTIC, "as eps; in bf16 rows of small numbers are far off",
          "no eps was given, and the default is the machine epsilon of a type",
          "theirs' eps is 2^-23 (f32), 2^-10 (f16), 2^-7 (bf16) or 2^-52 (f64)", "give eps",
          "eps: theirs used {eps}, the machine epsilon of {note}, not {eps_ours}", rn_propose_eps_default),
    ENTRY("eps", "statistic", RN_AXIS_STATISTIC, "rows of small numbers differ most, rows of large ones hardly",
          "another eps", "1 / rstd^2 - mean of squares is the same number in all rows",
          "take eps from the model: rms_norm_eps in its config.json", "eps: theirs used {eps}, not {eps_ours}",
          rn_propose_eps),
    ENTRY("eps-outside", "statistic", RN_AXIS_STATISTIC, "rows differ by eps / rms, more than eps could do inside",
          "x / (sqrt(mean) + eps): eps is added after the root", "1 / rstd - rms is the same in all rows",
          "add eps to the mean of squares, under the root", "eps ({eps}) is added outside the root", eps_place),
    ENTRY("eps-floor", "statistic", RN_AXIS_STATISTIC, "only rows with an rms below eps differ, very much",
          "x / max(rms, eps), as in L2 normalisation", "all other rows are those of eps 0", "add eps under the root",
          "eps ({eps}) is only the smallest rms allowed", eps_place),
    ENTRY("divisor", "statistic", RN_AXIS_STATISTIC, "every row is off by the same factor",
          "the sum of squares is divided by another number: a padded width, the width of a shard, n - 1",
          "(ratio to ours)^2 times the width is that number",
          "divide by the number of columns that were summed, over all shards",
          "the sum of squares was divided by {divisor}, not by {divisor_ours}", rn_propose_divisor),
    ENTRY("tail-dropped", "statistic", RN_AXIS_STATISTIC, "every row is too large, by a factor of its own",
          "the last columns are missing from the sum of squares: a mask, or a loop over whole vectors",
          "the sum over the columns before them gives theirs' rstd", "handle the tail of the row",
          "columns past {column} never contributed to the statistic: tail mask", rn_propose_tail),
    ENTRY("tail-contaminated", "statistic", RN_AXIS_STATISTIC, "every row is a little too small",
          "the sum of squares runs past the end of the row, into the next one", "the last row differs from run to run",
          "mask the last vector with zeros",
          "{extra} elements past the end of each row were counted: tail contaminated", rn_propose_overrun),
    ENTRY("variance", "statistic", RN_AXIS_STATISTIC, "rows with a mean are too large, by one factor",
          "the variance is used where the mean of squares belongs; the mean itself stays in x",
          "1 / rstd^2 is the variance", "do not subtract the squared mean",
          "the variance (mean removed) is used, but x is not centred", variance),
    ENTRY("statistic-source", "statistic", RN_AXIS_STATISTIC, "rows are off by a factor, with a residual only",
          "the statistic is taken from something else than what is normalised", "without a residual all agree",
          "take the statistic and the values from the same sum", "the statistic was taken from {note}",
          statistic_source),
    ENTRY("float32-overflow", "statistic", RN_AXIS_STATISTIC, "rows of huge numbers are all zero",
          "the sum of squares overflows float32", "only rows with elements above 1e18 are concerned",
          "scale such rows by a power of two before squaring", "the sum of squares overflowed float32", f32_range),
    ENTRY("narrow-statistics", "statistic", RN_AXIS_STATISTIC,
          "rows are off by a factor of their own; large rows are zero or infinite",
          "squares, their sum, their mean or rstd are kept in half precision",
          "in f16, elements above 255 overflow; in bf16 a long sum stops growing", "accumulate in float32",
          "the statistic was taken in {note}", rn_propose_narrow),
    ENTRY("fast-inverse-root", "statistic", RN_AXIS_STATISTIC, "rows are off by up to 0.2 percent, never upwards",
          "1 / sqrt by the integer trick with few steps of Newton's method",
          "theirs' rstd is that of the trick, to the bit", "one more step, or the root of the processor",
          "1 / sqrt comes from the integer trick with {steps} step(s) of Newton's method", root),
    ENTRY("approximate-rsqrt", "statistic", RN_AXIS_STATISTIC, "rows are off by a factor within 1.5 * 2^-12",
          "the processor's estimate of 1 / sqrt is used without a step of refinement",
          "each row agrees with one rstd that is too inexact for float32", "refine it once, or divide by sqrt",
          "an approximate rsqrt: rstd is off by up to {error} relative, too much for float32", NULL),
    ENTRY("not-normalised", "statistic", RN_AXIS_STATISTIC, "theirs keeps the scale of x", "rstd is never applied",
          "theirs is x * weight", "normalise", "x was weighted but not normalised: rstd is missing", root),
    ENTRY("zero-row", "statistic", RN_AXIS_STATISTIC, "rows of zeros are NaN", "eps is 0 and 1 / 0 meets 0",
          "only rows of zeros are concerned", "an eps, or a rule for rows of zeros",
          "rows of zeros are NaN: eps is 0 and 1 / sqrt(0) is infinite", root),
    /* The weight. */
    ENTRY("offset-missing", "weight", RN_AXIS_WEIGHT, "columns with small weights are off most, down to zero",
          "the 1 of 1 + weight is missing", "theirs / x-hat is the stored weight",
          "add the offset: this family stores weight - 1", "the weight's offset of {offset_ours} is missing",
          rn_propose_weights_offset),
    ENTRY("offset-twice", "weight", RN_AXIS_WEIGHT, "columns are too large by x-hat",
          "the 1 of 1 + weight is added though it is in the weight already: folded in by a converter, or added twice",
          "theirs / x-hat is weight + {offset}", "add it in one place",
          "{offset} is added to the weight where {offset_ours} is right: the 1 was folded in twice",
          rn_propose_weights_offset),
    ENTRY("offset-narrow", "weight", RN_AXIS_WEIGHT, "columns with small weights are off by up to 2^-8",
          "1 + weight is rounded to the type of the weight", "weights below 2^-8 do nothing",
          "add the offset in float32", "1 + weight was rounded to the weight's own type", offset_narrow),
    ENTRY("weight-missing", "weight", RN_AXIS_WEIGHT, "columns are off by their weight", "no weight is applied",
          "theirs is x-hat", "pass the weight", "the weight was not applied", weight_missing),
    ENTRY("weight-squared", "weight", RN_AXIS_WEIGHT, "columns are off by their weight",
          "the weight is multiplied in twice", "theirs / x-hat is weight^2", "apply it once",
          "the weight was applied twice{note}", weight_squared),
    ENTRY("weight-shifted", "weight", RN_AXIS_WEIGHT, "columns have the weight of a neighbour",
          "the weight's base pointer is off", "theirs / x-hat is weight[c + shift]", "fix the base of the weight",
          "the weight is shifted: column c has weight[c + {shift}]", rn_propose_weights_shift),
    ENTRY("weight-stride", "weight", RN_AXIS_WEIGHT, "column c has the weight of c times a constant",
          "the weight is read with a stride", "theirs / x-hat is weight[c * stride]", "read it with stride 1",
          "weight read with stride {stride}", rn_propose_weights_stride),
    ENTRY("weight-broadcast", "weight", RN_AXIS_WEIGHT, "the same weights come again",
          "the weight is broadcast along the wrong axis or with the wrong period", "theirs / x-hat, column by column",
          "index the weight by column", "weight broadcast wrongly: {note}", rn_propose_weights_repeat),
    ENTRY("weight-other", "weight", RN_AXIS_WEIGHT, "columns are off by a factor of their own, the same in all rows",
          "the weight of another layer or another head", "it is in the same file", "load the right one",
          "the weight is that of another layer or head: {note}", rn_propose_weights_other),
    ENTRY("weight-bytes", "weight", RN_AXIS_WEIGHT, "garbage, NaN or huge numbers in every other column",
          "the bytes of the weight are read as another type", "the upper halves of f32 numbers are bf16 numbers",
          "pass the type of the weight along with its pointer", "{note}: the weight's type was lost",
          rn_propose_weights_bytes),
    ENTRY("weight-unknown", "weight", RN_AXIS_LAST, "columns are off by a factor of their own, the same in all rows",
          "another weight than the one given", "theirs / x-hat is the same in every row",
          "find out which weight it was", "all rows agree on another weight than the one given",
          rn_propose_weights_free),
    /* Coverage. */
    ENTRY("rows-unwritten", "coverage", RN_AXIS_COVERAGE, "rows up to some number are right, none after it",
          "the last block of rows was never written: the grid is too small", "fill the output with NaN before the call",
          "round the number of blocks up", "rows {row} and later were never written: last block of rows", NULL),
    ENTRY("columns-unwritten", "coverage", RN_AXIS_COVERAGE, "columns up to some number are right, none after it",
          "the tail of each row was never written", "fill the output with NaN before the call",
          "handle the tail of the row", "columns {column} and later were never written: tail of the row", NULL),
    /* Quantised outputs. */
    ENTRY("fp8-codes", "quantiser", RN_AXIS_QUANTISER, "everything is off by a factor of two",
          "the codes are e4m3fnuz and read as e4m3fn, or the reverse: the exponent is biased by one more",
          "code 0x80 is NaN in fnuz and -0 in fn", "name the fp8 type along with the bytes", "the fp8 codes are {note}",
          NULL),
    ENTRY("fp8-largest", "quantiser", RN_AXIS_QUANTISER, "scales are off by one factor, codes fill another range",
          "another largest number: 240 (fnuz) where 448 belongs, or the reverse", "scale times largest is amax",
          "use the largest number of the format",
          "scales are made for a largest value of {largest}, not {largest_ours}", NULL),
    ENTRY("scale-operation", "quantiser", RN_AXIS_QUANTISER, "few elements differ, by one code",
          "multiplied by the rounded reciprocal of the scale where it is divided by the scale, or the reverse",
          "only values near the middle of two codes differ", "choose scale_op", "{note}", NULL),
    ENTRY("scale-rounded", "quantiser", RN_AXIS_QUANTISER, "scales differ by up to half a unit of the narrow type",
          "scale and codes are made from y rounded to {note} first", "the scale times largest is a narrow number",
          "quantise the float32 value (or round it, if that is what the model does)",
          "scale and codes come from y rounded to {note} before it is quantised", NULL),
    ENTRY("saturation", "quantiser", RN_AXIS_QUANTISER, "NaN where the largest number belongs",
          "values beyond the range become NaN instead of saturating", "only the largest elements are concerned",
          "clamp before the conversion", "values beyond the largest number became NaN instead of saturating", NULL),
    ENTRY("scale-transposed", "quantiser", RN_AXIS_QUANTISER, "every scale is one of ours, in another place",
          "the scales of the groups are stored column by column and read row by row, or the reverse",
          "theirs' scales are ours transposed", "choose the layout of the scales", "the group scales are transposed",
          NULL),
    /* Gradients. */
    ENTRY("gradient-mean-term", "gradient", RN_AXIS_GRADIENT, "each row of dx is off by one constant times rstd",
          "LayerNorm's mean of the gradient is subtracted", "dx sums to zero in each row",
          "drop that term: RMSNorm does not have it", "LayerNorm's mean term is kept in dx", NULL),
    ENTRY("gradient-dot-missing", "gradient", RN_AXIS_GRADIENT, "dx is parallel to dy * weight",
          "rstd is treated as a constant", "the sum of dx * x is not zero", "subtract xhat * mean(dy * weight * xhat)",
          "the term of the statistic is missing from dx: rstd was treated as a constant", NULL),
    ENTRY("residual-gradient-missing", "gradient", RN_AXIS_GRADIENT, "dx is off by the incoming residual gradient",
          "the gradient of the returned sum is not added", "with that gradient zero all agree", "add it to dx",
          "the gradient that arrives through the residual is missing from dx", NULL),
    ENTRY("gradient-xhat-rounded", "gradient", RN_AXIS_GRADIENT, "errors of half a unit of x-hat",
          "x-hat is rounded to the narrow type before the gradients use it", "in float32 all agree",
          "keep x-hat in float32", "the gradient uses x-hat rounded to {note}", NULL),
    ENTRY("dweight-narrow", "gradient", RN_AXIS_GRADIENT, "dweight is off by much more than float32 allows",
          "the rows are summed in half precision", "the error grows with the number of rows",
          "sum dweight in float32, round once", "dweight was summed in {note}", NULL),
    ENTRY("dx-over-dy", "gradient", RN_AXIS_GRADIENT, "dx is right and dweight is not",
          "dx is written over dy before dweight has read it", "dweight is that of dx in the place of dy",
          "write dx to a buffer of its own", "dx had overwritten dy when dweight was computed", NULL),
    {{0}, RN_AXIS_BENIGN, NULL, NULL},
};
