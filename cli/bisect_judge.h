/* bisect_judge.h - one norm of two dumps: read, compared, and judged by the diff engine.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_BISECT_JUDGE_H
#define RN_CLI_BISECT_JUDGE_H

#include "bisect.h"

/* What the norms of one kind (all input_layernorms, say) are seen to do in the reference. */
typedef struct rn_convention {
  char kind[64];
  bool known; /* a preset without any mistake explains it; its numbers: */
  rmsnorm_numerics numerics;
  double eps;
  rn_diff_verdict verdict;
  bool explained; /* explanation holds, be it with mistakes */
  rn_diff_explanation explanation;
  char text[RN_DIFF_TEXT];
} rn_convention;

enum { RN_CONVENTIONS_MOST = 16, RN_OTHERS_MOST = 256 };

typedef struct rn_judge {
  const rn_checkpoint *model;
  int dtype;  /* of arrays that do not say theirs */
  double eps; /* negative: not known */
  bool numerics_given;
  rmsnorm_numerics numerics;
  rn_convention conventions[RN_CONVENTIONS_MOST];
  int convention_count;
  /* The weights of all norms: one may have been mistaken for another. */
  rn_tensor other_tensors[RN_OTHERS_MOST];
  char *other_names[RN_OTHERS_MOST];
  int other_count;
  FILE *progress;
} rn_judge;

/* rn_judge_others - read the weights of all norms. */
void rn_judge_others(rn_judge *judge, const rn_norms *norms);
/* rn_judge_step - compare the outputs of a norm; when they differ, find out whether the norm is to blame. Fills step,
 * and the walk's account of it when it is. */
void rn_judge_step(rn_judge *judge, const rn_norm *norm, rn_step *step, rn_walk *walk);
void rn_judge_close(rn_judge *judge);
void rn_walk_forget(rn_walk *walk); /* frees the account */

#endif /* RN_CLI_BISECT_JUDGE_H */
