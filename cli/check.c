/* check.c - `rmsnorm check`: every implementation of this machine against portable (bits) and float64 (ulps).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "faults.h"
#include "harness.h"
#include "json.h"
#include "message.h"

#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "Examples:\n"
    "  rmsnorm check                          everything, one or two minutes\n"
    "  rmsnorm check --quick                  some seconds\n"
    "  rmsnorm check --impl avx2 --case quant\n"
    "  rmsnorm check --case cols/577 --seed 1 one case again, as a report named it\n"
    "  rmsnorm check --self-test              prove that broken kernels are caught\n"
    "\n"
    "Usage: rmsnorm check [OPTION]...\n"
    "\n"
    "Runs every implementation that this machine has on many calls and compares all results "
    "with those of the portable\n"
    "implementation bit for bit, and those with a float64 reference within bounds that are "
    "computed for every element.\n"
    "Outputs lie in guarded memory, inputs may not change.\n"
    "\n"
    "  --impl PATTERN   only implementations whose name matches (*, ? and [ ] as in the shell)\n"
    "  --case PATTERN   only families (\"quant\") or cases (\"quant/17\") that match\n"
    "  --seed N         another set of random cases (default 1)\n"
    "  --quick, --long  fewer cases, many more; --smoke: an eleventh of --quick, for slow machines\n"
    "  --list           the families and their number of cases, nothing is run\n"
    "  --self-test      run deliberately broken libraries; each has to be caught\n"
    "  --json           one JSON document instead of the text\n"
    "\n"
    "Exit status: 0 no differences, 1 differences, 2 trouble.\n";

enum { MOST_IMPLS = 16, MOST_REPORTS = 20 };

typedef struct options {
  const char *impl, *which;
  uint64_t seed;
  rn_level level;
  int64_t step; /* every so manieth case of a family */
  bool json, list, self_test;
} options;

typedef struct report {
  int impls;
  const char *name[MOST_IMPLS];
  rn_tally *tally;  /* of each implementation */
  rn_tally *judged; /* portable against float64 and the staged model */
  int64_t cases;
  int reports;
} report;

/* ---- what is running, for the signal handler ---- */

static char running[1400];

static void on_fault(int signal_number) {
  static const char before[] = "\nrmsnorm check: memory that may not be touched was touched, in\n  ";
  (void)signal_number;
  ssize_t ignored = write(2, before, sizeof before - 1);
  ignored = write(2, running, strlen(running));
  ignored = write(2, "\n", 1);
  (void)ignored;
  _exit(1);
}

static void note_running(const rn_case *c, const char *impl) {
  rn_case_describe(c, running, sizeof running - 40);
  size_t at = strlen(running);
  snprintf(running + at, sizeof running - at, " [%s]", impl);
}

/* ---- choosing ---- */

static bool matches(const char *pattern, const rn_case *c) {
  char name[64];
  if (!pattern) return true;
  if (!strchr(pattern, '/')) return !fnmatch(pattern, c->family, 0);
  snprintf(name, sizeof name, "%s/%lld", c->family, (long long)c->index);
  return !fnmatch(pattern, name, 0);
}

static bool family_matches(const char *pattern, int family) {
  char head[64];
  if (!pattern) return true;
  snprintf(head, sizeof head, "%s", pattern);
  char *slash = strchr(head, '/');
  if (slash) *slash = 0;
  return !fnmatch(head, rn_family_name(family), 0);
}

/* A case that is named by its number exists at every level. */
static int64_t cases_of(const options *o, int family) {
  return rn_family_cases(family, o->which && strchr(o->which, '/') ? RN_LONG : o->level);
}

/* ---- reporting ---- */

static void print_findings(const rn_harness *h, const rn_case *c, const char *impl, const options *o, report *r) {
  FILE *out = o->json ? stderr : stdout;
  char text[1200];
  if (r->reports++ >= MOST_REPORTS) return;
  rn_case_describe(c, text, sizeof text);
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
  fprintf(out, "  again: rmsnorm check --impl %s --case %s/%lld --seed %llu\n", impl, c->family, (long long)c->index,
          (unsigned long long)o->seed);
}

static void progress(const report *r, int64_t total, const char *family) {
  static time_t last;
  if (!isatty(2)) return;
  time_t now = time(NULL);
  if (now == last && r->cases != total) return;
  last = now;
  int width = 30, full = total ? (int)(r->cases * width / total) : width;
  fprintf(stderr, "\r[%.*s%*s] %3lld%% %-10s", full, "##############################", width - full, "",
          (long long)(total ? r->cases * 100 / total : 100), family);
  if (r->cases == total) fprintf(stderr, "\r%60s\r", "");
}

static int64_t findings_of(const rn_tally *t) {
  int64_t n = 0;
  for (int k = 0; k < RN_FINDING_KINDS; k++) n += t->found[k];
  return n;
}

static void print_text(const options *o, const report *r, double seconds) {
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
  int64_t judged = findings_of(r->judged);
  printf("\nportable against float64 and the staged model: %lld of %lld cases wrong\n",
         (long long)r->judged->failed_cases, (long long)r->cases);
  printf("seed %llu, %lld cases, %.1f s: ", (unsigned long long)o->seed, (long long)r->cases, seconds);
  int64_t all = judged;
  for (int i = 0; i < r->impls; i++) all += findings_of(&r->tally[i]);
  if (r->reports > MOST_REPORTS) printf("%d reports, of which %d are shown, ", r->reports, MOST_REPORTS);
  printf(all ? "%lld findings\n" : "no difference\n", (long long)all);
}

static void print_json(const options *o, const report *r, double seconds) {
  printf("{\"version\": \"%s\", \"seed\": %llu, \"cases\": %lld, \"seconds\": %.2f,\n \"implementations\": [",
         rmsnorm_version_string(), (unsigned long long)o->seed, (long long)r->cases, seconds);
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

/* ---- running ---- */

static int run_case(rn_harness *h, const rn_case *c, const options *o, report *r) {
  note_running(c, "portable, packed");
  int answer = rn_harness_prepare(h, c, r->judged);
  if (h->found) print_findings(h, c, "portable", o, r);
  if (answer == 2) return h->found ? 1 : 2; /* refused: reported, go on */
  for (int i = 0; i < r->impls; i++) {
    bool unsupported;
    note_running(c, r->name[i]);
    if (rn_harness_run(h, r->name[i], &r->tally[i], &unsupported) == 2) return 2;
    if (h->found) print_findings(h, c, r->name[i], o, r);
  }
  return 0;
}

static int check_all(const options *o, report *r) {
  rn_harness h;
  rn_harness_init(&h);
  int64_t total = 0;
  for (int f = 0; f < rn_family_count(); f++)
    if (family_matches(o->which, f)) total += (cases_of(o, f) + o->step - 1) / o->step;
  int status = 0;
  for (int f = 0; f < rn_family_count() && status != 2; f++)
    for (int64_t i = 0; i < cases_of(o, f) && status != 2; i += o->step) {
      rn_case c;
      if (!family_matches(o->which, f)) break;
      rn_case_make(&c, f, i, o->seed);
      if (!matches(o->which, &c)) continue;
      status = run_case(&h, &c, o, r);
      r->cases++;
      progress(r, total, c.family);
    }
  rn_harness_free(&h);
  return status;
}

static int list_families(const options *o) {
  for (int f = 0; f < rn_family_count(); f++) {
    printf("%-10s %6lld  %s\n", rn_family_name(f), (long long)((rn_family_cases(f, o->level) + o->step - 1) / o->step),
           rn_family_about(f));
    if (!o->which) continue;
    for (int64_t i = 0; i < rn_family_cases(f, o->level); i += o->step) {
      rn_case c;
      char text[1200];
      rn_case_make(&c, f, i, o->seed);
      if (!matches(o->which, &c)) continue;
      rn_case_describe(&c, text, sizeof text);
      printf("  %s\n", text);
    }
  }
  return 0;
}

static bool parse(int argc, char **argv, options *o, int *exit_status) {
  enum { IMPL = 256, CASE, SEED, QUICK, SMOKE, LONG, LIST, SELF_TEST, JSON, HELP };
  static const struct option table[] = {{"impl", required_argument, NULL, IMPL},
                                        {"case", required_argument, NULL, CASE},
                                        {"seed", required_argument, NULL, SEED},
                                        {"smoke", no_argument, NULL, SMOKE},
                                        {"quick", no_argument, NULL, QUICK},
                                        {"long", no_argument, NULL, LONG},
                                        {"list", no_argument, NULL, LIST},
                                        {"self-test", no_argument, NULL, SELF_TEST},
                                        {"json", no_argument, NULL, JSON},
                                        {"help", no_argument, NULL, HELP},
                                        {NULL, 0, NULL, 0}};
  char *end;
  *exit_status = 2;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, "h", table, NULL)) != -1;) switch (option) {
    case IMPL:
      o->impl = optarg;
      break;
    case CASE:
      o->which = optarg;
      break;
    case SEED:
      errno = 0;
      o->seed = strtoull(optarg, &end, 0);
      if (errno || *end || end == optarg || *optarg == '-') {
        rn_trouble("check", "--seed wants a whole number, found '%s'", optarg);
        return false;
      }
      break;
    case QUICK:
      o->level = RN_QUICK;
      break;
    case SMOKE: /* eleven shares no factor with the periods of the families, so all their kinds still occur */
      o->level = RN_QUICK, o->step = 11;
      break;
    case LONG:
      o->level = RN_LONG;
      break;
    case LIST:
      o->list = true;
      break;
    case SELF_TEST:
      o->self_test = true;
      break;
    case JSON:
      o->json = true;
      break;
    case 'h':
    case HELP:
      fputs(help, stdout);
      *exit_status = 0;
      return false;
    default:
      fputs("Try: rmsnorm check --help\n", stderr);
      return false;
    }
  if (optind < argc) {
    rn_trouble("check", "'%s' was not expected; options only. Try: rmsnorm check --help", argv[optind]);
    return false;
  }
  return true;
}

static int self_test(const options *o) {
  int missed = rn_self_test(stdout, o->seed);
  if (missed < 0) return rn_trouble("check", "no memory");
  printf("\nseed %llu: %d faults, hunted twice; %s\n", (unsigned long long)o->seed, rn_fault_count(),
         missed ? "some were NOT caught" : "all were caught");
  return missed > 0;
}

int rn_cmd_check(int argc, char **argv) {
  options o = {NULL, NULL, 1, RN_DEFAULT, 1, false, false, false};
  report r;
  int status;
  memset(&r, 0, sizeof r);
  if (!parse(argc, argv, &o, &status)) return status;
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  if (o.self_test) return self_test(&o);
  if (o.list) return list_families(&o);
  for (int i = 0; rmsnorm_impl_name(i) && r.impls < MOST_IMPLS; i++) {
    if (o.impl && fnmatch(o.impl, rmsnorm_impl_name(i), 0)) continue;
    const char *why = rmsnorm_impl_why_not(i);
    if (!why)
      r.name[r.impls++] = rmsnorm_impl_name(i);
    else if (!o.json)
      printf("%s: not on this machine: %s\n", rmsnorm_impl_name(i), why);
  }
  if (!r.impls)
    return rn_trouble("check", "no implementation of this machine matches '%s'. Try: rmsnorm info",
                      o.impl ? o.impl : "*");
  r.tally = calloc(MOST_IMPLS, sizeof *r.tally), r.judged = calloc(1, sizeof *r.judged);
  struct timespec start, stop;
  clock_gettime(CLOCK_MONOTONIC, &start);
  status = r.tally && r.judged ? check_all(&o, &r) : 2;
  clock_gettime(CLOCK_MONOTONIC, &stop);
  double seconds = (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
  if (status == 2) {
    status = rn_trouble("check", "no memory for %s", running);
  } else if (!r.cases) {
    status = rn_trouble("check", "no case matches '%s'. Try: rmsnorm check --list", o.which ? o.which : "*");
  } else {
    if (o.json)
      print_json(&o, &r, seconds);
    else
      print_text(&o, &r, seconds);
    int64_t all = findings_of(r.judged);
    for (int i = 0; i < r.impls; i++) all += findings_of(&r.tally[i]);
    status = all > 0;
  }
  free(r.tally), free(r.judged);
  return status;
}
