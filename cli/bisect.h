/* bisect.h - the parts of `rmsnorm bisect`: two folders of tensors become lists (bisect_dump.c), their names become
 * norms in the order in which a model runs them (bisect_names.c), a model file gives each its weight (bisect_model.c),
 * and the norms are walked until one is at fault (bisect.c), which is then told (bisect_report.c).
 *
 * Folders and names are as untrusted as the files in them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_BISECT_H
#define RN_CLI_BISECT_H

#include "diff.h"
#include "files.h"
#include "measure.h"
#include "picture.h"

/* ---- a folder ---- */

typedef struct rn_dump_tensor {
  char *name; /* of the tensor in its file, or the path of a .npy file within the folder; both without an ending */
  char *spec; /* for rn_tensor_read */
  int rank;
  int64_t shape[RN_RANK_MAX];
} rn_dump_tensor;

typedef struct rn_dump {
  rn_dump_tensor *tensors; /* sorted by name */
  size_t count, room;
  int unreadable;       /* files with the right ending that are no such files; each had its message */
  rn_model_facts facts; /* of the last GGUF file */
} rn_dump;

/* rn_dump_open - list what is in a folder and its folders, or in one file. False: message written. Needs rn_dump_close
 * in either case. */
bool rn_dump_open(rn_dump *dump, const char *path, FILE *err);
void rn_dump_close(rn_dump *dump);

/* ---- names ---- */

typedef enum rn_role { RN_ROLE_X, RN_ROLE_RESIDUAL, RN_ROLE_WEIGHT, RN_ROLE_Y, RN_ROLES } rn_role;

/* Patterns by role: alternatives separated by commas, each with one * in the place of the norm's name. */
typedef struct rn_patterns {
  const char *of[RN_ROLES];
} rn_patterns;
extern const rn_patterns rn_patterns_usual;

/* rn_pattern_good - every alternative has exactly one *. rn_pattern_match - the name that the * of one of them stands
 * for in `text`: malloc'ed, NULL when none fits. */
bool rn_pattern_good(const char *pattern);
char *rn_pattern_match(const char *pattern, const char *text);

/* rn_name_settle - one spelling for the names that tools give to the same norm: "blk.3.attn_norm" and
 * "model.layers.3.input_layernorm" both become "layers.3.input_layernorm". sandwich: the names are GGUF's of a model
 * with norms after attention too, whose ffn_norm is another one. malloc'ed, NULL when memory is short. */
char *rn_name_settle(const char *name, bool sandwich);
bool rn_name_is_sandwich(const char *name);
/* rn_name_order - for sorting settled names: numbers by value, norms of a layer in the order a model runs them, the
 * last norm last. rn_name_alike - the same but for separators: "layer_3_input_norm", "layers.3.input_norm". */
int rn_name_order(const char *a, const char *b);
bool rn_name_alike(const char *a, const char *b);

/* ---- norms ---- */

enum { RN_SIDE_A, RN_SIDE_B, RN_SIDES };

typedef struct rn_norm {
  char *name;                           /* settled */
  const char *spec[RN_SIDES][RN_ROLES]; /* NULL = not there */
} rn_norm;

typedef struct rn_norms {
  rn_norm *at;
  size_t count;
} rn_norms;

/* rn_norms_find - the norms of two folders, sorted; only_norms: of what fits the patterns, only names that speak of a
 * norm. False: no memory, message written. The dumps have to stay. */
bool rn_norms_find(rn_norms *norms, const rn_dump dumps[RN_SIDES], const rn_patterns *patterns, bool only_norms,
                   FILE *err);
void rn_norms_free(rn_norms *norms);

/* ---- the model ---- */

typedef struct rn_checkpoint {
  rn_dump files;
  const char *pattern;
  bool sandwich;
  double eps;           /* of the GGUF file or the config.json beside the weights, negative: not known */
  const char *eps_from; /* for messages */
  bool gguf;            /* its weights want no offset */
} rn_checkpoint;

/* rn_checkpoint_open - a .safetensors or GGUF file, or a folder of them. path NULL: nothing is known. pattern: what its
 * weights are called. */
bool rn_checkpoint_open(rn_checkpoint *model, const char *path, const char *pattern, FILE *err);
void rn_checkpoint_close(rn_checkpoint *model);
/* rn_checkpoint_weight - the spec of a norm's weight, NULL = there is none. */
const char *rn_checkpoint_weight(const rn_checkpoint *model, const char *norm);

/* ---- the walk ---- */

typedef enum rn_finding {
  RN_FINDING_EQUAL,       /* outputs have the same bits */
  RN_FINDING_BENIGN,      /* outputs differ as another order of summation may differ */
  RN_FINDING_INPUTS,      /* outputs differ because inputs do: the norm itself is right */
  RN_FINDING_FAULT,       /* the norm differs, and it is known why */
  RN_FINDING_UNEXPLAINED, /* the norm differs, and nothing known explains it */
  RN_FINDING_BLIND,       /* outputs differ and there is no input to judge by */
  RN_FINDING_ONE_SIDED,   /* only one of the folders has the output */
  RN_FINDING_TROUBLE      /* not readable, or shapes do not fit; message written */
} rn_finding;

/* Of one pair of tensors, what the table of norms shows. */
typedef struct rn_step_pair {
  bool there;
  int64_t elements, differ;
  uint64_t ulp;
  double rms; /* see rn_measured */
  bool nonfinite;
} rn_step_pair;

typedef struct rn_step {
  const rn_norm *norm;
  rn_finding finding;
  int64_t rows, cols;
  rn_step_pair x, y; /* of x, or of x and residual together */
} rn_step;

typedef struct rn_walk {
  rn_step *steps;
  size_t count;
  const rn_step *found;   /* the norm at fault, NULL = none */
  const rn_step *entered; /* the first norm whose input differs although every output before it had equal bits */
  bool trouble;

  /* Of the norm at fault; texts may be NULL. */
  int side;            /* whose output is wrong: b's, where a does what all other norms of b do and b does not */
  const char *weight;  /* where its weight came from */
  const char *x;       /* where its input came from, when that was the other folder */
  const char *against; /* what was measured against: the other folder's output, or what is right for this input */
  char expected[RN_DIFF_TEXT]; /* what the reference does there, in words; "" = not known */
  bool measured, diffed;
  rn_measured measure;
  rn_picture picture, fine; /* for the terminal, for a file */
  rn_diff_result diff;
} rn_walk;

void rn_walk_print(FILE *out, const rn_walk *walk);
void rn_walk_json(FILE *out, const rn_walk *walk);

#endif /* RN_CLI_BISECT_H */
