/* diff_options.c - the options of `rmsnorm diff` and its help.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_options.h"

#include "json.h"
#include "message.h"
#include "options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Examples:\n"
    "  rmsnorm diff theirs.npy --x x.npy --weight w.npy --eps 1e-6 --preset llama\n"
    "      Why are these outputs not those of Llama's norm? Names the rounding or the mistake that explains every "
    "bit.\n"
    "  rmsnorm diff theirs.npy --x h.npy --residual r.npy --weight w.npy --reference ours.npy\n"
    "      What does the reference do, and what do they do instead? eps and roundings are found.\n"
    "  rmsnorm diff dx.npy --x x.npy --weight w.npy --eps 1e-6 --dy dy.npy\n"
    "      The same for gradients: THEIRS is dx, or dweight when it has the shape of the weight.\n"
    "  rmsnorm diff a.npy b.npy --svg where.svg\n"
    "      No inputs: how far they are apart, which way they lean, and where.\n"
    "\n"
    "Usage: rmsnorm diff THEIRS --x X [OPTION]...\n"
    "       rmsnorm diff A B [OPTION]...\n"
    "\n"
    "A tensor is FILE.npy, FILE.safetensors:NAME or FILE.gguf:NAME. The last dimension of X is normalised.\n"
    "\n"
    "Input:\n"
    "      --x SPEC              what was normalised\n"
    "      --residual SPEC       was added to it first\n"
    "      --weight SPEC         [cols], [cols / groups], or [heads, cols]\n"
    "      --other-weight SPEC   weights that may have been taken by mistake: other layers; may be given several "
    "times\n"
    "      --gate SPEC           with a preset that has a gate, or without preset\n"
    "      --dy SPEC             gradient of y: THEIRS is dx or dweight\n"
    "      --dresidual SPEC      gradient that arrived through the returned sum\n"
    "      --reference SPEC      what THEIRS was compared with\n"
    "      --dtype TYPE          the type of arrays that do not name it: bf16, fp8_e4m3, ...\n"
    "What is right (left out: found out, and no mistake):\n"
    "      --eps E               as the model has it\n"
    "      --preset NAME         where it rounds; `rmsnorm info` lists them\n"
    "      --offset F            added to the weight; overrides the preset\n"
    "      --round-sum, --round-rstd, --round-xhat, --round-normed WHERE\n"
    "                            none, x, weight, promoted, stored; each overrides the preset\n"
    "      --groups N            columns / N have their own statistic\n"
    "      --divisor N           of the sum of squares, instead of the number of columns\n"
    "Quantised outputs:\n"
    "      --quant KIND          THEIRS holds codes: fp8, fp8-e5m2 or int8, then -tensor, -row or -block32, 64, 128\n"
    "      --scale SPEC          their scales\n"
    "      --scale-op OP         divide, reciprocal  --scale-layout ORDER  row, col\n"
    "Output:\n"
    "      --list                every explanation it knows: symptom, cause, check, fix\n"
    "      --svg FILE            a picture of where the differences lie\n"
    "      --no-pairs            do not look for two mistakes at once\n"
    "      --json                the result as JSON\n"
    "      --quiet               nothing but the exit status\n"
    "\n"
    "Exit status: 0 equal, or different only by the order of float32 arithmetic; 1 differs; 2 trouble.\n";

typedef struct wishes {
  rn_diff_job *job;
  double eps, offset;
  int round[4];
  bool list;
} wishes;

static bool take_eps(const char *text, void *to) {
  char *end;
  double *eps = to;
  *eps = strtod(text, &end);
  return end != text && !*end && *eps >= 0 && isfinite(*eps);
}

static bool take_number(const char *text, void *to) {
  char *end;
  *(double *)to = strtod(text, &end);
  return end != text && !*end && isfinite(*(double *)to);
}

static bool take_dtype(const char *text, void *to) {
  return (*(int *)to = rn_dtype_parse(text)) != RMSNORM_DTYPE_NONE;
}

static bool take_other(const char *text, void *to) {
  rn_diff_job *j = to;
  if (j->other_count == RN_DIFF_OTHERS) return false;
  j->other_spec[j->other_count++] = text;
  return true;
}

static bool take_preset(const char *text, void *to) {
  rn_diff_job *j = to;
  j->in.preset = text, j->in.numerics_given = true;
  return rmsnorm_preset(text, &j->in.numerics) == RMSNORM_OK;
}

static bool take_word(const char *text, int32_t *to, const char *const *words) {
  for (int i = 0; words[i]; i++)
    if (strcmp(text, words[i]) == 0) return *to = i, true;
  return false;
}
static bool take_round(const char *text, void *to) {
  static const char *const words[] = {"none", "x", "weight", "promoted", "stored", NULL};
  return take_word(text, to, words);
}
static bool take_operation(const char *text, void *to) {
  static const char *const words[] = {"divide", "reciprocal", NULL};
  return take_word(text, to, words);
}
static bool take_layout(const char *text, void *to) {
  static const char *const words[] = {"row", "col", NULL};
  return take_word(text, to, words);
}

static bool take_quant(const char *text, void *to) {
  rn_diff_job *j = to;
  static const struct {
    const char *name;
    int dtype;
  } types[] = {{"fp8-e5m2-", RMSNORM_DTYPE_FP8_E5M2}, {"fp8-", RMSNORM_DTYPE_FP8_E4M3}, {"int8-", RMSNORM_DTYPE_INT8}};
  static const struct {
    const char *name;
    int granularity, cols;
  } kinds[] = {{"tensor", RMSNORM_QUANT_TENSOR, 0},
               {"row", RMSNORM_QUANT_ROW, 0},
               {"block32", RMSNORM_QUANT_BLOCK, 32},
               {"block64", RMSNORM_QUANT_BLOCK, 64},
               {"block128", RMSNORM_QUANT_BLOCK, 128}};
  j->quant_name = text;
  for (size_t t = 0; t < 3; t++)
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
      size_t length = strlen(types[t].name);
      if (strncmp(text, types[t].name, length) != 0 || strcmp(text + length, kinds[k].name) != 0) continue;
      j->in.quant.q.dtype = types[t].dtype;
      j->in.quant.granularity = kinds[k].granularity, j->in.quant.block_cols = kinds[k].cols;
      return true;
    }
  return false;
}

static void print_list(bool json) {
  const rn_hypothesis *h;
  if (json) printf("{\"format\":1,\"command\":\"diff\",\"explanations\":[");
  for (int i = 0; (h = rn_hypothesis_at(i)) != NULL; i++) {
    const char *const names[] = {"name", "kind", "symptom", "cause", "check", "fix"};
    const char *const texts[] = {h->name, h->kind, h->symptom, h->cause, h->check, h->fix};
    if (!json) printf("%s%s (%s)\n", i ? "\n" : "", h->name, h->kind);
    for (int k = json ? 0 : 2; k < 6; k++) {
      if (!json) {
        printf("  %-8s %s\n", names[k], texts[k]);
        continue;
      }
      printf("%s\"%s\":", k ? "," : i ? ",{" : "{", names[k]);
      rn_json_put(stdout, texts[k]);
    }
    if (json) putchar('}');
  }
  if (json) printf("]}\n");
}

/* Words that belong to no option go into `word`; what is left are options. */
static int take_words(int *argc, char **argv, const rn_option *table, const char **word, int most) {
  int kept = 1, count = 0;
  for (int i = 1; i < *argc; i++) {
    const char *name = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : NULL;
    if (argv[i][0] != '-') {
      if (count < most) word[count] = argv[i];
      count++;
      continue;
    }
    argv[kept++] = argv[i];
    for (int k = 0; name && !strchr(name, '=') && table[k].name; k++)
      if (strcmp(name, table[k].name) == 0 && table[k].wants && i + 1 < *argc) argv[kept++] = argv[++i];
  }
  argv[kept] = NULL;
  *argc = kept;
  return count;
}

int rn_diff_options_read(rn_diff_job *j, int argc, char **argv) {
  wishes w = {j, -1, NAN, {-1, -1, -1, -1}, false};
  const rn_option table[] = {{"x", rn_take_text, &j->x_spec, "a tensor"},
                             {"residual", rn_take_text, &j->residual_spec, "a tensor"},
                             {"weight", rn_take_text, &j->weight_spec, "a tensor"},
                             {"other-weight", take_other, j, "a tensor, at most 64 of them"},
                             {"gate", rn_take_text, &j->gate_spec, "a tensor"},
                             {"dy", rn_take_text, &j->dy_spec, "a tensor"},
                             {"dresidual", rn_take_text, &j->dresidual_spec, "a tensor"},
                             {"reference", rn_take_text, &j->reference_spec, "a tensor"},
                             {"scale", rn_take_text, &j->scale_spec, "a tensor"},
                             {"dtype", take_dtype, &j->dtype, "f32, f16, bf16, f64, fp8_e4m3, fp8_e5m2 or int8"},
                             {"eps", take_eps, &w.eps, "a finite number >= 0"},
                             {"preset", take_preset, j, "a name that `rmsnorm info` lists"},
                             {"offset", take_number, &w.offset, "a number"},
                             {"round-sum", take_round, &w.round[0], "none or stored"},
                             {"round-rstd", take_round, &w.round[1], "none or x"},
                             {"round-xhat", take_round, &w.round[2], "none, x, weight or promoted"},
                             {"round-normed", take_round, &w.round[3], "none, x, weight or promoted"},
                             {"groups", rn_take_count, &j->in.groups, "a whole number of 1 or more"},
                             {"divisor", rn_take_count, &j->in.divisor, "a whole number of 1 or more"},
                             {"quant", take_quant, j, "fp8, fp8-e5m2 or int8, then -tensor, -row or -block32, 64, 128"},
                             {"scale-op", take_operation, &j->in.quant.scale_op, "divide or reciprocal"},
                             {"scale-layout", take_layout, &j->in.quant.scale_layout, "row or col"},
                             {"list", rn_take_flag, &w.list, NULL},
                             {"svg", rn_take_text, &j->svg, "a file"},
                             {"no-pairs", rn_take_flag, &j->no_pairs, NULL},
                             {"json", rn_take_flag, &j->json, NULL},
                             {"quiet", rn_take_flag, &j->quiet, NULL},
                             {NULL, NULL, NULL, NULL}};
  const char *word[2] = {NULL, NULL};
  int words = take_words(&argc, argv, table, word, 2), status = rn_options("diff", argc, argv, table, help);
  if (status >= 0) return status;
  if (w.list) {
    print_list(j->json);
    return 0;
  }
  j->theirs_spec = word[0], j->second_spec = word[1];
  if (j->x_spec ? words != 1 : words != 2)
    return rn_trouble("diff",
                      j->x_spec ? "expected one tensor besides the options, found %d. Try: rmsnorm diff --help"
                                : "expected two tensors, or one and --x, found %d. Try: rmsnorm diff --help",
                      words);
  j->in.eps = w.eps;
  int32_t *to[] = {&j->in.numerics.round_sum, &j->in.numerics.round_rstd, &j->in.numerics.round_xhat,
                   &j->in.numerics.round_normed};
  for (int i = 0; i < 4; i++)
    if (w.round[i] >= 0) *to[i] = w.round[i], j->in.numerics_given = true, j->in.preset = NULL;
  if (!isnan(w.offset)) j->in.numerics.weight_offset = (float)w.offset, j->in.numerics_given = true;
  if ((j->quant_name != NULL) != (j->scale_spec != NULL))
    return rn_trouble("diff", "--quant and --scale belong together: codes mean nothing without their scales");
  if (j->quant_name && j->dy_spec) return rn_trouble("diff", "--quant and --dy exclude each other");
  if (j->dresidual_spec && !j->dy_spec) return rn_trouble("diff", "--dresidual needs --dy");
  return -1;
}
