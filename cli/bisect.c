/* bisect.c - `rmsnorm bisect`: walk the norms of two dumps of a model until one of them is at fault.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect_judge.h"
#include "commands.h"
#include "message.h"
#include "options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "Examples:\n"
    "  rmsnorm bisect --model model.safetensors --dump-a port/ --dump-b reference/\n"
    "      Which norm of the port is the first to differ from the reference by its own doing, and why?\n"
    "  rmsnorm bisect --model model.gguf --dump-a a/ --dump-b b/ --x '*.in' --y '*.out' --svg where.svg\n"
    "      Dumps with other names, and a picture of where the errors are.\n"
    "\n"
    "Usage: rmsnorm bisect --dump-a A --dump-b B [--model MODEL] [OPTION]...\n"
    "\n"
    "A and B are folders (or single files) of .npy, .safetensors or .gguf files with the input and the output of each\n"
    "norm, dumped from the same prompt: A from what is questioned, B from what is held to be right. The norms are "
    "walked\n"
    "in the order a model runs them. A norm whose input has drifted is not blamed for it: what counts is whether its\n"
    "output is what that norm makes of that input. At the first that is not, `rmsnorm diff` says why.\n"
    "\n"
    "Files:\n"
    "      --model MODEL       .safetensors, GGUF, or a folder of them: the weights; eps, too, from GGUF or "
    "config.json\n"
    "      --dump-a A          the dump in question\n"
    "      --dump-b B          the reference\n"
    "      --dtype TYPE        the type of arrays that do not name it (numpy's V2, V1): bf16, ...\n"
    "Names, with * for the name of the norm, alternatives separated by commas:\n"
    "      --x PATTERN         inputs; usually *.input, *.x, *.in, *.branch, with a dot, slash or underscore\n"
    "      --y PATTERN         outputs; usually *.output, *.y, *.out\n"
    "      --residual PATTERN  what is added to the input; usually *.residual\n"
    "      --weight PATTERN    in MODEL and in the dumps; usually *.weight\n"
    "Numbers:\n"
    "      --eps E             as the model has it; not given: of MODEL, else the one that explains the reference\n"
    "      --preset NAME       where the model rounds; not given: the one that explains the reference\n"
    "Output:\n"
    "      --svg FILE          a picture of where in rows and columns that norm differs\n"
    "      --json              everything, as JSON\n"
    "\n"
    "Exit status: 0 all equal, or explained without any mistake; 1 a norm is at fault, or the dumps differ from\n"
    "something outside the norms; 2 trouble (usage, files that are not readable, shapes that do not fit).\n";

typedef struct job {
  const char *model_path, *dump[RN_SIDES], *preset, *svg;
  rn_patterns patterns;
  int dtype;
  double eps;
  bool json;
  rn_dump dumps[RN_SIDES];
  rn_checkpoint model;
  rn_norms norms;
  rn_judge judge;
  rn_walk walk;
} job;

static bool take_eps(const char *text, void *to) {
  char *end;
  *(double *)to = strtod(text, &end);
  return end != text && *end == 0 && *(double *)to >= 0 && *(double *)to < 1;
}

static bool take_dtype(const char *text, void *to) {
  *(int *)to = rn_dtype_parse(text);
  return *(int *)to != RMSNORM_DTYPE_NONE;
}

static bool take_pattern(const char *text, void *to) {
  *(const char **)to = text;
  return rn_pattern_good(text);
}

/* Something has to be there to compare. */
static int check_norms(const job *j) {
  int both = 0;
  for (size_t i = 0; i < j->norms.count; i++) {
    const rn_norm *n = &j->norms.at[i];
    both += n->spec[RN_SIDE_A][RN_ROLE_Y] != NULL && n->spec[RN_SIDE_B][RN_ROLE_Y] != NULL;
  }
  if (both > 0) return 0;
  rn_trouble("bisect",
             "no output of a norm is in both dumps. Try: --y PATTERN, with * for the name of the norm. There are:");
  for (int side = 0; side < RN_SIDES; side++)
    for (size_t i = 0; i < j->dumps[side].count && i < 10; i++) {
      fprintf(stderr, "  %s: ", j->dump[side]);
      rn_print_name(stderr, j->dumps[side].tensors[i].name);
      fputc('\n', stderr);
    }
  return 2;
}

static void walk(job *j) {
  rn_walk *w = &j->walk;
  const rn_step *blind = NULL;
  bool equal_so_far = true;
  for (size_t i = 0; i < j->norms.count && w->found == NULL; i++) {
    const rn_norm *n = &j->norms.at[i];
    if (n->spec[RN_SIDE_A][RN_ROLE_Y] == NULL && n->spec[RN_SIDE_B][RN_ROLE_Y] == NULL) continue;
    rn_step *s = &w->steps[w->count++];
    rn_judge_step(&j->judge, n, s, w);
    if (w->entered == NULL && equal_so_far && s->x.there && s->x.differ > 0) w->entered = s;
    equal_so_far = equal_so_far && (s->finding == RN_FINDING_EQUAL || s->finding == RN_FINDING_ONE_SIDED);
    if (s->finding == RN_FINDING_FAULT || s->finding == RN_FINDING_UNEXPLAINED) w->found = s;
    if (s->finding == RN_FINDING_BLIND && blind == NULL) blind = s;
    w->trouble = w->trouble || s->finding == RN_FINDING_TROUBLE;
  }
  if (w->found == NULL) w->found = blind;
}

static int picture(const job *j) {
  if (j->svg == NULL || !j->walk.measured) return 0;
  FILE *out = fopen(j->svg, "w");
  const bool good = out != NULL && rn_picture_svg(out, &j->walk.fine, j->walk.found->norm->name);
  if ((out == NULL || fclose(out) == 0) && good) return 0;
  return rn_trouble("bisect", "%s: can not be written", j->svg);
}

static int work(job *j) {
  if (j->dump[RN_SIDE_A] == NULL || j->dump[RN_SIDE_B] == NULL)
    return rn_trouble("bisect", "expected two dumps. Try: rmsnorm bisect --model M --dump-a PORT --dump-b REFERENCE");
  for (int side = 0; side < RN_SIDES; side++)
    if (!rn_dump_open(&j->dumps[side], j->dump[side], stderr)) return 2;
  if (!rn_checkpoint_open(&j->model, j->model_path, j->patterns.of[RN_ROLE_WEIGHT], stderr)) return 2;
  if (!rn_norms_find(&j->norms, j->dumps, &j->patterns, true, stderr)) return 2;
  if (j->norms.count == 0) {
    rn_norms_free(&j->norms);
    if (!rn_norms_find(&j->norms, j->dumps, &j->patterns, false, stderr)) return 2;
    if (j->norms.count > 0)
      fprintf(stderr, "note: no name speaks of a norm; all tensors with an input and output are taken\n");
  }
  int status = check_norms(j);
  if (status != 0) return status;
  rn_judge *judge = &j->judge;
  judge->model = &j->model, judge->dtype = j->dtype;
  judge->eps = j->eps >= 0 ? j->eps : j->model.eps;
  judge->progress = isatty(fileno(stderr)) ? stderr : NULL;
  if (j->preset != NULL && rmsnorm_preset(j->preset, &judge->numerics) != RMSNORM_OK)
    return rn_trouble("bisect", "there is no preset '%s'; `rmsnorm info` lists them", j->preset);
  judge->numerics_given = j->preset != NULL;
  if (j->model.gguf) judge->numerics.weight_offset = 0; /* see rn_gguf_offset_folded */
  rn_judge_others(judge, &j->norms);
  j->walk.steps = calloc(j->norms.count, sizeof *j->walk.steps);
  if (j->walk.steps == NULL) return rn_trouble("bisect", "there is no memory for %zu norms", j->norms.count);
  walk(j);
  for (int side = 0; side < RN_SIDES; side++) j->walk.trouble = j->walk.trouble || j->dumps[side].unreadable > 0;
  if (j->json)
    rn_walk_json(stdout, &j->walk);
  else
    rn_walk_print(stdout, &j->walk);
  if (picture(j) != 0) return 2;
  if (j->walk.found != NULL) return 1;
  if (j->walk.trouble) return rn_trouble("bisect", "not everything could be compared, see above; nothing else differs");
  return j->walk.entered != NULL ? 1 : 0;
}

int rn_cmd_bisect(int argc, char **argv) {
  job j;
  memset(&j, 0, sizeof j);
  j.patterns = rn_patterns_usual, j.eps = -1;
  const rn_option table[] = {
      {"model", rn_take_text, &j.model_path, "a file or a folder"},
      {"dump-a", rn_take_text, &j.dump[RN_SIDE_A], "a folder"},
      {"dump-b", rn_take_text, &j.dump[RN_SIDE_B], "a folder"},
      {"dtype", take_dtype, &j.dtype, "f32, f16, bf16, f64 or the name another tool uses"},
      {"x", take_pattern, &j.patterns.of[RN_ROLE_X], "patterns with one * each"},
      {"y", take_pattern, &j.patterns.of[RN_ROLE_Y], "patterns with one * each"},
      {"residual", take_pattern, &j.patterns.of[RN_ROLE_RESIDUAL], "patterns with one * each"},
      {"weight", take_pattern, &j.patterns.of[RN_ROLE_WEIGHT], "patterns with one * each"},
      {"eps", take_eps, &j.eps, "a number from 0 to 1"},
      {"preset", rn_take_text, &j.preset, "a name"},
      {"svg", rn_take_text, &j.svg, "a file"},
      {"json", rn_take_flag, &j.json, NULL},
      {NULL, NULL, NULL, NULL},
  };
  int status = rn_options("bisect", argc, argv, table, help);
  if (status < 0) status = work(&j);
  rn_walk_forget(&j.walk);
  free(j.walk.steps);
  rn_judge_close(&j.judge);
  rn_norms_free(&j.norms);
  rn_checkpoint_close(&j.model);
  for (int side = 0; side < RN_SIDES; side++) rn_dump_close(&j.dumps[side]);
  return status;
}
