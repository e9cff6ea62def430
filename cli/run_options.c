/* run_options.c - the options of `rmsnorm run` and its help.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "message.h"
#include "run.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum {
  OPT_RESIDUAL = 256,
  OPT_RESIDUAL_OUT,
  OPT_GATE,
  OPT_GATE_ACT,
  OPT_GATE_PLACE,
  OPT_GROUPS,
  OPT_OFFSET,
  OPT_DIVISOR,
  OPT_ROUND_SUM,
  OPT_ROUND_RSTD,
  OPT_ROUND_XHAT,
  OPT_ROUND_NORMED,
  OPT_QUANT,
  OPT_SCALE,
  OPT_SCALE_OUT,
  OPT_SCALE_MAX,
  OPT_SCALE_OP,
  OPT_SCALE_LAYOUT,
  OPT_E8M0,
  OPT_Y_OUT,
  OPT_OUT_DTYPE,
  OPT_DTYPE,
  OPT_RSTD,
  OPT_IMPL,
  OPT_THREADS,
  OPT_DEVICE,
  OPT_EXPECT,
  OPT_EXPECT_SCALE,
  OPT_EXPECT_RESIDUAL,
  OPT_EXPECT_ULP,
  OPT_JSON,
  OPT_EXPLAIN
};

static const struct option options[] = {
    {"help", no_argument, NULL, 'h'},
    {"weight", required_argument, NULL, 'w'},
    {"eps", required_argument, NULL, 'e'},
    {"preset", required_argument, NULL, 'p'},
    {"output", required_argument, NULL, 'o'},
    {"quiet", no_argument, NULL, 'q'},
    {"residual", required_argument, NULL, OPT_RESIDUAL},
    {"residual-out", required_argument, NULL, OPT_RESIDUAL_OUT},
    {"gate", required_argument, NULL, OPT_GATE},
    {"gate-act", required_argument, NULL, OPT_GATE_ACT},
    {"gate-place", required_argument, NULL, OPT_GATE_PLACE},
    {"groups", required_argument, NULL, OPT_GROUPS},
    {"offset", required_argument, NULL, OPT_OFFSET},
    {"divisor", required_argument, NULL, OPT_DIVISOR},
    {"round-sum", required_argument, NULL, OPT_ROUND_SUM},
    {"round-rstd", required_argument, NULL, OPT_ROUND_RSTD},
    {"round-xhat", required_argument, NULL, OPT_ROUND_XHAT},
    {"round-normed", required_argument, NULL, OPT_ROUND_NORMED},
    {"quant", required_argument, NULL, OPT_QUANT},
    {"scale", required_argument, NULL, OPT_SCALE},
    {"scale-out", required_argument, NULL, OPT_SCALE_OUT},
    {"scale-max", required_argument, NULL, OPT_SCALE_MAX},
    {"scale-op", required_argument, NULL, OPT_SCALE_OP},
    {"scale-layout", required_argument, NULL, OPT_SCALE_LAYOUT},
    {"e8m0", required_argument, NULL, OPT_E8M0},
    {"y-out", required_argument, NULL, OPT_Y_OUT},
    {"out-dtype", required_argument, NULL, OPT_OUT_DTYPE},
    {"dtype", required_argument, NULL, OPT_DTYPE},
    {"rstd", required_argument, NULL, OPT_RSTD},
    {"impl", required_argument, NULL, OPT_IMPL},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"expect", required_argument, NULL, OPT_EXPECT},
    {"expect-scale", required_argument, NULL, OPT_EXPECT_SCALE},
    {"expect-residual", required_argument, NULL, OPT_EXPECT_RESIDUAL},
    {"expect-ulp", required_argument, NULL, OPT_EXPECT_ULP},
    {"json", no_argument, NULL, OPT_JSON},
    {"explain", no_argument, NULL, OPT_EXPLAIN},
    {0},
};

static void help(FILE *out) {
  fputs("Examples:\n"
        "  rmsnorm run x.npy --weight w.npy --eps 1e-5 --preset llama -o y.npy\n"
        "      Normalise the last dimension of x, rounding where Llama does.\n"
        "  rmsnorm run h.safetensors:mlp_out --residual h.safetensors:stream --weight m.gguf:blk.0.ffn_norm.weight \\\n"
        "      --eps 1e-5 --preset llama --quant fp8-row -o out.safetensors --scale-out out.safetensors \\\n"
        "      --residual-out out.safetensors\n"
        "      Add, normalise and quantise in one pass; three tensors (q, scale, residual_out) in one file.\n"
        "\n"
        "Usage: rmsnorm run X --eps E [OPTION]...\n"
        "\n"
        "A tensor is FILE.npy, FILE.safetensors:NAME or FILE.gguf:NAME. The last dimension of X is normalised.\n"
        "\n"
        "Input:\n"
        "  -w, --weight SPEC         [cols], [cols / groups], or [heads, cols] when the last two dimensions of X are "
        "that\n"
        "  -e, --eps E               required; rms_norm_eps in a model's config.json (1e-5 and 1e-6 are common)\n"
        "      --residual SPEC       added to X first\n"
        "      --gate SPEC           with a preset that has a gate, or with --gate-act\n"
        "      --dtype TYPE          the type of arrays that do not name it (numpy's V2, V1, u2, u1): bf16, f16, ...\n"
        "Numbers:\n"
        "  -p, --preset NAME         where a model family rounds; `rmsnorm info` lists them. None: float32 throughout\n"
        "      --offset F            added to the weight (Gemma: 1); overrides the preset\n"
        "      --groups N            columns / N have their own statistic\n"
        "      --divisor N           of the sum of squares, instead of the number of columns\n"
        "      --gate-act ACT        silu, sigmoid       --gate-place PLACE    after, before (the norm)\n"
        "      --round-sum, --round-rstd, --round-xhat, --round-normed WHERE\n"
        "                            none, x, weight, promoted, stored; each overrides the preset\n"
        "Output:\n"
        "  -o, --output FILE         .npy, .safetensors or .safetensors:NAME; the result (quantised with --quant)\n"
        "      --out-dtype TYPE      f32, f16, bf16, f64; as X when not given\n"
        "      --residual-out FILE   X + residual\n"
        "      --rstd FILE           1 / sqrt(mean + eps) of every row\n"
        "      --quant KIND          fp8, fp8-e5m2 or int8, then -tensor, -row, -block32, -block64 or -block128;\n"
        "                            mxfp8, mxfp8-e5m2\n"
        "      --scale S             of -tensor\n"
        "      --scale-out FILE      the scales of the other kinds\n"
        "      --scale-max S         upper bound of a scale (-row, -block)\n"
        "      --scale-op OP         divide, reciprocal  --scale-layout ORDER  row, col     --e8m0 WHICH  floor, ceil\n"
        "      --y-out FILE          with --quant: the result before quantising\n"
        "Comparison (exit status 1 when it fails):\n"
        "      --expect SPEC         of the result;  --expect-scale, --expect-residual SPEC: of those outputs\n"
        "      --expect-ulp N        how far an element may be off, in its own last place; 0 = the same bits\n"
        "Running:\n"
        "      --impl NAME           force an implementation; `rmsnorm info` lists them\n"
        "      --device WHERE        cpu (default), cuda, hip, or with the number of the GPU: cuda:N, hip:N\n"
        "      --threads N           at most N; 0 = as many as OpenMP gives\n"
        "      --explain             print which implementation runs and why the others do not\n"
        "      --json                the summary as JSON\n"
        "  -q, --quiet               no summary\n",
        out);
}

/* A number that fills its whole text. */
static bool parse_double(const char *text, double *value) {
  char *end;
  errno = 0;
  *value = strtod(text, &end);
  return end != text && *end == 0;
}

static bool parse_count(const char *text, int64_t *value) {
  char *end;
  errno = 0;
  *value = strtoll(text, &end, 10);
  return end != text && *end == 0 && errno == 0 && *value >= 0;
}

/* The place of text in a list that ends with NULL; -1 = not in it. */
static int parse_word(const char *text, const char *const *words) {
  for (int i = 0; words[i] != NULL; i++)
    if (strcmp(text, words[i]) == 0) return i;
  return -1;
}

/* KIND of --quant into the struct; false when there is no such kind. */
static bool parse_quant(const char *name, rmsnorm_quant *quant) {
  static const struct {
    const char *name;
    int dtype;
  } types[] = {{"fp8-e5m2-", RMSNORM_DTYPE_FP8_E5M2}, {"fp8-", RMSNORM_DTYPE_FP8_E4M3}, {"int8-", RMSNORM_DTYPE_INT8}};
  static const struct {
    const char *name;
    int granularity, block_cols;
  } kinds[] = {{"tensor", RMSNORM_QUANT_TENSOR, 0},
               {"row", RMSNORM_QUANT_ROW, 0},
               {"block32", RMSNORM_QUANT_BLOCK, 32},
               {"block64", RMSNORM_QUANT_BLOCK, 64},
               {"block128", RMSNORM_QUANT_BLOCK, 128}};
  if (strcmp(name, "mxfp8") == 0 || strcmp(name, "mxfp8-e5m2") == 0) {
    quant->granularity = RMSNORM_QUANT_MX;
    quant->q.dtype = name[5] ? RMSNORM_DTYPE_FP8_E5M2 : RMSNORM_DTYPE_FP8_E4M3;
    return true;
  }
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    if (strncmp(name, types[t].name, strlen(types[t].name)) != 0) continue;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
      if (strcmp(name + strlen(types[t].name), kinds[k].name) != 0) continue;
      quant->granularity = kinds[k].granularity, quant->block_cols = kinds[k].block_cols;
      quant->q.dtype = types[t].dtype;
      return true;
    }
  }
  return false;
}

static const char *const words_act[] = {"none", "silu", "sigmoid", NULL};
static const char *const words_place[] = {"after", "before", NULL};
static const char *const words_rounding[] = {"none", "x", "weight", "promoted", "stored", NULL};
static const char *const words_op[] = {"divide", "reciprocal", NULL};
static const char *const words_layout[] = {"row", "col", NULL};
static const char *const words_e8m0[] = {"floor", "ceil", NULL};

/* The options that choose a word: where the choice goes. NULL for all others. */
static int32_t *word_target(rmsnorm_forward_args *args, int option, const char *const **words) {
  *words = words_rounding;
  switch (option) {
  case OPT_ROUND_SUM:
    return &args->numerics.round_sum;
  case OPT_ROUND_RSTD:
    return &args->numerics.round_rstd;
  case OPT_ROUND_XHAT:
    return &args->numerics.round_xhat;
  case OPT_ROUND_NORMED:
    return &args->numerics.round_normed;
  case OPT_GATE_ACT:
    *words = words_act;
    return &args->numerics.gate;
  case OPT_GATE_PLACE:
    *words = words_place;
    return &args->numerics.gate_place;
  case OPT_SCALE_OP:
    *words = words_op;
    return &args->quant.scale_op;
  case OPT_SCALE_LAYOUT:
    *words = words_layout;
    return &args->quant.scale_layout;
  case OPT_E8M0:
    *words = words_e8m0;
    return &args->quant.e8m0_rounding;
  default:
    return NULL;
  }
}

static const char *option_name(int value) {
  for (int i = 0; options[i].name != NULL; i++)
    if (options[i].val == value) return options[i].name;
  return "?";
}

static int bad_value(int option, const char *found, const char *expected) {
  return rn_trouble("run", "--%s: expected %s, found '%s'. Try: rmsnorm run --help", option_name(option), expected,
                    found);
}

static int bad_word(int option, const char *found, const char *const *words) {
  char expected[128] = "";
  for (int i = 0; words[i] != NULL; i++)
    snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", i ? ", " : "", words[i]);
  return bad_value(option, found, expected);
}

static int bad_preset(const char *found) {
  char expected[512] = "";
  const char *name;
  for (int i = 0; (name = rmsnorm_preset_name(i)) != NULL; i++)
    snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", i ? ", " : "", name);
  return rn_trouble("run", "--preset: expected one of %s; found '%s'", expected, found);
}

/* One option; 0, or the exit status of a refusal. */
static int take_option(rn_job *j, int option, const char *value) {
  const char *const *words;
  int32_t *target = word_target(&j->args, option, &words);
  if (target != NULL) {
    *target = parse_word(value, words);
    return *target < 0 ? bad_word(option, value, words) : 0;
  }
  double number;
  int64_t count;
  switch (option) {
  case 'w':
    j->weight_spec = value;
    return 0;
  case 'o':
    j->main_spec = value;
    return 0;
  case 'q':
    j->quiet = true;
    return 0;
  case 'p':
    return 0; /* taken before all others, which override it */
  case OPT_RESIDUAL:
    j->residual_spec = value;
    return 0;
  case OPT_RESIDUAL_OUT:
    j->out[OUT_RESIDUAL].spec = value;
    return 0;
  case OPT_GATE:
    j->gate_spec = value;
    return 0;
  case OPT_SCALE_OUT:
    j->out[OUT_SCALE].spec = value;
    return 0;
  case OPT_Y_OUT:
    j->out[OUT_Y].spec = value;
    return 0;
  case OPT_RSTD:
    j->out[OUT_RSTD].spec = value;
    return 0;
  case OPT_IMPL:
    j->args.impl = value;
    return 0;
  case OPT_EXPECT:
    j->main_expect = value;
    return 0;
  case OPT_EXPECT_SCALE:
    j->out[OUT_SCALE].expect = value;
    return 0;
  case OPT_EXPECT_RESIDUAL:
    j->out[OUT_RESIDUAL].expect = value;
    return 0;
  case OPT_JSON:
    j->json = true;
    return 0;
  case OPT_EXPLAIN:
    j->explain = true;
    return 0;
  case 'e':
    if (!parse_double(value, &j->args.eps)) return bad_value(option, value, "a number such as 1e-5");
    if (!(j->args.eps >= 0 && j->args.eps <= DBL_MAX)) return bad_value(option, value, "a finite number >= 0");
    j->eps_given = true;
    return 0;
  case OPT_OFFSET:
    if (!parse_double(value, &number)) return bad_value(option, value, "a number");
    j->args.numerics.weight_offset = (float)number, j->offset_given = true;
    return 0;
  case OPT_SCALE:
    if (!parse_double(value, &number)) return bad_value(option, value, "a number");
    j->scale_in = (float)number, j->scale_given = true;
    return 0;
  case OPT_SCALE_MAX:
    if (!parse_double(value, &number)) return bad_value(option, value, "a number");
    j->args.quant.scale_max = (float)number;
    return 0;
  case OPT_GROUPS:
    if (!parse_count(value, &j->args.groups)) return bad_value(option, value, "a whole number of 1 or more");
    return 0;
  case OPT_DIVISOR:
    if (!parse_count(value, &j->args.divisor) || j->args.divisor < 1)
      return bad_value(option, value, "a whole number of 1 or more");
    return 0;
  case OPT_THREADS:
    if (!parse_count(value, &count) || count > INT32_MAX) return bad_value(option, value, "a whole number");
    j->args.threads = (int32_t)count;
    return 0;
  case OPT_DEVICE:
    return rn_where_parse(value, &j->where) ? 0 : bad_value(option, value, RN_WHERE_EXPECTED);
  case OPT_EXPECT_ULP:
    if (!parse_count(value, &count)) return bad_value(option, value, "a whole number");
    j->expect_ulp = (uint64_t)count;
    return 0;
  case OPT_DTYPE:
    j->dtype = rn_dtype_parse(value);
    return j->dtype ? 0 : bad_value(option, value, "f32, f16, bf16, f64 or the name another tool uses (bfloat16, ...)");
  case OPT_OUT_DTYPE:
    j->out_dtype = rn_dtype_parse(value);
    return j->out_dtype ? 0 : bad_value(option, value, "f32, f16, bf16 or f64");
  case OPT_QUANT:
    j->quant_name = value;
    return parse_quant(value, &j->args.quant)
               ? 0
               : bad_value(option, value, "a kind such as fp8-row, int8-tensor or mxfp8");
  default:
    return 2;
  }
}

/* getopt names an unknown letter in optopt, also out of the middle of a word; of a long option it has only the word. */
static int bad_option(const char *word) {
  if (strncmp(word, "--", 2) == 0 || optopt == 0 || optopt > 255)
    return rn_trouble("run", "unknown option %s. Try: rmsnorm run --help", word);
  return rn_trouble("run", "unknown option -%c. Try: rmsnorm run --help", optopt);
}

int rn_run_options(rn_job *j, int argc, char **argv) {
  static const char shorts[] = ":hw:e:p:o:q";
  int c, status;
  opterr = 0, optind = 1;
  /* Twice: first what is wrong, and the preset, then everything that overrides the preset. */
  while ((c = getopt_long(argc, argv, shorts, options, NULL)) != -1) {
    if (c == 'h') {
      help(stdout);
      return 0;
    }
    if (c == ':') return rn_trouble("run", "%s wants a value. Try: rmsnorm run --help", argv[optind - 1]);
    if (c == '?') return bad_option(argv[optind - 1]);
    if (c != 'p') continue;
    j->preset = optarg;
    if (rmsnorm_preset(optarg, &j->args.numerics) != RMSNORM_OK) return bad_preset(optarg);
  }
  for (optind = 1; (c = getopt_long(argc, argv, shorts, options, NULL)) != -1;)
    if ((status = take_option(j, c, optarg)) != 0) return status;
  if (optind + 1 != argc)
    return rn_trouble(
        "run", "expected one tensor to normalise, found %d. Try: rmsnorm run x.npy --weight w.npy --eps 1e-5 -o y.npy",
        argc - optind);
  j->x_spec = argv[optind];
  rn_output *o = &j->out[j->quant_name ? OUT_Q : OUT_Y];
  if (j->main_spec != NULL) {
    if (!j->quant_name && o->spec != NULL)
      return rn_trouble("run", "--y-out is for --quant; without it, -o is the same");
    o->spec = j->main_spec;
  } else if (j->quant_name == NULL && o->spec != NULL) {
    return rn_trouble("run", "--y-out is for --quant; use -o");
  }
  o->expect = j->main_expect;
  bool any = j->explain;
  for (int i = 0; i < OUTS; i++) any = any || j->out[i].spec != NULL || j->out[i].expect != NULL;
  if (!any) return rn_trouble("run", "nothing to do: give -o FILE.npy, --expect FILE or --explain");
  return -1;
}
