/* diff_parts.h - what the parts of the diff engine share: a model (the staged model with its parameters laid open), the
 * entries of the table, and the search.
 *
 *   diff_table.c      every hypothesis: its texts and the models it proposes
 *   diff_weights.c    the proposals about weights, diff_rows.c those about rows and their inputs
 *   diff_statistic.c  rstd of a row under a model, and the proposals about it
 *   diff_model.c      one row under a model
 *   diff_fit.c        the rstd that theirs must have used, found from the row itself
 *   diff_search.c     which model explains theirs; diff_confirm.c whether it does on all rows
 *   diff_quant.c, diff_gradient.c   the same for quantised outputs and for gradients
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_DIFF_PARTS_H
#define RN_CLI_DIFF_PARTS_H

#include "diff.h"
#include "reference.h"

enum { RN_FAULTS_MOST = 3 }; /* what a search may hold on its way; a verdict names two */

typedef struct rn_model rn_model;
typedef struct rn_diff rn_diff;
typedef struct rn_proposals rn_proposals;

/* Which part of the model an entry changes; the search settles one after the other. */
typedef enum rn_axis {
  RN_AXIS_BENIGN,
  RN_AXIS_INPUT,
  RN_AXIS_WEIGHT,
  RN_AXIS_LAST, /* a weight that is not known: when nothing else will do */
  RN_AXIS_ROUNDING,
  RN_AXIS_STATISTIC,
  RN_AXIS_COVERAGE,
  RN_AXIS_QUANTISER,
  RN_AXIS_GRADIENT
} rn_axis;

typedef struct rn_entry {
  rn_hypothesis text;
  rn_axis axis;
  const char *sentence; /* of the verdict; {name} is a parameter of the model, {note} its note */
  /* Puts models that are `from` with this mistake made into the list. NULL: found by its axis as a whole. */
  void (*propose)(const rn_diff *d, const rn_model *from, rn_proposals *list);
} rn_entry;

/* ---- the model ---- */

/* What is normalised: h, out of x and the residual r. */
typedef enum rn_source_kind {
  RN_SOURCE_SUM,            /* x + r */
  RN_SOURCE_X,              /* r is forgotten */
  RN_SOURCE_RESIDUAL,       /* x is forgotten: r already holds the sum */
  RN_SOURCE_RESIDUAL_TWICE, /* x + 2 r */
  RN_SOURCE_X_TWICE         /* 2 x + r: r already held the sum */
} rn_source_kind;

typedef enum rn_eps_place { RN_EPS_INSIDE, RN_EPS_OUTSIDE, RN_EPS_AT_LEAST } rn_eps_place;

/* How a sum of squares is formed. */
typedef enum rn_sum_scheme {
  RN_SUM_EXACT,    /* whatever order, to the bound of float32 */
  RN_SUM_LANES,    /* float32, `lanes` strided partial sums added as a tree; 1: one after the other */
  RN_SUM_SQUARES,  /* squares rounded to stat_dtype, their sum exact, mean and rstd rounded as stat_rounds says */
  RN_SUM_NARROW,   /* the sum itself kept in stat_dtype, in `lanes` partial sums */
  RN_SUM_F32_RANGE /* float32 without a second pass: infinite past its largest number */
} rn_sum_scheme;

typedef enum rn_root {
  RN_ROOT_RIGHT,
  RN_ROOT_BARE,     /* 1 / 0 is infinite: a row of zeros is NaN */
  RN_ROOT_ONE,      /* nothing is normalised */
  RN_ROOT_QUAKE,    /* the integer trick and one step of Newton's method */
  RN_ROOT_QUAKE2,   /* and two steps */
  RN_ROOT_ESTIMATE, /* an estimate of the hardware: anything within 1.5 * 2^-12 */
  RN_ROOT_NARROW    /* a sum in stat_dtype, in an order that is not known: anything within its bound */
} rn_root;

typedef enum rn_weight_kind {
  RN_WEIGHT_PLAIN,
  RN_WEIGHT_NONE,
  RN_WEIGHT_SHIFTED,  /* weight[c + param] */
  RN_WEIGHT_STRIDED,  /* weight[c * param] */
  RN_WEIGHT_REPEATED, /* weight[c % param] */
  RN_WEIGHT_BLOCKED,  /* weight[c / param] */
  RN_WEIGHT_REVERSED,
  RN_WEIGHT_SQUARED,
  RN_WEIGHT_AGAIN,  /* y, already rounded, is multiplied by it once more */
  RN_WEIGHT_OTHER,  /* others[param] */
  RN_WEIGHT_HEAD,   /* that of head + param */
  RN_WEIGHT_BY_ROW, /* weight[row] for the whole row */
  RN_WEIGHT_BYTES,  /* its bytes read as elements of type param */
  RN_WEIGHT_FREE    /* what theirs must have used, column by column */
} rn_weight_kind;

struct rn_model {
  const rn_entry *fault[RN_FAULTS_MOST];
  int faults;
  rn_diff_parameter parameters[RN_DIFF_PARAMETERS];
  int parameter_count;
  char note[RN_FAULTS_MOST][128]; /* words for the sentence of each fault */
  const char *order_note;         /* of another order of the product */
  /* input */
  rn_source_kind source;
  int sum_dtype;
  int gate, gate_place;
  double act_error; /* relative, of the activation: another library's exponential is not ours */
  bool centred, flush, twice;
  int transposed;             /* heads and rows have changed places: 1 in x, 2 in theirs */
  int64_t row_base, row_step; /* row r begins at element row_base + r * row_step of x */
  /* statistic */
  rn_source_kind stat_source;
  int stat_sum_dtype;
  double eps, divisor; /* divisor 0: as many as there are columns */
  rn_eps_place eps_place;
  int64_t groups, columns, overrun; /* columns 0: all; overrun: elements of the next row that are counted too */
  bool stat_centred;
  rn_sum_scheme scheme;
  int stat_dtype, lanes;
  int stat_rounds; /* bits: 1 the mean is rounded to stat_dtype, 2 also mean + eps and rstd */
  double nudge;    /* relative, of the mean before it is rounded to stat_dtype: near a tie it may go either way */
  rn_root root;
  /* weight */
  rn_weight_kind weight;
  int64_t weight_param;
  double offset, origin_offset; /* origin: of the base it grew out of */
  bool offset_narrow;           /* 1 + w is rounded to the type of w */
  /* rounding */
  rn_stages stages;
  int out_dtype;
  double (*out_narrow)(int dtype, double value);
  /* coverage */
  int64_t rows_written, cols_written;
};

/* Ways of rounding other than rn_ref_round. */
double rn_narrow_truncate(int dtype, double value);
double rn_narrow_away(int dtype, double value);
double rn_narrow_flush(int dtype, double value);

void rn_model_parameter(rn_model *m, const char *name, double value);
/* The note of the last fault. */
void rn_model_note(rn_model *m, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* ---- proposals ---- */

enum { RN_PROPOSALS_MOST = 512 };
struct rn_proposals {
  const rn_entry *entry; /* whose turn it is */
  rn_model *model;
  double *score;
  int count;
};
/* rn_propose - append a copy of `from` with one more fault, that of list->entry; NULL when the list is full or the
 * model has as many as it may. The caller changes the copy. */
rn_model *rn_propose(rn_proposals *list, const rn_model *from);
bool rn_proposals_make(rn_proposals *list);
void rn_proposals_free(rn_proposals *list);
/* All proposals of an axis from this model. */
void rn_propose_axis(const rn_diff *d, rn_axis axis, const rn_model *from, rn_proposals *list);

extern const rn_entry rn_entries[];
const rn_entry *rn_entry_named(const char *name);

/* ---- one comparison ---- */

enum { RN_BASES_MOST = 32, RN_SAMPLE_MOST = 64, RN_FIT_COLS = 224 };

/* The rstd that theirs must have used in one row (one group of it). */
typedef struct rn_fit {
  double low, high; /* any rstd between them gives the most elements theirs' bits; low > high: there is none */
  int covered, usable;
} rn_fit;

struct rn_diff {
  const rn_diff_input *in;
  const rn_diff_options *options;
  int64_t rows, cols;                             /* rows: those of all heads */
  int real;                                       /* the type arithmetic is done in */
  int x_type, residual_type, weight_type, y_type; /* effective: an f32 file may hold nothing but bf16 values */
  int digits;                                     /* the fewest mantissa bits of these types */
  double close;                                   /* relative: what roundings alone can do to an element */
  rmsnorm_numerics base_numerics[RN_BASES_MOST];
  rn_model base[RN_BASES_MOST]; /* what is no mistake: the numerics asked for, or those of the presets */
  int bases;
  int64_t sample[RN_SAMPLE_MOST]; /* rows to look at, the most telling ones first */
  int samples;
  int64_t *fit_col; /* columns to look at in a fit */
  int fit_cols;
  double *free_weight; /* RN_WEIGHT_FREE */
  double free_slack;   /* how well that is known, relative */
  /* scratch: one row */
  double *u, *w, *stat_u, *squares;
  bool *known;
  const rn_model *w_of; /* whose weights w holds, and of which head */
  int64_t w_head;
  void *converted[4];  /* x, residual, weight, gate in the types that they are of */
  double began, drawn; /* the progress bar */
  rn_fit *target;      /* the statistic search: [samples][groups] */
  int64_t target_groups, target_groups_most;
  bool stale[RN_SAMPLE_MOST]; /* sample rows that hold something else altogether */
  const rn_model *taken;      /* whose fits those are; NULL: of none */
  double fit_slack;
  bool plain;        /* the statistic is to be explained without a mistake */
  bool pairs, loose; /* also two mistakes; also an rstd that only lies within a wide bound */
  double *cache;     /* [samples][cols]: the rows that are normalised, for the search of the statistic */
};

double rn_diff_theirs(const rn_diff *d, int64_t row, int64_t col);

/* ---- diff_model.c ---- */
/* The row as it is normalised, into u; what is beyond x is NaN and unknown. Returns how far off another order of
 * summation may have made each u (a mean was removed), absolutely. */
double rn_model_row(rn_diff *d, const rn_model *m, int64_t row, double *u);
/* weight + offset of every column into d->w, and whether it is known into d->known. False: there is none. */
bool rn_model_weights(rn_diff *d, const rn_model *m, int64_t row);
/* One element, rounded to theirs' type. */
double rn_model_value(const rn_diff *d, const rn_model *m, int64_t row, int64_t col, double u, double rstd,
                      bool weighted);
bool rn_same(double a, double b);
/* a - b in units of the last place of theirs' type. */
double rn_ulps(const rn_diff *d, double a, double b);

/* ---- diff_statistic.c ---- */
#define RN_NUDGE 0x1p-17 /* more than any order of a float32 sum moves a mean */
/* rstd of one group of a row under the model. u is that of rn_model_row. */
double rn_model_rstd(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u);
/* How far, relatively, float32 in another order may be from it. */
double rn_model_rstd_bound(const rn_diff *d, const rn_model *m);
double rn_unit(const rn_diff *d); /* the rounding of one operation, relative */
/* The square sum theirs' rstd stands for in sample i, as an interval, widened by what float32 may lose. */
bool rn_target_mean(const rn_diff *d, const rn_model *m, int i, double *low, double *high);
void rn_propose_eps(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_eps_default(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_divisor(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_tail(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_overrun(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_narrow(const rn_diff *d, const rn_model *from, rn_proposals *list);

/* ---- diff_fit.c ----
 * unsure: what rn_model_row returned; slack: relative, for all elements. thorough: look at many elements even where
 * they do not agree. */
rn_fit rn_fit_row(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u, double slack,
                  double unsure, bool thorough);
double rn_model_slack(const rn_diff *d, const rn_model *m);
/* How far, relatively, another library's activation may be from ours; 0 without a gate. */
double rn_model_act_bound(const rn_diff *d, const rn_model *m);
/* Narrows [*low, *high] to where as many elements as possible, one after the other, have theirs' bits. */
void rn_fit_within(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u, double slack,
                   double unsure, double *low, double *high);
/* The share of elements that are ours times one factor, as far as roundings allow; *spread: their mean distance. */
double rn_closeness(rn_diff *d, const rn_model *m, int rows, double *spread);

/* ---- proposals of their own files ---- */
void rn_propose_weights_shift(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_stride(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_repeat(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_other(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_bytes(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_offset(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_weights_free(const rn_diff *d, const rn_model *from, rn_proposals *list);
void rn_propose_rows(const rn_diff *d, const rn_model *from, rn_proposals *list);

/* ---- diff_engine.c ---- */
/* The model of these numerics, without a mistake. */
rn_model rn_model_from(const rn_diff *d, const rmsnorm_numerics *n);

/* ---- diff_rounding.c ---- */
/* This model under every way of rounding: those that are no mistake first. */
void rn_roundings(const rn_diff *d, const rn_model *from, rn_proposals *list);

/* ---- diff_confirm.c ---- */
/* The rows that a model is held against; the first two kinds stop when it can not be right any more. */
typedef enum rn_confirm_rows { RN_CONFIRM_SAMPLE, RN_CONFIRM_UNTIL_WRONG, RN_CONFIRM_ALL } rn_confirm_rows;
typedef struct rn_confirmed {
  rn_diff_match match;
  rn_diff_evidence evidence;     /* theirs against the model, every row with the rstd that fits it */
  double units;                  /* the furthest that such an rstd is from the model's, in units of the arithmetic */
  bool nominal;                  /* all bits with the model's own rstd */
  int64_t rows_wrong, rows_gone; /* rows with an element outside; those where most are */
  int64_t first_wrong, last_right;
} rn_confirmed;
/* The rows that count, under a model. */
bool rn_confirm(rn_diff *d, const rn_model *m, rn_confirm_rows which, rn_confirmed *c);
void rn_progress(const rn_diff *d, double share);

/* ---- diff_search.c, diff_explain.c ---- */
void rn_search_forward(rn_diff *d, rn_diff_result *result);
/* The statistic of a model whose inputs, weights and roundings are settled. Fills `list` with models that fit, best
 * first; false: none does. */
bool rn_search_statistic(rn_diff *d, const rn_model *m, rn_proposals *list);
void rn_explain_model(const rn_diff *d, const rn_model *m, const rn_confirmed *c, rn_diff_explanation *to);

/* ---- diff_quant.c, diff_gradient.c ---- */
void rn_search_quant(rn_diff *d, rn_diff_result *result);
void rn_search_gradient(rn_diff *d, rn_diff_result *result);

#endif /* RN_CLI_DIFF_PARTS_H */
