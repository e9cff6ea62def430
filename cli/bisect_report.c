/* bisect_report.c - the walk in words, and as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bisect.h"
#include "json.h"
#include "message.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

static const struct {
  const char *name, *said, *escape;
} findings[] = {
    [RN_FINDING_EQUAL] = {"equal", "equal", "\033[32m"},
    [RN_FINDING_BENIGN] = {"benign", "right: another order of summation", "\033[32m"},
    [RN_FINDING_INPUTS] = {"inputs", "right for its own input", "\033[33m"},
    [RN_FINDING_FAULT] = {"fault", "AT FAULT", "\033[1;31m"},
    [RN_FINDING_UNEXPLAINED] = {"unexplained", "AT FAULT, and not explained", "\033[1;31m"},
    [RN_FINDING_BLIND] = {"blind", "differs; can not be judged", "\033[35m"},
    [RN_FINDING_ONE_SIDED] = {"one-sided", "only in one of the folders", "\033[2m"},
    [RN_FINDING_TROUBLE] = {"trouble", "not comparable", "\033[35m"},
};

static void pair_text(const rn_step_pair *p, char *text, size_t room) {
  if (!p->there)
    snprintf(text, room, "-");
  else if (p->differ == 0)
    snprintf(text, room, "equal");
  else if (p->nonfinite)
    snprintf(text, room, "%.3g %%, NaN or Inf", 100 * (double)p->differ / (double)p->elements);
  else
    snprintf(text, room, "%.3g %%, rms %.2g", 100 * (double)p->differ / (double)p->elements, p->rms);
}

static int name_width(const rn_walk *walk) {
  int width = 4;
  for (size_t i = 0; i < walk->count; i++) {
    const int length = (int)strlen(walk->steps[i].norm->name);
    if (length > width && length <= 60) width = length;
  }
  return width;
}

static void print_step(FILE *out, const rn_step *s, int width, bool colour) {
  char shape[48], x[48], y[48];
  snprintf(shape, sizeof shape, "%" PRId64 " x %" PRId64, s->rows, s->cols);
  pair_text(&s->x, x, sizeof x), pair_text(&s->y, y, sizeof y);
  rn_print_name(out, s->norm->name);
  fprintf(out, "%*s  %-14s %-18s %-18s %s%s%s\n", width - (int)strlen(s->norm->name), "",
          s->finding == RN_FINDING_ONE_SIDED ? "" : shape, x, y, colour ? findings[s->finding].escape : "",
          findings[s->finding].said, colour ? "\033[0m" : "");
}

/* The norms one by one; of a long run that is equal only the ends. */
static void print_steps(FILE *out, const rn_walk *walk) {
  enum { RUN = 4 };
  const bool colour = rn_color(out);
  const int width = name_width(walk);
  fprintf(out, "%-*s  %-14s %-18s %-18s %s\n", width, "norm", "rows x cols", "input", "output", "");
  for (size_t i = 0, end; i < walk->count; i = end) {
    for (end = i; end < walk->count && walk->steps[end].finding == RN_FINDING_EQUAL && walk->steps[end].x.differ == 0;
         end++) {
    }
    if (end < i + RUN) {
      end = i + 1;
      print_step(out, &walk->steps[i], width, colour);
      continue;
    }
    print_step(out, &walk->steps[i], width, colour);
    fprintf(out, "  ... %zu more, equal ...\n", end - i - 2);
    print_step(out, &walk->steps[end - 1], width, colour);
  }
}

static void print_found(FILE *out, const rn_walk *walk) {
  const bool bright = rn_color(out);
  fprintf(out, "\n%sfirst norm that differs by itself: ", bright ? "\033[1m" : "");
  rn_print_name(out, walk->found->norm->name);
  fprintf(out, "%s\n", bright ? "\033[0m" : "");
  if (walk->weight != NULL)
    fprintf(out, "  weight     ");
  else
    fprintf(out, "  weight     none was found");
  if (walk->weight != NULL) rn_print_name(out, walk->weight);
  fputc('\n', out);
  if (walk->x != NULL) {
    fprintf(out, "  input      %s has none; taken from ", walk->side == RN_SIDE_A ? "a" : "b");
    rn_print_name(out, walk->x);
    fputc('\n', out);
  }
  if (walk->side == RN_SIDE_B)
    fprintf(out, "  side       b, the reference: a does here what b does in its other norms\n");
  if (*walk->expected) fprintf(out, "  reference  %s\n", walk->expected);
  fputc('\n', out);
  if (walk->diffed) rn_diff_print(out, &walk->diff);
  if (!walk->measured) return;
  fprintf(out, "\nthe output of %s against %s\n", walk->side == RN_SIDE_A ? "a" : "b", walk->against);
  if (!walk->diffed || walk->diff.verdict == RN_DIFF_UNEXPLAINED) rn_measured_print(out, &walk->measure);
  rn_picture_print(out, &walk->picture);
}

static void print_no_fault(FILE *out, const rn_walk *walk) {
  bool differ = false;
  for (size_t i = 0; i < walk->count; i++)
    differ = differ || walk->steps[i].finding == RN_FINDING_BENIGN || walk->steps[i].finding == RN_FINDING_INPUTS;
  fprintf(out, "\nno norm is at fault%s\n", differ ? "" : ": all outputs are equal");
  if (walk->entered == NULL) return;
  fprintf(out, "the first difference is not made by a norm: it reaches ");
  rn_print_name(out, walk->entered->norm->name);
  fprintf(out, " with its input,\nafter outputs that were all equal. Look at what lies between that norm and the one "
               "before it.\n");
}

void rn_walk_print(FILE *out, const rn_walk *walk) {
  print_steps(out, walk);
  if (walk->found != NULL)
    print_found(out, walk);
  else if (!walk->trouble)
    print_no_fault(out, walk);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void put_pair(FILE *out, const char *name, const rn_step_pair *p) {
  if (!p->there)
    fprintf(out, ",\"%s\":null", name);
  else
    fprintf(out, ",\"%s\":{\"elements\":%" PRId64 ",\"differ\":%" PRId64 ",\"ulp\":%" PRIu64, name, p->elements,
            p->differ, p->ulp);
  if (p->there && p->rms <= DBL_MAX) fprintf(out, ",\"rms\":%.9g", p->rms);
  if (p->there) fprintf(out, ",\"finite\":%s}", p->nonfinite ? "false" : "true");
}

static void put_name(FILE *out, const char *key, const char *name) {
  fprintf(out, ",\"%s\":", key);
  if (name != NULL)
    rn_json_put(out, name);
  else
    fprintf(out, "null");
}

void rn_walk_json(FILE *out, const rn_walk *walk) {
  fprintf(out, "{\"format\":1,\"command\":\"bisect\",\"norms\":[");
  for (size_t i = 0; i < walk->count; i++) {
    const rn_step *s = &walk->steps[i];
    fprintf(out, "%s{\"name\":", i ? "," : "");
    rn_json_put(out, s->norm->name);
    fprintf(out, ",\"finding\":\"%s\",\"rows\":%" PRId64 ",\"cols\":%" PRId64, findings[s->finding].name, s->rows,
            s->cols);
    put_pair(out, "input", &s->x), put_pair(out, "output", &s->y);
    fputc('}', out);
  }
  fputc(']', out);
  put_name(out, "found", walk->found != NULL ? walk->found->norm->name : NULL);
  put_name(out, "entered", walk->entered != NULL ? walk->entered->norm->name : NULL);
  fprintf(out, ",\"trouble\":%s", walk->trouble ? "true" : "false");
  put_name(out, "side", walk->found == NULL ? NULL : walk->side == RN_SIDE_A ? "a" : "b");
  put_name(out, "weight", walk->weight), put_name(out, "input_of_other", walk->x);
  put_name(out, "reference", *walk->expected ? walk->expected : NULL);
  if (walk->diffed) fprintf(out, ",\"diff\":"), rn_diff_json(out, "bisect", &walk->diff);
  if (walk->measured) fprintf(out, ",\"measure\":"), rn_measured_json(out, &walk->measure);
  fprintf(out, "}\n");
}
