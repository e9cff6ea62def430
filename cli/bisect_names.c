/* bisect_names.c - names of tensors: which norm, which part of it, and in what order a model runs them.
 *
 * The spellings come from the checkpoints: transformers ("model.layers.0.input_layernorm"), GGUF ("blk.0.attn_norm",
 * gguf-py constants) and the authors' own code of Llama ("layers.0.attention_norm").
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Roles are tried in this order, so that an output may be "*", whatever is left. */
const rn_patterns rn_patterns_usual = {{"*.input,*.x,*/input,*/x,*_input,*_x,*.in,*_in,*.branch,*.hidden_states",
                                        "*.residual,*/residual,*_residual,*.res", "*.weight,*/weight,*_weight",
                                        "*.output,*.y,*/output,*/y,*_output,*_y,*.out,*_out"}};

bool rn_pattern_good(const char *pattern) {
  int stars = 0;
  for (;; pattern++) {
    stars += *pattern == '*';
    if (*pattern != ',' && *pattern != 0) continue;
    if (stars != 1) return false;
    if (*pattern == 0) return true;
    stars = 0;
  }
}

char *rn_pattern_match(const char *pattern, const char *text) {
  const size_t whole = strlen(text);
  while (*pattern != 0) {
    const size_t length = strcspn(pattern, ","), before = strcspn(pattern, "*");
    if (before < length && whole > length - 1) { /* the star stands for one character at least */
      const size_t after = length - before - 1;
      if (strncmp(text, pattern, before) == 0 && strncmp(text + whole - after, pattern + before + 1, after) == 0)
        return strndup(text + before, whole - before - after);
    }
    pattern += length + (pattern[length] == ',');
  }
  return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------
 * One spelling. */

static const char *const wrappers[] = {"model.",  "language_model.", "text_model.", "transformer.",
                                       "module.", "_orig_mod.",      "base_model."};

enum { ANY, SANDWICH, PLAIN };
static const struct {
  const char *theirs, *ours;
  int when; /* of which kind the model has to be */
} spellings[] = {
    {"blk", "layers", ANY},
    {"attn_norm", "input_layernorm", ANY},
    {"attention_norm", "input_layernorm", ANY},
    {"attn_q_norm", "self_attn.q_norm", ANY},
    {"attn_k_norm", "self_attn.k_norm", ANY},
    {"attn_q_a_norm", "self_attn.q_a_layernorm", ANY},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm", ANY},
    {"post_attention_norm", "post_attention_layernorm", ANY},
    {"ffn_norm", "pre_feedforward_layernorm", SANDWICH},
    {"ffn_norm", "post_attention_layernorm", PLAIN},
    {"post_ffw_norm", "post_feedforward_layernorm", ANY},
    {"output_norm", "norm", ANY},
};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };

/* The length of the part of a name that begins here: parts end at a dot or a slash. */
static size_t part_length(const char *name) {
  return strcspn(name, "./");
}

static bool is_part(const char *name, const char *part) {
  const size_t length = part_length(name);
  return strlen(part) == length && strncmp(name, part, length) == 0;
}

bool rn_name_is_sandwich(const char *name) {
  for (;; name++) {
    if (is_part(name, "post_attention_norm")) return true;
    name += part_length(name);
    if (*name == 0) return false;
  }
}

char *rn_name_settle(const char *name, bool sandwich) {
  enum { LONGEST = 32 }; /* no spelling makes a part longer by more */
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++) {
      const size_t length = strlen(wrappers[i]);
      if (strncmp(name, wrappers[i], length) != 0 || name[length] == 0) continue;
      name += length, again = true;
    }
  }
  size_t parts = 1;
  for (const char *c = name; *c; c++) parts += *c == '.' || *c == '/';
  char *settled = malloc(strlen(name) + parts * LONGEST + 1), *to = settled;
  for (; settled != NULL; name++) {
    const size_t length = part_length(name);
    const char *ours = NULL;
    for (int i = 0; i < SPELLINGS && ours == NULL; i++)
      if (is_part(name, spellings[i].theirs) && spellings[i].when != (sandwich ? PLAIN : SANDWICH))
        ours = spellings[i].ours;
    memcpy(to, ours != NULL ? ours : name, ours != NULL ? strlen(ours) : length);
    to += ours != NULL ? strlen(ours) : length;
    name += length;
    *to++ = *name ? '.' : 0;
    if (*name == 0) break;
  }
  return settled;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Order. */

/* Where a part stands among others beside it; what is not listed stands in the middle, by name. */
static const struct {
  const char *part;
  int rank;
} ranks[] = {
    {"embed_norm", 0},
    {"token_embd_norm", 0},
    {"encoder", 10},
    {"decoder", 20},
    {"input_layernorm", 10},
    {"ln_1", 10},
    {"self_attn", 20},
    {"attn", 20},
    {"attention", 20},
    {"q_a_layernorm", 21},
    {"kv_a_layernorm", 22},
    {"q_norm", 23},
    {"k_norm", 24},
    {"v_norm", 25},
    {"mixer", 30},
    {"attn_sub_norm", 31},
    {"post_attention_layernorm", 40},
    {"pre_feedforward_layernorm", 60},
    {"ln_2", 60},
    {"mlp", 61},
    {"post_feedforward_layernorm", 70},
    {"norm", 90},
    {"norm_f", 90},
    {"ln_f", 90},
    {"final_norm", 90},
    {"final_layernorm", 90},
    {"final_layer_norm", 90},
};
enum { RANK_OTHER = 50 };

static int rank_of(const char *name) {
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
    if (is_part(name, ranks[i].part)) return ranks[i].rank;
  return RANK_OTHER;
}

/* Two parts by name, the numbers in them by value: layer_2 before layer_10. */
static int natural(const char *a, size_t la, const char *b, size_t lb) {
  const char *ea = a + la, *eb = b + lb;
  while (a < ea && b < eb) {
    if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
      while (a < ea && *a == '0') a++;
      while (b < eb && *b == '0') b++;
      const char *sa = a, *sb = b;
      while (a < ea && isdigit((unsigned char)*a)) a++;
      while (b < eb && isdigit((unsigned char)*b)) b++;
      if (a - sa != b - sb) return a - sa < b - sb ? -1 : 1;
      const int order = memcmp(sa, sb, (size_t)(a - sa));
      if (order != 0) return order;
    } else {
      if (*a != *b) return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
      a++, b++;
    }
  }
  return (a < ea) - (b < eb);
}

int rn_name_order(const char *a, const char *b) {
  const char *whole_a = a, *whole_b = b;
  while (*a && *b) {
    const size_t la = part_length(a), lb = part_length(b);
    if (la != lb || strncmp(a, b, la) != 0) {
      const int rank_a = rank_of(a), rank_b = rank_of(b);
      if (rank_a != rank_b) return rank_a < rank_b ? -1 : 1;
      const int order = natural(a, la, b, lb);
      if (order != 0) return order;
    }
    a += la, b += lb;
    a += *a != 0, b += *b != 0;
  }
  if (*a || *b) return *a ? 1 : -1;
  return strcmp(whole_a, whole_b); /* 01 and 1 */
}

/* The next character that counts: separators, the s of "layers" and zeros that lead a number are left out. */
static int next_alike(const char **at, const char *whole) {
  for (;; (*at)++) {
    if (**at != 0 && strchr("._-/", **at) != NULL) continue;
    const bool leads = *at == whole || !isdigit((unsigned char)(*at)[-1]);
    if (**at == '0' && leads && isdigit((unsigned char)(*at)[1])) {
      whole = *at + 1; /* the next digit leads as well */
      continue;
    }
    if (**at == 's' && *at - whole >= 5 && strncmp(*at - 5, "layer", 5) == 0) continue;
    return **at == 0 ? 0 : tolower((unsigned char)*(*at)++);
  }
}

bool rn_name_alike(const char *a, const char *b) {
  const char *at_a = a, *at_b = b;
  for (;;) {
    const int x = next_alike(&at_a, a), y = next_alike(&at_b, b);
    if (x != y) return false;
    if (x == 0) return true;
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * Norms. */

typedef struct piece {
  char *name;
  const char *spec;
  int side, role;
} piece;

static int by_order(const void *a, const void *b) {
  const piece *x = a, *y = b;
  const int order = rn_name_order(x->name, y->name);
  return order != 0 ? order : x->side != y->side ? x->side - y->side : x->role - y->role;
}

static bool speaks_of_norm(const char *name) {
  static const char *const words[] = {"norm", "Norm", "ln_", "rms"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strstr(name, words[i]) != NULL) return true;
  return false;
}

static bool dump_is_sandwich(const rn_dump *dump) {
  for (size_t i = 0; i < dump->count; i++)
    if (rn_name_is_sandwich(dump->tensors[i].name)) return true;
  return false;
}

static bool add_pieces(piece *pieces, size_t *count, const rn_dump *dump, int side, const rn_patterns *patterns,
                       bool only_norms) {
  const bool sandwich = dump_is_sandwich(dump);
  for (size_t i = 0; i < dump->count; i++) {
    char *found = NULL;
    int role = 0;
    for (; role < RN_ROLES && found == NULL; role++)
      found = rn_pattern_match(patterns->of[role], dump->tensors[i].name);
    if (found == NULL || (only_norms && !speaks_of_norm(found))) {
      free(found);
      continue;
    }
    piece *p = &pieces[(*count)++];
    p->name = rn_name_settle(found, sandwich);
    free(found);
    p->spec = dump->tensors[i].spec, p->side = side, p->role = role - 1;
    if (p->name == NULL) return false;
  }
  return true;
}

bool rn_norms_find(rn_norms *norms, const rn_dump dumps[RN_SIDES], const rn_patterns *patterns, bool only_norms,
                   FILE *err) {
  size_t count = 0;
  piece *pieces = calloc(dumps[0].count + dumps[1].count + 1, sizeof *pieces);
  norms->count = 0;
  norms->at = calloc(dumps[0].count + dumps[1].count + 1, sizeof *norms->at);
  bool good = pieces != NULL && norms->at != NULL;
  for (int side = 0; side < RN_SIDES && good; side++)
    good = add_pieces(pieces, &count, &dumps[side], side, patterns, only_norms);
  if (good && count > 0) qsort(pieces, count, sizeof *pieces, by_order);
  for (size_t i = 0; i < count; i++) {
    rn_norm *n = norms->count > 0 ? &norms->at[norms->count - 1] : NULL;
    if (good && (n == NULL || strcmp(n->name, pieces[i].name) != 0)) {
      n = &norms->at[norms->count++];
      n->name = pieces[i].name;
      n->spec[pieces[i].side][pieces[i].role] = pieces[i].spec;
      continue;
    }
    if (good && n->spec[pieces[i].side][pieces[i].role] == NULL)
      n->spec[pieces[i].side][pieces[i].role] = pieces[i].spec;
    free(pieces[i].name);
  }
  if (!good) fprintf(err, "there is no memory for the names\n");
  free(pieces);
  return good;
}

void rn_norms_free(rn_norms *norms) {
  for (size_t i = 0; i < norms->count; i++) free(norms->at[i].name);
  free(norms->at);
  memset(norms, 0, sizeof *norms);
}
