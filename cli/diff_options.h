/* diff_options.h - the job of `rmsnorm diff`: its options (diff_options.c), its tensors (diff.c), what is said about
 * them (diff_report.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_DIFF_OPTIONS_H
#define RN_CLI_DIFF_OPTIONS_H

#include "diff.h"
#include "files.h"

enum { RN_DIFF_OTHERS = 64 };

typedef struct rn_diff_job {
  const char *theirs_spec, *second_spec, *x_spec, *residual_spec, *weight_spec, *gate_spec, *dy_spec, *dresidual_spec;
  const char *reference_spec, *scale_spec, *svg, *quant_name;
  const char *other_spec[RN_DIFF_OTHERS];
  int other_count;
  int dtype;
  bool json, quiet, no_pairs;
  rn_tensor theirs, x, residual, weight, gate, dy, dresidual, reference, scale;
  rn_tensor other_tensor[RN_DIFF_OTHERS];
  rn_diff_weight other[RN_DIFF_OTHERS];
  char other_name[RN_DIFF_OTHERS][256];
  rn_diff_input in;
} rn_diff_job;

/* -1: go on; otherwise the exit status. */
int rn_diff_options_read(rn_diff_job *j, int argc, char **argv);
/* Text, JSON, picture; the exit status: 0 equal or benign, 1 differs, 2 trouble. */
int rn_diff_report(const rn_diff_job *j, const rn_diff_result *result);
bool rn_diff_picture(FILE *out, const rn_tensor *a, const rn_tensor *b);

#endif /* RN_CLI_DIFF_OPTIONS_H */
