/* test_harness.c - the harness is tested by what it must catch: every deliberately broken library, each in the call
 * under test alone and in the reference call too; and by what it must not report: anything about the real one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_every_fault_is_caught(void **state) {
  (void)state;
  assert_int_equal(rn_self_test(stdout, 1), 0);
}

/* A fault has to be caught by what it is about, not by some accident beside it. */
static void test_the_right_detector_speaks(void **state) {
  (void)state;
  static const struct {
    const char *fault;
    int kind;
    bool everywhere;
  } expected[] = {
      {"past-the-row", RN_FOUND_GUARD, false},   {"stride-wrong", RN_FOUND_GUARD, false},
      {"input-changed", RN_FOUND_INPUT, false},  {"bit-flipped", RN_FOUND_BITS, false},
      {"bit-flipped", RN_FOUND_STAGED, true},    {"eps-raised", RN_FOUND_FLOAT64, true},
      {"dweight-short", RN_FOUND_FLOAT64, true}, {"rounding-swapped", RN_FOUND_STAGED, true},
      {"scale-ulp", RN_FOUND_STAGED, true},      {"offset-missing", RN_FOUND_FLOAT64, true},
      {"nan-swallowed", RN_FOUND_FLOAT64, true}, {"threads", RN_FOUND_BITS, false},
      {"company", RN_FOUND_BITS, false},
  };
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    for (int f = 0; f < rn_fault_count(); f++) {
      rn_catch result;
      if (strcmp(rn_fault_name(f), expected[i].fault)) continue;
      assert_true(rn_fault_hunt(f, expected[i].everywhere, 2, &result));
      if (!(result.kinds & 1u << expected[i].kind))
        fail_msg("%s: %s did not speak", expected[i].fault, rn_finding_name(expected[i].kind));
    }
}

static void test_the_real_library_passes(void **state) {
  (void)state;
  rn_harness h;
  rn_tally *tally = calloc(2, sizeof *tally);
  assert_non_null(tally);
  rn_harness_init(&h);
  for (int family = 0; family < rn_family_count(); family++)
    for (int64_t i = 0; i < rn_family_cases(family, RN_QUICK); i += 7) {
      rn_case c;
      char text[1200];
      bool unsupported;
      rn_case_make(&c, family, i, 3);
      if (c.cols > 5000 || c.unjudged) continue;
      rn_case_describe(&c, text, sizeof text);
      if (rn_harness_prepare(&h, &c, &tally[0]) || rn_harness_run(&h, "portable", &tally[1], &unsupported))
        fail_msg("%s %s: %s", rn_finding_name(h.findings[0].kind), rn_tensor_name(h.findings[0].tensor), text);
    }
  assert_true(tally[1].cases > 300 && tally[1].elements > 100000);
  rn_harness_free(&h);
  free(tally);
}

/* The same family, index and seed are the same case, whatever ran before. */
static void test_cases_are_reproducible(void **state) {
  (void)state;
  for (int family = 0; family < rn_family_count(); family++) {
    rn_case a, b, other;
    rn_case_make(&a, family, 5, 9);
    rn_case_make(&other, family, 6, 9);
    rn_case_make(&b, family, 5, 9);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.seed != other.seed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases_are_reproducible),
      cmocka_unit_test(test_the_real_library_passes),
      cmocka_unit_test(test_every_fault_is_caught),
      cmocka_unit_test(test_the_right_detector_speaks),
  };
  return cmocka_run_group_tests_name("harness", tests, NULL, NULL);
}
