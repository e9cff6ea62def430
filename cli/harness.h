/* harness.h - run one case on one implementation and say everything that is wrong with what came back.
 *
 * The reference call is made on "portable", packed, serial, all outputs asked for. Its results are judged against the
 * float64 reference and the staged model (reference.h). The call under test, with its strides, offsets, aliases,
 * threads and subset of outputs, then has to return the same bits, touch nothing else and leave its inputs alone.
 *
 * On a device the call under test gets copies of all of this there, and everything comes back before it is looked at.
 *
 * The library is called through a table of functions, so that a test can put a broken one there (faults.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_HARNESS_H
#define RN_HARNESS_H

#include "cases.h"
#include "gpu.h"
#include "harness_memory.h"
#include "reference.h"

typedef struct rn_library {
  rmsnorm_status (*forward)(const rmsnorm_forward_args *args, void *stream);
  rmsnorm_status (*stats)(const rmsnorm_stats_args *args, void *stream);
  rmsnorm_status (*backward)(const rmsnorm_backward_args *args, void *stream);
  rmsnorm_status (*workspace)(const rmsnorm_backward_args *args, size_t *bytes);
} rn_library;
extern const rn_library rn_library_real;

typedef enum rn_finding_kind {
  RN_FOUND_BITS,    /* another result than portable's reference call */
  RN_FOUND_GUARD,   /* bytes outside the elements were written */
  RN_FOUND_INPUT,   /* an input was changed */
  RN_FOUND_REFUSED, /* a legal call was refused */
  RN_FOUND_FLOAT64, /* outside the bound around the float64 reference */
  RN_FOUND_STAGED,  /* not the bits of the staged model */
  RN_FINDING_KINDS
} rn_finding_kind;
const char *rn_finding_name(int kind);

typedef struct rn_finding {
  int kind, tensor;
  int64_t row, head, col; /* GUARD, INPUT: col is the byte offset from the first element */
  double got, want;
  int64_t count; /* how many elements differ like this */
  char text[200];
} rn_finding;

/* What is measured against float64: an output, its type, and whether the caller asked for roundings in between. */
typedef struct rn_measure {
  int64_t elements;
  double ulp, share; /* the worst: in ulps of the magnitude involved, and as a share of the computed bound */
  char where[120];
} rn_measure;
enum { RN_DTYPES = 12 };

typedef struct rn_tally {
  int64_t cases, unsupported, elements, differing, failed_cases;
  int64_t found[RN_FINDING_KINDS];
  rn_measure measure[2][RN_TENSORS][RN_DTYPES]; /* [0]: one rounding; [1]: roundings in between */
} rn_tally;

/* Where one array of a call lies. */
typedef struct rn_binding {
  void *data;
  int64_t row_stride, head_stride, col_stride;
} rn_binding;

typedef struct rn_harness {
  const rn_library *reference_library, *library;
  rn_slot slot[RN_TENSORS];
  void *packed[RN_TENSORS]; /* inputs, and outputs of the reference call */
  size_t packed_bytes[RN_TENSORS];
  void *scratch;
  size_t scratch_bytes;
  const rn_case *c;
  int64_t count[RN_TENSORS]; /* elements of each array */
  uint32_t all;              /* outputs of the reference call */
  rn_measure (*measured)[RN_TENSORS][RN_DTYPES];
  rn_finding findings[8];
  int found;
  /* The call under test: on the CPU, or on a device. */
  const rn_device *device; /* NULL: the CPU */
  void *stream;            /* NULL: the default stream */
  bool graph;              /* the call is captured and launched twice; its stream may not be the default one */
  rmsnorm_launch launch;
  bool live; /* forward and stats: only the first live_rows rows exist, by a number on the device; in a graph at
                its second launch only */
  int64_t live_rows;
  int64_t *live_place; /* that number */
  rn_case own;         /* the case as it is called: what other calls hand in is there */
  rn_binding bound[RN_TENSORS];
  uint32_t outputs;
  size_t workspace_bytes;
  rmsnorm_status status;
} rn_harness;

void rn_harness_init(rn_harness *h);
void rn_harness_free(rn_harness *h);

/* Make the case's arrays and its reference results, and judge those: findings and measures are about portable.
 * 0: fine, 1: findings, 2: trouble (no memory, or the reference call was refused: findings[0] says why). */
int rn_harness_prepare(rn_harness *h, const rn_case *c, rn_tally *portable);
/* The call under test. Same answers; *unsupported is set when the implementation does not take the case. */
int rn_harness_run(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported);
/* Its three steps, so that several calls can be under way on a device at the same time: make everything ready (0 or 2),
 * call, then wait and look. */
int rn_harness_place(rn_harness *h, const char *impl);
void rn_harness_call(rn_harness *h, const char *impl);
int rn_harness_collect(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported);

#endif /* RN_HARNESS_H */
