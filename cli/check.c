/* check.c - `rmsnorm check`: every implementation of this machine against portable (bits) and float64 (ulps).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "checking.h"
#include "commands.h"
#include "faults.h"
#include "message.h"
#include "options.h"

#include <fnmatch.h>
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
    "  rmsnorm check --device cuda            the same on a GPU, and what only a GPU can get wrong\n"
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
    "  --device WHERE   cpu (default), cuda, hip, or with the number of the GPU: cuda:N, hip:N\n"
    "  --every N        only every Nth case of each family, for slow machines\n"
    "  --quick, --long  fewer cases, many more; --smoke: an eleventh of --quick\n"
    "  --list           the families and their number of cases, nothing is run\n"
    "  --self-test      run deliberately broken libraries; each has to be caught\n"
    "  --json           one JSON document instead of the text\n"
    "\n"
    "Exit status: 0 no differences, 1 differences, 2 trouble.\n";

/* ---- when memory is touched that may not be ---- */

static const char *running;

static void on_fault(int signal_number) {
  static const char before[] = "\nrmsnorm check: memory that may not be touched was touched, in\n  ";
  (void)signal_number;
  ssize_t ignored = write(2, before, sizeof before - 1);
  if (running) ignored = write(2, running, strlen(running));
  ignored = write(2, "\n", 1);
  (void)ignored;
  _exit(1);
}

/* ---- choosing ---- */

bool rn_check_takes(const rn_check_options *o, const char *family, int64_t index) {
  char name[64], head[64];
  if (!o->which) return true;
  const char *slash = strchr(o->which, '/');
  if (!slash) return !fnmatch(o->which, family, 0);
  snprintf(name, sizeof name, "%s/%lld", family, (long long)index);
  snprintf(head, sizeof head, "%.*s", (int)(slash - o->which), o->which);
  return index < 0 ? !fnmatch(head, family, 0) : !fnmatch(o->which, name, 0);
}

/* A case that is named by its number exists at every level. */
int64_t rn_check_cases(const rn_check_options *o, const int64_t *levels) {
  return levels[o->which && strchr(o->which, '/') ? RN_LONG : o->level];
}

static int64_t cases_of(const rn_check_options *o, int family) {
  const int64_t levels[RN_LEVELS] = {rn_family_cases(family, RN_QUICK), rn_family_cases(family, RN_DEFAULT),
                                     rn_family_cases(family, RN_LONG)};
  return rn_check_cases(o, levels);
}

/* ---- running ---- */

/* Bits may not depend on how a call is launched: the cases of a device take all ways by turns. */
void rn_check_launch(rn_harness *h, int64_t index) {
  static const int32_t most[] = {0, 0, 0, 1, 0, 3, 0, 37};
  h->launch.multiprocessors = most[index / 2 % 8];
  h->launch.dependent = index % 5 == 4;
}

static int run_case(rn_harness *h, const rn_case *c, const rn_check_options *o, rn_check_report *r) {
  rn_check_note_running(r, c, "portable, packed");
  int answer = rn_harness_prepare(h, c, r->judged);
  if (h->found) rn_check_findings(h, "portable", c->family, c->index, o, r);
  if (answer == 2) return h->found ? 0 : 2; /* refused: reported, go on */
  for (int i = 0; i < r->impls; i++) {
    bool unsupported;
    rn_check_note_running(r, c, r->name[i]);
    h->stream = c->index % 2 ? r->stream : NULL;
    rn_check_launch(h, c->index);
    answer = rn_harness_run(h, r->name[i], &r->tally[i], &unsupported);
    if (h->found) rn_check_findings(h, r->name[i], c->family, c->index, o, r);
    if (answer == 2) return 2;
  }
  return 0;
}

static int check_all(const rn_check_options *o, rn_check_report *r) {
  rn_harness h;
  rn_harness_init(&h);
  h.device = r->device;
  for (int f = 0; f < rn_family_count(); f++)
    if (rn_check_takes(o, rn_family_name(f), -1)) r->total += (cases_of(o, f) + o->step - 1) / o->step;
  if (r->device) r->total += rn_device_family_total(o);
  int status = 0;
  for (int f = 0; f < rn_family_count() && status != 2; f++)
    for (int64_t i = 0; i < cases_of(o, f) && status != 2; i += o->step) {
      rn_case c;
      if (!rn_check_takes(o, rn_family_name(f), -1)) break;
      rn_case_make(&c, f, i, o->seed);
      if (!rn_check_takes(o, c.family, i)) continue;
      status = run_case(&h, &c, o, r);
      rn_check_progress(r, c.family);
    }
  rn_harness_free(&h);
  if (status != 2 && r->device) status = rn_device_families(o, r);
  return status;
}

static int list_families(const rn_check_options *o) {
  for (int f = 0; f < rn_family_count(); f++) {
    printf("%-10s %6lld  %s\n", rn_family_name(f), (long long)((rn_family_cases(f, o->level) + o->step - 1) / o->step),
           rn_family_about(f));
    if (!o->which) continue;
    for (int64_t i = 0; i < rn_family_cases(f, o->level); i += o->step) {
      rn_case c;
      char text[1200];
      rn_case_make(&c, f, i, o->seed);
      if (!rn_check_takes(o, c.family, i)) continue;
      rn_case_describe(&c, text, sizeof text);
      printf("  %s\n", text);
    }
  }
  if (o->where.device != RMSNORM_DEVICE_CPU) rn_device_family_list(o);
  return 0;
}

static bool take_quick(const char *text, void *to) {
  (void)text;
  ((rn_check_options *)to)->level = RN_QUICK;
  return true;
}
static bool take_long(const char *text, void *to) {
  (void)text;
  ((rn_check_options *)to)->level = RN_LONG;
  return true;
}
/* Eleven shares no factor with the periods of the families, so all their kinds still occur. */
static bool take_smoke(const char *text, void *to) {
  (void)text;
  ((rn_check_options *)to)->level = RN_QUICK, ((rn_check_options *)to)->step = 11;
  return true;
}

static int parse(int argc, char **argv, rn_check_options *o) {
  const rn_option table[] = {{"impl", rn_take_text, &o->impl, "a pattern"},
                             {"case", rn_take_text, &o->which, "a pattern"},
                             {"seed", rn_take_seed, &o->seed, "a whole number"},
                             {"device", rn_take_where, &o->where, RN_WHERE_EXPECTED},
                             {"every", rn_take_count, &o->step, "a whole number from 1"},
                             {"smoke", take_smoke, o, NULL},
                             {"quick", take_quick, o, NULL},
                             {"long", take_long, o, NULL},
                             {"list", rn_take_flag, &o->list, NULL},
                             {"self-test", rn_take_flag, &o->self_test, NULL},
                             {"json", rn_take_flag, &o->json, NULL},
                             {NULL, NULL, NULL, NULL}};
  return rn_options("check", argc, argv, table, help);
}

static int self_test(const rn_check_options *o) {
  if (o->where.device != RMSNORM_DEVICE_CPU)
    return rn_trouble("check", "--self-test breaks results in the memory of the CPU; leave --device away");
  int missed = rn_self_test(stdout, o->seed);
  if (missed < 0) return rn_trouble("check", "no memory");
  printf("\nseed %llu: %d faults, hunted twice; %s\n", (unsigned long long)o->seed, rn_fault_count(),
         missed ? "some were NOT caught" : "all were caught");
  return missed > 0;
}

/* The implementations to check. 0, or the exit status of a refusal. */
static int choose(const rn_check_options *o, rn_check_report *r) {
  const char *reason = NULL;
  for (int i = 0; rmsnorm_impl_name(i) && r->impls < RN_CHECK_IMPLS; i++) {
    const char *name = rmsnorm_impl_name(i);
    if (!rn_where_has(&o->where, i) || (o->impl && fnmatch(o->impl, name, 0))) continue;
    const char *why = rmsnorm_impl_why_not(i);
    if (!why)
      r->name[r->impls++] = name;
    else if (!o->json)
      printf("%s: not on this machine: %s\n", name, why);
    if (why) reason = why;
  }
  if (r->impls) return 0;
  if (o->where.device != RMSNORM_DEVICE_CPU && !o->impl)
    return rn_trouble("check", "no implementation works on this device: %s",
                      reason ? reason : "this build of the library has none for it");
  return rn_trouble("check", "no implementation of this machine matches '%s'. Try: rmsnorm info",
                    o->impl ? o->impl : "*");
}

static int check(const rn_check_options *o, rn_check_report *r) {
  struct timespec start, stop;
  clock_gettime(CLOCK_MONOTONIC, &start);
  int status = check_all(o, r);
  clock_gettime(CLOCK_MONOTONIC, &stop);
  double seconds = (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
  if (status == 2 && !rn_check_found(r))
    return rn_trouble("check", "no memory%s%s for %s", r->device ? ", or the device failed: " : "",
                      r->device ? rn_device_error() : "", r->running);
  if (!r->cases && !rn_check_found(r))
    return rn_trouble("check", "no case matches '%s'. Try: rmsnorm check --list", o->which ? o->which : "*");
  rn_check_print(o, r, seconds);
  if (status == 2) rn_trouble("check", "stopped early, in %s", r->running);
  return rn_check_found(r) > 0;
}

int rn_cmd_check(int argc, char **argv) {
  static rn_check_report r;
  rn_check_options o = {.seed = 1, .level = RN_DEFAULT, .step = 1};
  rn_device *device = NULL;
  int status = parse(argc, argv, &o);
  memset(&r, 0, sizeof r);
  if (status >= 0) return status;
  running = r.running;
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  if (o.self_test) return self_test(&o);
  if (o.list) return list_families(&o);
  if (o.where.device != RMSNORM_DEVICE_CPU) {
    rn_device_choose(o.where.device);
    device = rn_device_open(o.where.ordinal);
    if (!device || !rn_device_facts_of(o.where.ordinal, &r.facts) || !(r.stream = rn_stream_new())) {
      rn_device_close(device);
      return rn_trouble("check", "--device %s: %s", rn_where_name(&o.where), rn_device_error());
    }
    r.device = device;
    if (rmsnorm_preload(o.where.device) != RMSNORM_OK) {
      rn_stream_free(r.stream);
      rn_device_close(device);
      return rn_trouble("check", "--device %s: %s", rn_where_name(&o.where), rmsnorm_last_error());
    }
  }
  status = choose(&o, &r);
  if (!status) {
    r.tally = calloc(RN_CHECK_IMPLS, sizeof *r.tally), r.judged = calloc(1, sizeof *r.judged);
    status = r.tally && r.judged ? check(&o, &r) : rn_trouble("check", "no memory");
    free(r.tally), free(r.judged);
  }
  rn_stream_free(r.stream);
  rn_device_close(device);
  return status;
}
