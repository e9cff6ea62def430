/* checking.h - the parts of `rmsnorm check`: the loop over cases (check.c), what only a device needs
 * (check_device.c, check_shapes.c, check_extent.c), and what is said about it all (check_report.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_CHECKING_H
#define RN_CLI_CHECKING_H

#include "gpu.h"
#include "harness.h"

enum { RN_CHECK_IMPLS = 16, RN_CHECK_REPORTS = 20, RN_CHECK_NOTES = 24 };

typedef struct rn_check_options {
  const char *impl, *which;
  uint64_t seed;
  rn_where where;
  rn_level level;
  int64_t step; /* every so manieth case of a family */
  bool json, list, self_test;
} rn_check_options;

typedef struct rn_check_report {
  int impls;
  const char *name[RN_CHECK_IMPLS];
  rn_tally *tally;  /* of each implementation */
  rn_tally *judged; /* portable against float64 and the staged model */
  int64_t cases, total;
  int reports;
  int notes; /* what was left out, and why */
  char note[RN_CHECK_NOTES][200];
  const rn_device *device; /* NULL: the CPU */
  rn_device_facts facts;
  void *stream;
  char running[1400]; /* for messages when it ends badly */
} rn_check_report;

/* Whether --case takes family/index (index < 0: any case of the family). */
bool rn_check_takes(const rn_check_options *o, const char *family, int64_t index);
/* How many cases of a family there are to run, given those at each level. */
int64_t rn_check_cases(const rn_check_options *o, const int64_t *levels);

void rn_check_note_running(rn_check_report *r, const rn_case *c, const char *impl);
void rn_check_note(rn_check_report *r, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* The options of the launch of a case on a device. */
void rn_check_launch(rn_harness *h, int64_t index);
/* Findings of one case; `family`/`index` is what --case has to be told to see them again. */
void rn_check_findings(const rn_harness *h, const char *impl, const char *family, int64_t index,
                       const rn_check_options *o, rn_check_report *r);
/* The same for a finding that no harness made: its words. */
void rn_check_finding(rn_tally *tally, int kind, const char *impl, const char *family, int64_t index, const char *words,
                      const rn_check_options *o, rn_check_report *r);
/* One case more is done. */
void rn_check_progress(rn_check_report *r, const char *family);
int64_t rn_check_found(const rn_check_report *r);
void rn_check_print(const rn_check_options *o, const rn_check_report *r, double seconds);

/* The families that only a device has. Statuses: 0 go on, 2 stop. */
int64_t rn_device_family_total(const rn_check_options *o);
void rn_device_family_list(const rn_check_options *o);
int rn_device_families(const rn_check_options *o, rn_check_report *r);

/* check_shapes.c: problems that reach every kernel of a GPU. */
typedef struct rn_shape {
  rn_case c;
  int32_t multiprocessors; /* of the launch; 0 = all */
  int64_t live_rows;       /* how many of the rows exist; -1: all */
} rn_shape;
extern const int64_t rn_shape_cases[RN_LEVELS];
void rn_shape_make(rn_shape *s, const char *family, int64_t index, uint64_t seed);

/* check_extent.c: problems that are too large for the harness. `many`: 10^6 rows, otherwise the largest ones. */
int64_t rn_extent_cases(bool many);
void rn_extent_describe(bool many, int64_t index, char *text, size_t bytes);
int rn_extent_run(bool many, int64_t index, const rn_check_options *o, rn_check_report *r);

#endif /* RN_CLI_CHECKING_H */
