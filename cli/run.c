/* run.c - `rmsnorm run`: read tensors, normalise, write tensors, say what happened.
 *
 * The way of a call: options -> inputs -> arguments of the library -> outputs. Everything that could go wrong is
 * refused before the first file is written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "compare.h"
#include "files.h"
#include "json.h"
#include "message.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUT_Y, OUT_Q, OUT_SCALE, OUT_RESIDUAL, OUT_RSTD, OUTS };

/* One output: where it goes, what it is compared with, and the tensor itself. */
typedef struct output {
  const char *name;   /* its name in a .safetensors file and in messages */
  const char *spec;   /* FILE or FILE:NAME; NULL = not written */
  const char *expect; /* SPEC of the expected tensor, or NULL */
  rn_tensor tensor;
  rn_difference difference;
} output;

typedef struct job {
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
  output out[OUTS];
  const char *impl;
  double seconds, bytes;
} job;

/* ------------------------------------------------------------------------------------------------------------------
 * Options. */

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
static int take_option(job *j, int option, const char *value) {
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
    if (!parse_count(value, &j->args.divisor)) return bad_value(option, value, "a whole number of 1 or more");
    return 0;
  case OPT_THREADS:
    if (!parse_count(value, &count) || count > INT32_MAX) return bad_value(option, value, "a whole number");
    j->args.threads = (int32_t)count;
    return 0;
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

/* All options; -1 to go on, otherwise the exit status. */
static int take_options(job *j, int argc, char **argv) {
  static const char shorts[] = ":hw:e:p:o:q";
  int c, status;
  opterr = 0, optind = 1;
  while ((c = getopt_long(argc, argv, shorts, options, NULL)) != -1)
    if (c == 'p') {
      j->preset = optarg;
      if (rmsnorm_preset(optarg, &j->args.numerics) != RMSNORM_OK) return bad_preset(optarg);
    }
  for (optind = 1; (c = getopt_long(argc, argv, shorts, options, NULL)) != -1;) {
    if (c == 'h') {
      help(stdout);
      return 0;
    }
    if (c == ':') return rn_trouble("run", "%s wants a value. Try: rmsnorm run --help", argv[optind - 1]);
    if (c == '?') return rn_trouble("run", "unknown option %s. Try: rmsnorm run --help", argv[optind - 1]);
    if ((status = take_option(j, c, optarg)) != 0) return status;
  }
  if (optind + 1 != argc)
    return rn_trouble(
        "run", "expected one tensor to normalise, found %d. Try: rmsnorm run x.npy --weight w.npy --eps 1e-5 -o y.npy",
        argc - optind);
  j->x_spec = argv[optind];
  output *o = &j->out[j->quant_name ? OUT_Q : OUT_Y];
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

/* ------------------------------------------------------------------------------------------------------------------
 * Inputs. */

static bool read_input(job *j, const char *spec, rn_tensor *t, rn_model_facts *facts) {
  if (spec == NULL) return true;
  if (!rn_tensor_read(spec, j->dtype, t, facts, stderr)) return false;
  if (t->dtype != RMSNORM_DTYPE_NONE) return true;
  rn_trouble("run", "%s: holds raw %d-byte elements and does not say of which type. Try: --dtype %s", spec,
             t->item_bytes, t->item_bytes == 2 ? "bf16" : "TYPE");
  return false;
}

static void print_shape(FILE *out, const rn_tensor *t) {
  fputc('[', out);
  for (int i = 0; i < t->rank; i++) fprintf(out, "%s%" PRId64, i ? ", " : "", t->shape[i]);
  fputc(']', out);
}

static bool same_shape(const rn_tensor *a, const rn_tensor *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->rank) == 0;
}

static int bad_shape(const char *spec, const char *what, const rn_tensor *t, const char *expected, const rn_tensor *x) {
  rn_trouble("run", "%s: the %s has another shape than expected", spec, what);
  fprintf(stderr, "  expected %s", expected);
  if (x != NULL) print_shape(stderr, x);
  fprintf(stderr, "\n  found    ");
  print_shape(stderr, t);
  fputc('\n', stderr);
  return 2;
}

/* rows, heads and cols from the shape of x, the weight's form from its own. */
static int take_shapes(job *j) {
  rmsnorm_forward_args *a = &j->args;
  const rn_tensor *x = &j->x, *w = &j->weight;
  char expected[160];
  if (x->rank == 0) return rn_trouble("run", "%s: a single number; expected at least one dimension", j->x_spec);
  a->cols = x->shape[x->rank - 1];
  a->rows = 1;
  for (int i = 0; i + 1 < x->rank; i++) a->rows *= x->shape[i];
  if (j->residual_spec != NULL && !same_shape(&j->residual, x))
    return bad_shape(j->residual_spec, "residual", &j->residual, "the shape of x, ", x);
  if (j->gate_spec != NULL && !same_shape(&j->gate, x))
    return bad_shape(j->gate_spec, "gate", &j->gate, "the shape of x, ", x);
  if (w->data == NULL) return 0;
  a->weight = w->data, a->weight_dtype = w->dtype;
  if (w->rank == 1 && w->shape[0] == a->cols) return 0;
  if (w->rank == 1 && a->groups > 1 && w->shape[0] == a->cols / a->groups) {
    a->weight_shape = RMSNORM_WEIGHT_GROUP;
    return 0;
  }
  if (w->rank == 2 && x->rank > 1 && w->shape[1] == a->cols && w->shape[0] > 0 &&
      w->shape[0] == x->shape[x->rank - 2]) {
    a->weight_shape = RMSNORM_WEIGHT_HEADS_COLS;
    a->heads = w->shape[0];
    a->rows /= a->heads;
    return 0;
  }
  int n = snprintf(expected, sizeof expected, "[%" PRId64 "]", a->cols);
  if (a->groups > 1) n += snprintf(expected + n, sizeof expected - (size_t)n, " or [%" PRId64 "]", a->cols / a->groups);
  if (x->rank > 1)
    snprintf(expected + n, sizeof expected - (size_t)n, " or, per head, [%" PRId64 ", %" PRId64 "]",
             x->shape[x->rank - 2], a->cols);
  return bad_shape(j->weight_spec, "weight", w, expected, NULL);
}

/* Converters to GGUF add the 1 of "1 + weight" models to the stored weight, so that its readers need not know. */
static void settle_offset(job *j) {
  static const char *const folded[] = {"gemma",     "gemma2", "gemma3",    "gemma-embedding",
                                       "qwen3next", "qwen35", "qwen35moe", NULL};
  const char *architecture = j->facts.architecture;
  if (*architecture == 0) return;
  const bool added = parse_word(architecture, folded) >= 0;
  const double offset = (double)j->args.numerics.weight_offset;
  fprintf(stderr, "note: %s: architecture ", j->weight_spec);
  rn_print_name(stderr, architecture);
  fprintf(stderr, "%s",
          added ? ": the weight in this file already has the model's + 1 folded in"
                : ": the weight in this file is used as it is, nothing is to be added");
  if (offset == 0)
    fprintf(stderr, "; offset 0 is right\n");
  else if (j->offset_given)
    fprintf(stderr, "; --offset %g is added all the same, as asked\n", offset);
  else
    fprintf(stderr, "; the preset's offset %g is left out (--offset %g would add it)\n", offset, offset);
  if (!j->offset_given) j->args.numerics.weight_offset = 0;
}

static int missing_eps(const job *j) {
  if (j->facts.eps >= 0)
    return rn_trouble("run", "--eps is missing and has no default. The file of the weight says %.7g. Try: --eps %.7g",
                      j->facts.eps, j->facts.eps);
  return rn_trouble(
      "run", "--eps is missing and has no default: it belongs to the model. Look for rms_norm_eps (or layer_norm_eps, "
             "norm_eps) in its config.json. Try: --eps 1e-5 or --eps 1e-6");
}

/* ------------------------------------------------------------------------------------------------------------------
 * Outputs and the call. */

static bool wanted(const job *j, int which) {
  return j->out[which].spec != NULL || j->out[which].expect != NULL;
}

static int promote(int a, int b) {
  return a == b ? a : a == RMSNORM_DTYPE_F64 || b == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
}

/* Row strides of a packed [rows, heads, cols] tensor. */
static rmsnorm_input_tensor input(const rn_tensor *t, const rmsnorm_forward_args *a) {
  return rmsnorm_input_heads(t->data, t->dtype, a->heads * a->cols, a->cols);
}

static rmsnorm_output_tensor output_like_x(const rn_tensor *t, const rmsnorm_forward_args *a) {
  return rmsnorm_output_heads(t->data, t->dtype, a->heads * a->cols, a->cols);
}

static bool make_output(job *j, int which, int dtype, int rank, const int64_t *shape) {
  if (rn_tensor_new(&j->out[which].tensor, dtype, rank, shape)) return true;
  rn_trouble("run", "there is no memory for %s", j->out[which].name);
  return false;
}

/* The shape of the scales: x's outer dimensions, then the blocks; [blocks, rows] in column-major order. */
static bool make_scale(job *j) {
  rmsnorm_quant *q = &j->args.quant;
  const int outer = j->x.rank - 1;
  const int64_t block = q->granularity == RMSNORM_QUANT_MX ? 32 : q->block_cols;
  int64_t shape[RN_RANK_MAX];
  int rank = outer;
  memcpy(shape, j->x.shape, sizeof shape);
  if (q->granularity != RMSNORM_QUANT_ROW) {
    const int64_t blocks = (j->args.cols + block - 1) / block;
    shape[rank++] = blocks;
    if (q->scale_layout == RMSNORM_SCALE_COL_MAJOR)
      shape[0] = blocks, shape[1] = j->args.rows * j->args.heads, rank = 2;
  }
  if (!make_output(j, OUT_SCALE, q->granularity == RMSNORM_QUANT_MX ? RMSNORM_DTYPE_E8M0 : RMSNORM_DTYPE_F32, rank,
                   shape))
    return false;
  q->scale_out = j->out[OUT_SCALE].tensor.data;
  return true;
}

static int make_outputs(job *j) {
  rmsnorm_forward_args *a = &j->args;
  const rn_tensor *x = &j->x;
  if (j->quant_name == NULL || wanted(j, OUT_Y)) {
    if (!make_output(j, OUT_Y, j->out_dtype ? j->out_dtype : x->dtype, x->rank, x->shape)) return 2;
    a->y = output_like_x(&j->out[OUT_Y].tensor, a);
  }
  if (j->quant_name != NULL) {
    const bool tensor = a->quant.granularity == RMSNORM_QUANT_TENSOR;
    if (!make_output(j, OUT_Q, a->quant.q.dtype, x->rank, x->shape)) return 2;
    a->quant.q = output_like_x(&j->out[OUT_Q].tensor, a);
    if (tensor != j->scale_given)
      return tensor ? rn_trouble("run", "--quant %s needs the scale: --scale S", j->quant_name)
                    : rn_trouble("run", "--scale is for -tensor kinds; --quant %s finds its own scales (--scale-out)",
                                 j->quant_name);
    if (tensor && wanted(j, OUT_SCALE)) return rn_trouble("run", "--quant %s has no scales to write", j->quant_name);
    if (tensor) a->quant.scale = &j->scale_in;
    if (!tensor && !make_scale(j)) return 2;
  } else if (wanted(j, OUT_SCALE) || j->scale_given) {
    return rn_trouble("run", "scales are for --quant. Try: --quant fp8-row");
  }
  if (wanted(j, OUT_RESIDUAL)) {
    /* The promoted type, which is also what round_sum STORED uses when nothing is written: asking for this output
     * does not change the others. */
    if (j->residual_spec == NULL) return rn_trouble("run", "--residual-out needs --residual");
    if (!make_output(j, OUT_RESIDUAL, promote(x->dtype, j->residual.dtype), x->rank, x->shape)) return 2;
    a->residual_out = output_like_x(&j->out[OUT_RESIDUAL].tensor, a);
  }
  if (wanted(j, OUT_RSTD)) {
    int64_t shape[RN_RANK_MAX];
    int rank = x->rank - 1;
    memcpy(shape, x->shape, sizeof shape);
    if (a->groups > 1) shape[rank++] = a->groups;
    if (!make_output(j, OUT_RSTD, x->dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32, rank, shape))
      return 2;
    a->rstd = j->out[OUT_RSTD].tensor.data;
  }
  return 0;
}

static int refused(rmsnorm_status status) {
  const char *why = rmsnorm_last_error();
  return rn_trouble("run", "%s", *why ? why : rmsnorm_status_string(status));
}

static int explain(const job *j) {
  char text[4096];
  const rmsnorm_status status = rmsnorm_explain(RMSNORM_OP_FORWARD, &j->args, text, sizeof text);
  if (status != RMSNORM_OK && status != RMSNORM_ERROR_BUFFER) return refused(status);
  printf("%s%s", text, *text && text[strlen(text) - 1] != '\n' ? "\n" : "");
  return 0;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The call. It is made again, up to three times within a second, and the fastest is reported: the first one also pays
 * for starting the threads. */
static int call(job *j) {
  rmsnorm_status status = rmsnorm_impl_for(RMSNORM_OP_FORWARD, &j->args, &j->impl);
  if (status != RMSNORM_OK) return refused(status);
  double total = 0;
  for (int i = 0; i < 4 && total < 1; i++) {
    const double start = now();
    status = rmsnorm_forward(&j->args, NULL);
    const double seconds = now() - start;
    if (status != RMSNORM_OK) return refused(status);
    if (i == 0 || seconds < j->seconds) j->seconds = seconds;
    total += seconds;
  }
  const rn_tensor *in[] = {&j->x, &j->residual, &j->gate, &j->weight};
  for (size_t i = 0; i < sizeof in / sizeof *in; i++)
    if (in[i]->data != NULL) j->bytes += (double)in[i]->count * in[i]->item_bytes;
  for (int i = 0; i < OUTS; i++)
    if (j->out[i].tensor.data != NULL) j->bytes += (double)j->out[i].tensor.count * j->out[i].tensor.item_bytes;
  return 0;
}

/* ------------------------------------------------------------------------------------------------------------------
 * After the call. */

/* Every output with a file; those that share one go into it together. */
static int write_outputs(job *j) {
  for (int i = 0; i < OUTS; i++) {
    size_t length, other;
    rn_named_tensor group[OUTS];
    int count = 0;
    if (j->out[i].spec == NULL) continue;
    rn_spec_split(j->out[i].spec, &length);
    for (int k = 0; k < OUTS; k++) {
      if (j->out[k].spec == NULL) continue;
      const char *name = rn_spec_split(j->out[k].spec, &other);
      if (other != length || strncmp(j->out[k].spec, j->out[i].spec, length) != 0) continue;
      if (k < i) break; /* written together with that one */
      group[count].name = name != NULL && *name ? name : j->out[k].name;
      group[count++].tensor = &j->out[k].tensor;
    }
    if (count == 0) continue;
    char *path = strndup(j->out[i].spec, length);
    const bool good = path != NULL && rn_file_write(path, group, count, stderr);
    free(path);
    if (!good) return 2;
  }
  return 0;
}

/* 0 all within --expect-ulp, 1 not, 2 trouble. */
static int compare_outputs(job *j) {
  int answer = 0;
  for (int i = 0; i < OUTS; i++) {
    output *o = &j->out[i];
    rn_tensor expected;
    if (o->expect == NULL) continue;
    if (!rn_tensor_read(o->expect, o->tensor.dtype, &expected, NULL, stderr)) return 2;
    if (expected.dtype != o->tensor.dtype || expected.count != o->tensor.count) {
      rn_trouble("run", "%s: %s is %s with %" PRId64 " elements, expected the same, found %s with %" PRId64, o->expect,
                 o->name, rmsnorm_dtype_name(o->tensor.dtype), o->tensor.count, rmsnorm_dtype_name(expected.dtype),
                 expected.count);
      rn_tensor_free(&expected);
      return 2;
    }
    o->difference = rn_compare(&o->tensor, &expected);
    const bool bad = o->difference.ulp > j->expect_ulp || (j->expect_ulp == 0 && o->difference.differ > 0);
    if (bad) {
      const int64_t at = o->difference.worst;
      answer = 1;
      fprintf(stderr, "%s: element %" PRId64 " is %.9g, expected %.9g\n", o->name, at, rn_value(&o->tensor, at),
              rn_value(&expected, at));
    }
    rn_tensor_free(&expected);
  }
  return answer;
}

static void print_ulp(uint64_t ulp) {
  if (ulp == UINT64_MAX)
    printf("a NaN against a number");
  else
    printf("at most %" PRIu64 " ulp", ulp);
}

static void print_text(const job *j) {
  const rmsnorm_forward_args *a = &j->args;
  printf("%" PRId64 " x ", a->rows);
  if (a->heads > 1) printf("%" PRId64 " x ", a->heads);
  printf("%" PRId64 " %s -> %s, cpu, %s, %.2f us, %.2f GB/s\n", a->cols, rmsnorm_dtype_name(j->x.dtype),
         rmsnorm_dtype_name(j->out[j->quant_name ? OUT_Q : OUT_Y].tensor.dtype), j->impl, 1e6 * j->seconds,
         j->seconds > 0 ? 1e-9 * j->bytes / j->seconds : 0.0);
  for (int i = 0; i < OUTS; i++) {
    const rn_difference *d = &j->out[i].difference;
    if (j->out[i].expect == NULL) continue;
    printf("%s: %" PRId64 " of %" PRId64 " elements differ from %s", j->out[i].name, d->differ, d->elements,
           j->out[i].expect);
    if (d->differ > 0) printf(", "), print_ulp(d->ulp);
    putchar('\n');
  }
}

static void print_json(const job *j, int answer) {
  const rmsnorm_forward_args *a = &j->args;
  const char *comma = "";
  printf("{\"format\":1,\"command\":\"run\",\"rows\":%" PRId64 ",\"heads\":%" PRId64 ",\"cols\":%" PRId64
         ",\"groups\":%" PRId64 ",\"eps\":%.17g,\"weight_offset\":%.9g,\"dtype\":\"%s\",\"device\":\"cpu\",\"impl\":",
         a->rows, a->heads, a->cols, a->groups, a->eps, (double)a->numerics.weight_offset,
         rmsnorm_dtype_name(j->x.dtype));
  rn_json_put(stdout, j->impl);
  printf(",\"seconds\":%.9g,\"bytes\":%.0f,\"same\":%s,\"outputs\":[", j->seconds, j->bytes,
         answer == 0 ? "true" : "false");
  for (int i = 0; i < OUTS; i++) {
    const output *o = &j->out[i];
    if (o->spec == NULL && o->expect == NULL) continue;
    printf("%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":[", comma, o->name, rmsnorm_dtype_name(o->tensor.dtype));
    for (int d = 0; d < o->tensor.rank; d++) printf("%s%" PRId64, d ? "," : "", o->tensor.shape[d]);
    printf("]");
    if (o->spec != NULL) printf(",\"file\":"), rn_json_put(stdout, o->spec);
    if (o->expect != NULL) {
      printf(",\"expect\":");
      rn_json_put(stdout, o->expect);
      printf(",\"differ\":%" PRId64 ",\"ulp\":", o->difference.differ);
      if (o->difference.ulp == UINT64_MAX)
        printf("null");
      else
        printf("%" PRIu64, o->difference.ulp);
    }
    printf("}");
    comma = ",";
  }
  printf("]}\n");
}

static int work(job *j) {
  rmsnorm_forward_args *a = &j->args;
  int status;
  if (!read_input(j, j->weight_spec, &j->weight, &j->facts)) return 2;
  if (!j->eps_given) return missing_eps(j);
  if (!read_input(j, j->x_spec, &j->x, NULL) || !read_input(j, j->residual_spec, &j->residual, NULL) ||
      !read_input(j, j->gate_spec, &j->gate, NULL))
    return 2;
  if (j->dtype && !j->x.assumed && !j->weight.assumed && !j->residual.assumed && !j->gate.assumed)
    return rn_trouble("run",
                      "--dtype %s: every input names its own type (x is %s), there is nothing to assume. Leave --dtype "
                      "away; for the type of the result there is --out-dtype",
                      rmsnorm_dtype_name(j->dtype), rmsnorm_dtype_name(j->x.dtype));
  if (a->groups < 1) return rn_trouble("run", "--groups: expected 1 or more");
  if ((status = take_shapes(j)) != 0) return status;
  if (j->gate_spec != NULL && a->numerics.gate == RMSNORM_GATE_NONE)
    return rn_trouble("run", "--gate needs its activation, and %s has none. Try: --gate-act silu",
                      j->preset ? "this preset" : "a run without preset");
  if (j->gate_spec == NULL && a->numerics.gate != RMSNORM_GATE_NONE)
    return rn_trouble("run", "%s wants a gate. Try: --gate FILE, or --gate-act none",
                      j->preset ? "this preset" : "--gate-act");
  settle_offset(j);
  a->x = input(&j->x, a);
  if (j->residual_spec != NULL) a->residual = input(&j->residual, a);
  if (j->gate_spec != NULL) a->gate = input(&j->gate, a);
  if ((status = make_outputs(j)) != 0) return status;
  if (j->explain && (status = explain(j)) != 0) return status;
  bool any = false;
  for (int i = 0; i < OUTS; i++) any = any || wanted(j, i);
  if (!any) return 0;
  if ((status = call(j)) != 0 || (status = write_outputs(j)) != 0) return status;
  const int answer = compare_outputs(j);
  if (answer == 2) return 2;
  if (j->json)
    print_json(j, answer);
  else if (!j->quiet)
    print_text(j);
  return answer;
}

int rn_cmd_run(int argc, char **argv) {
  static const char *const names[OUTS] = {"y", "q", "scale", "residual_out", "rstd"};
  job j;
  memset(&j, 0, sizeof j);
  j.args = RMSNORM_FORWARD_ARGS_INIT;
  j.facts.eps = -1;
  for (int i = 0; i < OUTS; i++) j.out[i].name = names[i];
  int status = take_options(&j, argc, argv);
  if (status < 0) status = work(&j);
  rn_tensor *all[] = {&j.x, &j.weight, &j.residual, &j.gate};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) rn_tensor_free(all[i]);
  for (int i = 0; i < OUTS; i++) rn_tensor_free(&j.out[i].tensor);
  return status;
}
