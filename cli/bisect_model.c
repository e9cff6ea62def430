/* bisect_model.c - what the model's own files say about its norms: weights and eps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What config.json calls eps. */
static const char *const eps_keys[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps",
                                       "layernorm_epsilon"};
enum { EPS_KEYS = sizeof eps_keys / sizeof *eps_keys, CONFIG_MOST = 1 << 20, DEPTH = 16 };

static bool is_eps(const char *key) {
  for (int i = 0; i < EPS_KEYS; i++)
    if (strcmp(key, eps_keys[i]) == 0) return true;
  return false;
}

/* The first eps in the outermost object of a JSON text, or of text_config within; negative = none. */
static double find_eps(rn_json *json, int nested) {
  double eps = -1;
  bool first = true;
  if (rn_json_peek(json) != '{') return rn_json_skip(json, DEPTH), -1;
  json->at++;
  while (rn_json_more(json, '}', &first)) {
    char *key = rn_json_string(json);
    if (key == NULL || !rn_json_take(json, ':')) {
      free(key);
      return eps;
    }
    const bool deeper = nested > 0 && strcmp(key, "text_config") == 0, wanted = is_eps(key);
    free(key);
    if (deeper) {
      const double inner = find_eps(json, nested - 1);
      if (eps < 0) eps = inner;
      continue;
    }
    rn_json_peek(json);
    const char *start = json->at;
    if (!rn_json_skip(json, DEPTH)) return eps;
    char number[40];
    snprintf(number, sizeof number, "%.*s", (int)(json->at - start), start);
    char *end;
    const double value = strtod(number, &end);
    if (wanted && eps < 0 && end != number && value >= 0 && value < 1) eps = value;
  }
  return eps;
}

/* config.json beside the weights: transformers keeps it there. */
static double config_eps(const char *path) {
  struct stat info;
  const char *slash = strrchr(path, '/');
  const bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
  const int length = folder ? (int)strlen(path) : slash != NULL ? (int)(slash - path) : 0;
  const size_t room = strlen(path) + sizeof "./config.json";
  char *name = malloc(room), *text = malloc(CONFIG_MOST);
  double eps = -1;
  if (name != NULL) snprintf(name, room, "%.*s%sconfig.json", length, path, length > 0 || *path == '/' ? "/" : "");
  FILE *file = name != NULL && text != NULL ? fopen(name, "rb") : NULL;
  if (file != NULL) {
    rn_json json = {text, text + fread(text, 1, CONFIG_MOST, file), NULL};
    eps = find_eps(&json, 1);
    fclose(file);
  }
  free(name), free(text);
  return eps;
}

bool rn_checkpoint_open(rn_checkpoint *model, const char *path, const char *pattern, FILE *err) {
  memset(model, 0, sizeof *model);
  model->eps = -1, model->pattern = pattern;
  if (path == NULL) return true;
  if (!rn_dump_open(&model->files, path, err)) return false;
  for (size_t i = 0; i < model->files.count && !model->sandwich; i++)
    model->sandwich = rn_name_is_sandwich(model->files.tensors[i].name);
  model->gguf = *model->files.facts.architecture != 0;
  model->eps = model->files.facts.eps, model->eps_from = "the GGUF file";
  if (model->eps < 0) model->eps = config_eps(path), model->eps_from = "config.json";
  return true;
}

void rn_checkpoint_close(rn_checkpoint *model) {
  rn_dump_close(&model->files);
}

/* The name of the norm that a tensor is the weight of; malloc'ed, NULL = of none. */
static char *norm_of(const rn_checkpoint *model, const rn_dump_tensor *t) {
  char *name = rn_pattern_match(model->pattern, t->name), *settled = NULL;
  if (name != NULL && t->rank <= 2) settled = rn_name_settle(name, model->sandwich);
  free(name);
  return settled;
}

const char *rn_checkpoint_weight(const rn_checkpoint *model, const char *norm) {
  const char *alike = NULL;
  int count = 0;
  for (size_t i = 0; i < model->files.count; i++) {
    char *name = norm_of(model, &model->files.tensors[i]);
    const bool same = name != NULL && strcmp(name, norm) == 0;
    if (name != NULL && !same && rn_name_alike(name, norm)) alike = model->files.tensors[i].spec, count++;
    free(name);
    if (same) return model->files.tensors[i].spec;
  }
  return count == 1 ? alike : NULL;
}
