/* test_bisect_names.c - the names of norms: patterns, the spellings of different tools, and the order of a model.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bisect.h"

#include <stdlib.h>
#include <string.h>

static void test_patterns(void **unused) {
  (void)unused;
  static const struct {
    const char *pattern, *text, *found;
  } known[] = {
      {"*.x", "a.b.x", "a.b"},
      {"*.x", "a.b.y", NULL},
      {"*.x", ".x", NULL},
      {"out/*.y", "out/n.y", "n"},
      {"out/*.y", "ou/n.y", NULL},
      {"*.input,*.x", "n.x", "n"},
      {"*.input,*.x", "n.input", "n"},
      {"*", "all", "all"},
      {"a*a", "aa", NULL},
      {"a*a", "aba", "b"},
      {"*.x", "", NULL},
      {"*", "", NULL},
      {"*.x,*", "n.y", "n.y"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    char *found = rn_pattern_match(known[i].pattern, known[i].text);
    if (known[i].found == NULL)
      assert_null(found);
    else
      assert_string_equal(found, known[i].found);
    free(found);
  }
  assert_true(rn_pattern_good("*") && rn_pattern_good("a*b,*c"));
  assert_false(rn_pattern_good("") || rn_pattern_good("ab") || rn_pattern_good("**") || rn_pattern_good("*,") ||
               rn_pattern_good("*a,b"));
}

static void test_spellings(void **unused) {
  (void)unused;
  static const struct {
    const char *theirs, *ours;
    bool sandwich;
  } known[] = {
      {"model.layers.3.input_layernorm", "layers.3.input_layernorm", false},
      {"language_model.model.layers.3.input_layernorm", "layers.3.input_layernorm", false},
      {"blk.3.attn_norm", "layers.3.input_layernorm", false},
      {"layers.3.attention_norm", "layers.3.input_layernorm", false},
      {"layers/3/ffn_norm", "layers.3.post_attention_layernorm", false},
      {"blk.3.ffn_norm", "layers.3.post_attention_layernorm", false},
      {"blk.3.ffn_norm", "layers.3.pre_feedforward_layernorm", true},
      {"blk.3.post_attention_norm", "layers.3.post_attention_layernorm", true},
      {"blk.12.attn_q_norm", "layers.12.self_attn.q_norm", false},
      {"output_norm", "norm", false},
      {"model.norm", "norm", false},
      {"model.", "model.", false},
      {"..", "..", false},
      {"", "", false},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    char *settled = rn_name_settle(known[i].theirs, known[i].sandwich);
    assert_non_null(settled);
    assert_string_equal(settled, known[i].ours);
    free(settled);
  }
  assert_true(rn_name_is_sandwich("blk.0.post_attention_norm"));
  assert_false(rn_name_is_sandwich("blk.0.post_attention_norms") || rn_name_is_sandwich(""));
  assert_true(rn_name_alike("layer_3_input_layernorm", "layers.3.input_layernorm"));
  assert_false(rn_name_alike("layer_3_input_layernorm", "layers.13.input_layernorm"));
  assert_true(rn_name_alike("layer_003_input_layernorm", "layers.3.input_layernorm"));
  assert_true(rn_name_alike("layer_0_n", "layers.0.n") && rn_name_alike("00", "0"));
  assert_false(rn_name_alike("layer_10_n", "layers.1.n") || rn_name_alike("layer_30_n", "layers.3.n"));
  assert_false(rn_name_alike("layer_3", "layer_3_input") || rn_name_alike("a", "b"));
}

/* In this order, whatever they come in. */
static void test_order(void **unused) {
  (void)unused;
  static const char *const order[] = {"embed_norm",
                                      "layers.0.input_layernorm",
                                      "layers.0.self_attn.q_norm",
                                      "layers.0.self_attn.k_norm",
                                      "layers.0.post_attention_layernorm",
                                      "layers.0.pre_feedforward_layernorm",
                                      "layers.0.post_feedforward_layernorm",
                                      "layers.2.input_layernorm",
                                      "layers.2.post_attention_layernorm",
                                      "layers.10.input_layernorm",
                                      "layers.100.input_layernorm",
                                      "norm"};
  enum { COUNT = sizeof order / sizeof *order };
  for (int i = 0; i < COUNT; i++)
    for (int k = 0; k < COUNT; k++) {
      const int found = rn_name_order(order[i], order[k]);
      if ((found > 0) - (found < 0) != (i > k) - (i < k)) fail_msg("%s and %s: %d", order[i], order[k], found);
    }
  assert_true(rn_name_order("layer_2_norm", "layer_10_norm") < 0);
  assert_true(rn_name_order("block.1.layer.2.norm", "block.1.layer.10.norm") < 0);
  assert_true(rn_name_order("encoder.norm", "decoder.layers.0.norm") < 0);
  assert_true(rn_name_order("a.007", "a.7") != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_patterns),
      cmocka_unit_test(test_spellings),
      cmocka_unit_test(test_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
