/* run.h - the parts of `rmsnorm run`: one job goes from its options (run_options.c) through the call (run.c) to what is
 * written, compared and said about it (run_report.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_RUN_H
#define RN_CLI_RUN_H

#include "compare.h"
#include "files.h"
#include "gpu.h"

enum { OUT_Y, OUT_Q, OUT_SCALE, OUT_RESIDUAL, OUT_RSTD, OUTS };

/* One output: where it goes, what it is compared with, and the tensor itself. */
typedef struct rn_output {
  const char *name;   /* its name in a .safetensors file and in messages */
  const char *spec;   /* FILE or FILE:NAME; NULL = not written */
  const char *expect; /* SPEC of the expected tensor, or NULL */
  rn_tensor tensor;
  rn_difference difference;
} rn_output;

typedef struct rn_job {
  const char *x_spec, *weight_spec, *residual_spec, *gate_spec;
  const char *main_spec, *main_expect; /* -o and --expect: y, or q when quantising */
  const char *preset, *quant_name;
  bool eps_given, offset_given, scale_given, json, explain, quiet;
  int dtype, out_dtype;
  uint64_t expect_ulp;
  rn_tensor x, weight, residual, gate;
  rn_model_facts facts; /* of the weight's file */
  rmsnorm_forward_args args;
  float scale_in;
  rn_output out[OUTS];
  rn_where where; /* the memory that the call gets its tensors in */
  const char *impl;
  double seconds, bytes;
} rn_job;

/* rn_run_options - the command line into the job. -1: go on; otherwise the exit status. */
int rn_run_options(rn_job *job, int argc, char **argv);

/* rn_run_wanted - whether this output is written or compared. */
static inline bool rn_run_wanted(const rn_job *job, int which) {
  return job->out[which].spec != NULL || job->out[which].expect != NULL;
}

/* rn_run_targets - before anything is computed: 0 when every output can be kept, 2 when one would replace another, or
 * tensors that are read or belong to somebody. */
int rn_run_targets(const rn_job *job);

/* rn_run_on_device - the call on a GPU: its tensors go there, and its results come back. 0 or 2; seconds is the fastest
 * of some calls. */
int rn_run_on_device(rn_job *job);

/* After the call: rn_run_write, 0 or 2; rn_run_compare, 0 all within --expect-ulp, 1 not, 2 trouble; rn_run_report, the
 * summary. */
int rn_run_write(const rn_job *job);
int rn_run_compare(rn_job *job);
void rn_run_report(const rn_job *job);

#endif /* RN_CLI_RUN_H */
