/* diff.h - why two RMSNorms differ: the engine behind `rmsnorm diff`, also called by `rmsnorm bisect`.
 *
 * Somebody's output ("theirs") and the inputs it was made from go in; out comes which of the known mistakes and
 * roundings explains every element of it. What is known stands in one table (diff_table.c): `rmsnorm diff --list`
 * prints it, docs/diagnosis.md is the same catalogue.
 *
 * An explanation is a model: the staged model of reference.h with one or two of its parameters changed. It holds when
 * every element of theirs is what that model gives, to the bit, or lies where float32 arithmetic in another order of
 * summation may have taken it. One element outside, and it does not hold. So noise and unrelated tensors stay
 * unexplained.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_DIFF_H
#define RN_CLI_DIFF_H

#include "rmsnorm.h"

#include <stdbool.h>
#include <stdio.h>

/* ---- the catalogue ---- */

/* One line of the catalogue. All text is static, one or two sentences, without a newline. */
typedef struct rn_hypothesis {
  const char *name;    /* "eps", "mean-removed", ...: stable, for scripts */
  const char *kind;    /* "rounding", "statistic", "input", "weight", "coverage", "quantiser", "gradient", "benign" */
  const char *symptom; /* what is seen in the numbers */
  const char *cause;   /* what their code does */
  const char *check;   /* how to make sure */
  const char *fix;     /* what to change */
} rn_hypothesis;

/* rn_hypothesis_at - entry i of the catalogue, NULL past the last. */
const rn_hypothesis *rn_hypothesis_at(int i);

/* ---- what goes in ---- */

/* A packed tensor; data == NULL: absent. */
typedef struct rn_diff_tensor {
  const void *data;
  int dtype; /* rmsnorm_dtype */
} rn_diff_tensor;

/* Another weight that theirs may have used by mistake: that of another layer. */
typedef struct rn_diff_weight {
  const char *name;
  rn_diff_tensor tensor; /* of the same count as the weight */
} rn_diff_weight;

/* The last stage of a comparison of dx and dweight is told apart by what theirs is. */
typedef enum rn_diff_subject { RN_DIFF_Y, RN_DIFF_Q, RN_DIFF_DX, RN_DIFF_DWEIGHT } rn_diff_subject;

typedef struct rn_diff_input {
  rn_diff_subject subject;
  int64_t rows, heads, cols; /* every (row, head) pair is one row to normalise; rows >= 1 */
  rn_diff_tensor theirs;     /* required: [rows, heads, cols]; dweight: as the weight. Q: codes, their dtype in quant */
  rn_diff_tensor reference;  /* or absent: what they are compared with, same shape as theirs */
  rn_diff_tensor x;          /* required: [rows, heads, cols] */
  rn_diff_tensor residual;   /* or absent, as x */
  rn_diff_tensor gate;       /* or absent, as x; numerics.gate says which activation is expected */
  rn_diff_tensor weight;     /* or absent */
  int weight_shape;          /* rmsnorm_weight_shape */
  rn_diff_tensor dy;         /* DX and DWEIGHT: required */
  rn_diff_tensor dresidual;  /* DX, or absent: the gradient that arrives through the returned sum */
  rn_diff_tensor scale;      /* Q: their scales (f32; MX: e8m0 codes), as many as quant says */
  rmsnorm_quant quant;       /* Q: what was asked for: granularity, block_cols, scale_op, scale_layout, q.dtype */
  const rn_diff_weight *others;
  int other_count;
  double eps;              /* what ours uses; negative: not known, the usual ones are tried */
  int64_t groups, divisor; /* 0 = 1 and cols / groups */
  const char *preset;      /* its name for the verdict, or NULL */
  bool numerics_given;     /* false: any of the presets will do, none of them counts as a mistake */
  rmsnorm_numerics numerics;
} rn_diff_input;

typedef struct rn_diff_options {
  bool pairs;     /* also two mistakes at once */
  FILE *progress; /* NULL, or where a bar is drawn once a second has passed */
} rn_diff_options;

#define RN_DIFF_OPTIONS_INIT ((rn_diff_options){true, NULL})

/* ---- what comes out ---- */

typedef enum rn_diff_verdict {
  RN_DIFF_EQUAL,      /* all bits are those of the library with what was asked for */
  RN_DIFF_BENIGN,     /* no mistake: another order of summation or of multiplication, within the computed bound */
  RN_DIFF_EXPLAINED,  /* the mistakes of explanation[0] account for every element */
  RN_DIFF_UNEXPLAINED /* nothing known does */
} rn_diff_verdict;

typedef enum rn_diff_match {
  RN_DIFF_ALL_BITS, /* every element that the model determines has its bits */
  RN_DIFF_WITHIN,   /* every element is within `ulp` of it, which float32 in another order may cost */
  RN_DIFF_PARTLY    /* some elements are outside: not an explanation, only the nearest one */
} rn_diff_match;

/* How theirs differs from a model (or from the reference), element by element. Signed ulp: theirs - model. */
typedef struct rn_diff_evidence {
  int64_t elements;    /* compared */
  int64_t unknown;     /* not compared: the model says nothing of them (a weight read past its end, ...) */
  int64_t differ;      /* with other bits (a NaN equals every NaN) */
  int64_t outside;     /* further off than the arithmetic allows */
  int64_t rows_differ; /* rows and columns with an element that differs */
  int64_t cols_differ;
  int64_t first_row, first_col; /* the first element that differs; -1: none */
  double first_theirs, first_model;
  double max_ulp;  /* the largest distance, in ulp of theirs' type; infinite: a NaN or infinity on one side */
  double mean_ulp; /* mean signed distance of all finite elements */
} rn_diff_evidence;

enum { RN_DIFF_TEXT = 512, RN_DIFF_EXPLANATIONS = 5, RN_DIFF_HYPOTHESES = 2, RN_DIFF_PARAMETERS = 8 };

/* A number that was found: {"eps", 1e-5}. */
typedef struct rn_diff_parameter {
  char name[24];
  double value;
} rn_diff_parameter;

typedef struct rn_diff_explanation {
  const rn_hypothesis *hypothesis[RN_DIFF_HYPOTHESES]; /* [0] NULL: nothing but the named roundings */
  int count;                                           /* of hypotheses */
  rn_diff_match match;
  bool wider;                  /* computed in float64 where float32 is the rule */
  char preset[24];             /* the preset with these roundings, "" when there is none of that name */
  char roundings[96];          /* the same in words: "x-hat to bf16, then the weight" */
  char sentence[RN_DIFF_TEXT]; /* the verdict: "mean was removed: this is LayerNorm" */
  char fix[RN_DIFF_TEXT];      /* what to change */
  rn_diff_parameter parameters[RN_DIFF_PARAMETERS];
  int parameter_count;
  double units;     /* how far rstd had to be moved within that bound, in units of float32's rounding, 2^-24 */
  double bound_ulp; /* WITHIN: the largest distance that the bound allows, in ulp of theirs' type */
  rn_diff_evidence evidence;
} rn_diff_explanation;

typedef struct rn_diff_result {
  rn_diff_verdict verdict;
  char sentence[RN_DIFF_TEXT]; /* one line for a person */
  rn_diff_evidence evidence;   /* against the reference where there is one, otherwise against the library */
  rn_diff_explanation explanation[RN_DIFF_EXPLANATIONS]; /* best first; UNEXPLAINED: the nearest ones, PARTLY */
  int count;
  void *ours; /* what evidence compares with, packed, of theirs' shape and type `ours_dtype`; rn_diff_free frees it */
  int ours_dtype;
} rn_diff_result;

/* rn_diff_explain - 0, or 2 after one message on stderr (memory, an input that is not there). The result needs
 * rn_diff_free in either case. */
int rn_diff_explain(const rn_diff_input *input, const rn_diff_options *options, rn_diff_result *result);
void rn_diff_free(rn_diff_result *result);

/* rn_diff_print - the result as text for people; rn_diff_json - as one JSON object, without a newline. `command` names
 * the caller in the JSON. */
void rn_diff_print(FILE *out, const rn_diff_result *result);
void rn_diff_json(FILE *out, const char *command, const rn_diff_result *result);

#endif /* RN_CLI_DIFF_H */
