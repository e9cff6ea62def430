/* check_report.c - what `rmsnorm check` says: findings as they come, the tables and the summary at the end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "checking.h"
#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void rn_check_note_running(rn_check_report *r, const rn_case *c, const char *impl) {
  rn_case_describe(c, r->running, sizeof r->running - 40);
  size_t at = strlen(r->running);
  snprintf(r->running + at, sizeof r->running - at, " [%s]", impl);
}

void rn_check_note(rn_check_report *r, const char *format, ...) {
  va_list list;
  if (r->notes++ >= RN_CHECK_NOTES) return;
  va_start(list, format);
  vsnprintf(r->note[r->notes - 1], sizeof r->note[0], format, list);
  va_end(list);
}

static void print_again(FILE *out, const char *impl, const char *family, int64_t index, const rn_check_options *o) {
  fprintf(out, "  again: rmsnorm check%s --impl %s --case %s/%lld --seed %llu\n",
          o->where.device == RMSNORM_DEVICE_CPU   ? ""
          : o->where.device == RMSNORM_DEVICE_HIP ? " --device hip"
                                                  : " --device cuda",
          impl, family, (long long)index, (unsigned long long)o->seed);
}

void rn_check_findings(const rn_harness *h, const char *impl, const char *family, int64_t index,
                       const rn_check_options *o, rn_check_report *r) {
  FILE *out = o->json ? stderr : stdout;
  char text[1200];
  if (r->reports++ >= RN_CHECK_REPORTS) return;
  rn_case_describe(h->c, text, sizeof text);
  fprintf(out, "%s: %s\n", impl, text);
  for (int i = 0; i < h->found; i++) {
    const rn_finding *f = &h->findings[i];
    fprintf(out, "  %-8s %s", rn_finding_name(f->kind), rn_tensor_name(f->tensor));
    if (f->kind == RN_FOUND_REFUSED)
      fprintf(out, " %s", f->text);
    else if (f->kind == RN_FOUND_GUARD || f->kind == RN_FOUND_INPUT)
      fprintf(out, " byte %lld", (long long)f->col);
    else
      fprintf(out, "[%lld, %lld, %lld]: got %.9g (%a), expected %.9g (%a)%s", (long long)f->row, (long long)f->head,
              (long long)f->col, f->got, f->got, f->want, f->want, f->count > 1 ? "" : ", the only one");
    if (f->count > 1) fprintf(out, ", %lld in all", (long long)f->count);
    fprintf(out, "\n");
  }
  print_again(out, impl, family, index, o);
}

void rn_check_finding(rn_tally *tally, int kind, const char *impl, const char *family, int64_t index, const char *words,
                      const rn_check_options *o, rn_check_report *r) {
  FILE *out = o->json ? stderr : stdout;
  tally->found[kind]++;
  if (r->reports++ >= RN_CHECK_REPORTS) return;
  fprintf(out, "%s: %s/%lld\n  %-8s %s\n", impl, family, (long long)index, rn_finding_name(kind), words);
  print_again(out, impl, family, index, o);
}

/* A bar on a terminal; elsewhere, for the long runs on a device, a line for each family. */
void rn_check_progress(rn_check_report *r, const char *family) {
  static time_t last;
  static const char *shown;
  r->cases++;
  if (!isatty(2)) {
    if (r->device && shown != family)
      fprintf(stderr, "%lld of %lld cases: %s\n", (long long)r->cases - 1, (long long)r->total, family);
    shown = family;
    return;
  }
  time_t now = time(NULL);
  if (now == last && r->cases != r->total) return;
  last = now;
  int width = 30, full = r->total ? (int)(r->cases * width / r->total) : width;
  fprintf(stderr, "\r[%.*s%*s] %3lld%% %-10s", full, "##############################", width - full, "",
          (long long)(r->total ? r->cases * 100 / r->total : 100), family);
  if (r->cases == r->total) fprintf(stderr, "\r%60s\r", "");
}

static int64_t findings_of(const rn_tally *t) {
  int64_t n = 0;
  for (int k = 0; k < RN_FINDING_KINDS; k++) n += t->found[k];
  return n;
}

int64_t rn_check_found(const rn_check_report *r) {
  int64_t all = findings_of(r->judged);
  for (int i = 0; i < r->impls; i++) all += findings_of(&r->tally[i]);
  return all;
}

static int notes_kept(const rn_check_report *r) {
  return r->notes < RN_CHECK_NOTES ? r->notes : RN_CHECK_NOTES;
}

static void print_notes(const rn_check_report *r) {
  for (int i = 0; i < notes_kept(r); i++) printf("left out: %s\n", r->note[i]);
}

static void print_text(const rn_check_options *o, const rn_check_report *r, double seconds) {
  if (r->device) printf("%s, %s\n", r->facts.name, rn_device_version(&r->facts));
  printf("%-10s %8s %8s %14s %14s  %s\n", "impl", "cases", "not its", "elements", "other bits", "findings");
  for (int i = 0; i < r->impls; i++) {
    const rn_tally *t = &r->tally[i];
    printf("%-10s %8lld %8lld %14lld %14lld ", r->name[i], (long long)t->cases, (long long)t->unsupported,
           (long long)t->elements, (long long)t->differing);
    if (!findings_of(t)) printf(" none");
    for (int k = 0; k < RN_FINDING_KINDS; k++)
      if (t->found[k]) printf(" %s %lld", rn_finding_name(k), (long long)t->found[k]);
    printf("\n");
  }
  printf("\nAgainst float64 (portable; the others have its bits). ulp: of the magnitude that went into the element.\n"
         "bound: the largest distance as a share of what was computed to be possible.\n"
         "%-14s %-9s %-7s %12s %9s %7s  %s\n",
         "output", "type", "rounded", "elements", "ulp", "bound", "where");
  for (int t = 0; t < RN_TENSORS; t++)
    for (int staged = 0; staged < 2; staged++)
      for (int d = 0; d < RN_DTYPES; d++) {
        const rn_measure *m = &r->judged->measure[staged][t][d];
        if (m->elements)
          printf("%-14s %-9s %-7s %12lld %9.4f %7.3f  %s\n", rn_tensor_name(t), rmsnorm_dtype_name(d),
                 staged ? "stages" : "once", (long long)m->elements, m->ulp, m->share, m->where);
      }
  printf("\nportable against float64 and the staged model: %lld of %lld cases wrong\n",
         (long long)r->judged->failed_cases, (long long)r->cases);
  print_notes(r);
  printf("seed %llu, %lld cases, %.1f s: ", (unsigned long long)o->seed, (long long)r->cases, seconds);
  int64_t all = rn_check_found(r);
  if (r->notes) printf("%d of them left out, ", r->notes);
  if (r->reports > RN_CHECK_REPORTS) printf("%d reports, of which %d are shown, ", r->reports, RN_CHECK_REPORTS);
  printf(all ? "%lld findings\n" : "no difference\n", (long long)all);
}

static void print_json(const rn_check_options *o, const rn_check_report *r, double seconds) {
  printf("{\"version\": \"%s\", \"seed\": %llu, \"cases\": %lld, \"seconds\": %.2f,\n \"device\": ",
         rmsnorm_version_string(), (unsigned long long)o->seed, (long long)r->cases, seconds);
  rn_json_put(stdout, r->device ? r->facts.name : "cpu");
  printf(", \"left_out\": [");
  for (int i = 0; i < notes_kept(r); i++) printf("%s", i ? ", " : ""), rn_json_put(stdout, r->note[i]);
  printf("],\n \"implementations\": [");
  for (int i = 0; i < r->impls; i++) {
    const rn_tally *t = &r->tally[i];
    printf("%s\n  {\"name\": \"%s\", \"cases\": %lld, \"unsupported\": %lld, \"elements\": %lld, \"differing\": %lld, "
           "\"findings\": {",
           i ? "," : "", r->name[i], (long long)t->cases, (long long)t->unsupported, (long long)t->elements,
           (long long)t->differing);
    for (int k = 0; k < RN_FINDING_KINDS; k++)
      printf("%s\"%s\": %lld", k ? ", " : "", rn_finding_name(k), (long long)t->found[k]);
    printf("}}");
  }
  printf("],\n \"float64\": {\"wrong_cases\": %lld, \"outputs\": [", (long long)r->judged->failed_cases);
  bool first = true;
  for (int t = 0; t < RN_TENSORS; t++)
    for (int staged = 0; staged < 2; staged++)
      for (int d = 0; d < RN_DTYPES; d++) {
        const rn_measure *m = &r->judged->measure[staged][t][d];
        if (!m->elements) continue;
        printf("%s\n  {\"output\": \"%s\", \"type\": \"%s\", \"rounded\": \"%s\", \"elements\": %lld, \"ulp\": %.6g, "
               "\"bound\": %.6g, \"where\": ",
               first ? "" : ",", rn_tensor_name(t), rmsnorm_dtype_name(d), staged ? "stages" : "once",
               (long long)m->elements, m->ulp, m->share);
        rn_json_put(stdout, m->where);
        printf("}");
        first = false;
      }
  printf("]}}\n");
}

void rn_check_print(const rn_check_options *o, const rn_check_report *r, double seconds) {
  if (o->json)
    print_json(o, r, seconds);
  else
    print_text(o, r, seconds);
}
