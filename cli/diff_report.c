/* diff_report.c - what `rmsnorm diff` says: text for people, JSON for scripts, and the picture.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_options.h"

#include "json.h"
#include "measure.h"
#include "message.h"
#include "picture.h"

#include <inttypes.h>
#include <math.h>

static const char *const verdicts[] = {"equal", "benign", "explained", "unexplained"};
static const char *const matches[] = {"all bits", "within", "partly"};

static void print_count(FILE *out, int64_t count, const char *what) {
  fprintf(out, "%" PRId64 " %s%s", count, what, count == 1 ? "" : "s");
}

static void print_evidence(FILE *out, const rn_diff_evidence *e) {
  if (e->elements == 0) return;
  fprintf(out, "  %" PRId64 " of ", e->differ);
  print_count(out, e->elements, "element");
  fprintf(out, e->differ == 1 ? " differs" : " differ");
  if (e->differ > 0) {
    fprintf(out, ", in ");
    print_count(out, e->rows_differ, "row");
    fprintf(out, " and ");
    print_count(out, e->cols_differ, "column");
    fprintf(out, "; at most ");
    if (isinf(e->max_ulp))
      fprintf(out, "a NaN or infinity against a number");
    else
      fprintf(out, "%.4g ulp", e->max_ulp);
    fprintf(out, ", mean %+.3g ulp\n  the first: row %" PRId64 ", column %" PRId64 ": theirs %.9g, expected %.9g",
            e->mean_ulp, e->first_row, e->first_col, e->first_theirs, e->first_model);
  }
  if (e->unknown) {
    fprintf(out, "\n  ");
    print_count(out, e->unknown, "element");
    fprintf(out, " could not be judged");
  }
  fputc('\n', out);
}

void rn_diff_print(FILE *out, const rn_diff_result *r) {
  static const char *const colors[] = {"\033[1;32m", "\033[1;32m", "\033[1;33m", "\033[1;31m"};
  static const char *const words[] = {"equal", "equal but for the order of arithmetic", "differs, explained",
                                      "differs, not explained"};
  bool bright = rn_color(out);
  fprintf(out, "%s%s%s: %s\n", bright ? colors[r->verdict] : "", words[r->verdict], bright ? "\033[0m" : "",
          r->sentence);
  print_evidence(out, &r->evidence);
  for (int i = 0; i < r->count; i++) {
    const rn_diff_explanation *e = &r->explanation[i];
    if (e->match == RN_DIFF_PARTLY) {
      fprintf(out, i ? "next: %s\n  " : "no explanation, but the nearest there is: %s\n  ", e->sentence);
      print_count(out, e->evidence.outside, "element");
      fprintf(out, " outside of what the arithmetic allows\n");
      if (i == 0) print_evidence(out, &e->evidence);
      continue;
    }
    if (i > 0) fprintf(out, "as well explained by: %s\n", e->sentence);
    if (e->count == 0 || i > 0) continue;
    fprintf(out, "under that explanation:\n");
    print_evidence(out, &e->evidence);
    fprintf(out, "%sto change:%s %s\n", bright ? "\033[1m" : "", bright ? "\033[0m" : "", e->fix);
  }
}

static void json_number(FILE *out, double v) {
  if (isfinite(v))
    fprintf(out, "%.9g", v);
  else
    fprintf(out, "null");
}

static void json_evidence(FILE *out, const rn_diff_evidence *e) {
  fprintf(out,
          "{\"elements\":%" PRId64 ",\"unknown\":%" PRId64 ",\"differ\":%" PRId64 ",\"outside\":%" PRId64
          ",\"rows\":%" PRId64 ",\"cols\":%" PRId64 ",\"max_ulp\":",
          e->elements, e->unknown, e->differ, e->outside, e->rows_differ, e->cols_differ);
  json_number(out, e->max_ulp);
  fprintf(out, ",\"mean_ulp\":");
  json_number(out, e->mean_ulp);
  if (e->differ > 0) {
    fprintf(out, ",\"first\":{\"row\":%" PRId64 ",\"col\":%" PRId64 ",\"theirs\":", e->first_row, e->first_col);
    json_number(out, e->first_theirs);
    fprintf(out, ",\"expected\":");
    json_number(out, e->first_model);
    fprintf(out, "}");
  }
  fprintf(out, "}");
}

void rn_diff_json(FILE *out, const char *command, const rn_diff_result *r) {
  fprintf(out, "{\"format\":1,\"command\":");
  rn_json_put(out, command);
  fprintf(out, ",\"verdict\":\"%s\",\"sentence\":", verdicts[r->verdict]);
  rn_json_put(out, r->sentence);
  fprintf(out, ",\"evidence\":");
  json_evidence(out, &r->evidence);
  fprintf(out, ",\"explanations\":[");
  for (int i = 0; i < r->count; i++) {
    const rn_diff_explanation *e = &r->explanation[i];
    fprintf(out, "%s{\"names\":[", i ? "," : "");
    for (int k = 0; k < e->count; k++) fprintf(out, "%s\"%s\"", k ? "," : "", e->hypothesis[k]->name);
    fprintf(out, "],\"match\":\"%s\",\"preset\":\"%s\",\"roundings\":", matches[e->match], e->preset);
    rn_json_put(out, e->roundings);
    fprintf(out, ",\"sentence\":");
    rn_json_put(out, e->sentence);
    fprintf(out, ",\"fix\":");
    rn_json_put(out, e->fix);
    fprintf(out, ",\"parameters\":{");
    for (int k = 0; k < e->parameter_count; k++) {
      if (k) fputc(',', out);
      rn_json_put(out, e->parameters[k].name);
      fputc(':', out);
      json_number(out, e->parameters[k].value);
    }
    fprintf(out, "},\"rstd_units\":");
    json_number(out, e->units);
    fprintf(out, ",\"evidence\":");
    json_evidence(out, &e->evidence);
    fprintf(out, "}");
  }
  fprintf(out, "]}");
}

bool rn_diff_picture(FILE *out, const rn_tensor *a, const rn_tensor *b) {
  rn_picture p;
  if (!rn_picture_make(&p, a, b, RN_PICTURE_TEXT_ROWS, RN_PICTURE_TEXT_COLS, stderr)) return false;
  rn_picture_print(out, &p);
  rn_picture_free(&p);
  return true;
}

int rn_diff_report(const rn_diff_job *j, const rn_diff_result *r) {
  rn_tensor ours = j->theirs;
  ours.data = r->ours, ours.dtype = r->ours_dtype, ours.item_bytes = (int)rmsnorm_dtype_bytes(r->ours_dtype);
  bool both = r->ours != NULL && r->evidence.differ > 0;
  if (j->json) {
    rn_diff_json(stdout, "diff", r);
    putchar('\n');
  } else if (!j->quiet) {
    rn_diff_print(stdout, r);
    if (both && r->verdict >= RN_DIFF_EXPLAINED) {
      rn_measured m;
      if (r->verdict == RN_DIFF_UNEXPLAINED) {
        /* Nothing known: what can be said is what the numbers look like. */
        if (!rn_measure(&j->theirs, &ours, &m, stderr)) return 2;
        rn_measured_print(stdout, &m);
        rn_measured_free(&m);
      }
      if (!rn_diff_picture(stdout, &j->theirs, &ours)) return 2;
    }
  }
  if (j->svg && r->ours == NULL) return rn_trouble("diff", "--svg: there is nothing to draw: nothing was computed");
  if (j->svg && !rn_picture_svg_file(j->svg, &j->theirs, &ours, j->theirs_spec, stderr)) return 2;
  return r->verdict <= RN_DIFF_BENIGN ? 0 : 1;
}
