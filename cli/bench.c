/* bench.c - `rmsnorm bench`: options, the list of cells, the table. How a cell is measured: bench_measure.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "commands.h"
#include "json.h"
#include "message.h"

#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <stdlib.h>
#include <unistd.h>

static const char help[] =
    "Examples:\n"
    "  rmsnorm bench                                  a table of the usual cells, some minutes\n"
    "  rmsnorm bench --op forward --dtype bf16 --cols 4096 --bytes 256M\n"
    "  rmsnorm bench --rows 1 --cols 576,4096 --threads 1\n"
    "  rmsnorm bench --json --svg chart.svg\n"
    "  rmsnorm bench --call-cost                      nanoseconds of a one-row call of 64 columns\n"
    "\n"
    "Usage: rmsnorm bench [OPTION]...\n"
    "\n"
    "Times every operation beside plain copies of the same number of bytes, in the same run, interleaved, with the "
    "same\n"
    "number of threads. The fraction is the time of the fastest copy over the time of the library. Every cell is "
    "checked\n"
    "against float64 and against the portable implementation before it is timed.\n"
    "\n"
    "  --op LIST        forward, residual, backward (with dweight), backward-dx, quant-row, gated\n"
    "                   (default: the first three)\n"
    "  --dtype LIST     f32, bf16, f16 (default: all)\n"
    "  --cols LIST      (default 128,576,1024,4096,16384,131072)\n"
    "  --bytes LIST     working sets, K, M and G allowed (default 512K,8M,256M)\n"
    "  --rows N         rows of one call; calls go round the working set (default: one call does all of it)\n"
    "  --threads LIST   (default: 1 and all processors)\n"
    "  --impl PATTERN   every implementation that matches, instead of the library's choice\n"
    "  --naive          plain C loops beside it, as they are and with -ffast-math\n"
    "  --time SECONDS   for every cell (default 0.15)\n"
    "  --call-cost      only what a call costs\n"
    "  --json           one JSON document instead of the table\n"
    "  --svg FILE       a chart: fraction against cols\n"
    "\n"
    "A cell marked ? (\"reliable\": false) was measured on a busy machine: its fraction is above 1.5, or the median "
    "copy\n"
    "took more than twice as long as the fastest.\n"
    "For two threads and more set OMP_PROC_BIND=true in the environment, so that they stay where they are.\n"
    "Exit status: 0 fine, 1 a result was wrong, 2 trouble.\n";

enum { MOST = 32, MOST_CELLS = 4096 };

typedef struct list {
  int64_t value[MOST];
  int count;
} list;

typedef struct options {
  list ops, dtypes, cols, bytes, threads;
  int64_t rows;
  double time;
  const char *impl, *svg;
  bool json, naive, call_cost;
} options;

/* ---- options ---- */

static bool number(const char *word, int64_t *value) {
  char *end;
  errno = 0;
  long long v = strtoll(word, &end, 10);
  int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  if (shift) end++;
  if (errno || *end || end == word || v < 1 || v > INT64_MAX >> (shift + 1)) return false;
  *value = (int64_t)v << shift;
  return true;
}

static bool op_named(const char *word, int64_t *value) {
  for (int i = 0; i < RN_BENCH_OPS; i++)
    if (!strcmp(word, rn_bench_op_names[i])) return *value = i, true;
  return false;
}

static bool dtype_named(const char *word, int64_t *value) {
  static const int dtypes[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
  for (int i = 0; i < 3; i++)
    if (!strcmp(word, rmsnorm_dtype_name(dtypes[i]))) return *value = dtypes[i], true;
  return false;
}

static bool take_list(list *l, const char *text, const char *option, bool (*read)(const char *, int64_t *)) {
  char word[64];
  l->count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    snprintf(word, sizeof word, "%.*s", (int)length, at);
    if (l->count == MOST || length >= sizeof word || !read(word, &l->value[l->count])) {
      rn_trouble("bench", "%s does not take '%s'. Try: rmsnorm bench --help", option, word);
      return false;
    }
    l->count++;
    at += length;
    if (!*at) return true;
  }
}

static bool parse(int argc, char **argv, options *o, int *exit_status) {
  enum { OP = 256, DTYPE, COLS, BYTES, ROWS, THREADS, IMPL, NAIVE, TIME, COST, JSON, SVG, HELP };
  static const struct option table[] = {
      {"op", required_argument, NULL, OP},     {"dtype", required_argument, NULL, DTYPE},
      {"cols", required_argument, NULL, COLS}, {"bytes", required_argument, NULL, BYTES},
      {"rows", required_argument, NULL, ROWS}, {"threads", required_argument, NULL, THREADS},
      {"impl", required_argument, NULL, IMPL}, {"naive", no_argument, NULL, NAIVE},
      {"time", required_argument, NULL, TIME}, {"call-cost", no_argument, NULL, COST},
      {"json", no_argument, NULL, JSON},       {"svg", required_argument, NULL, SVG},
      {"help", no_argument, NULL, HELP},       {NULL, 0, NULL, 0}};
  char *end;
  bool ok = true;
  *exit_status = 2;
  optind = 1;
  for (int option; ok && (option = getopt_long(argc, argv, "h", table, NULL)) != -1;) switch (option) {
    case OP:
      ok = take_list(&o->ops, optarg, "--op", op_named);
      break;
    case DTYPE:
      ok = take_list(&o->dtypes, optarg, "--dtype", dtype_named);
      break;
    case COLS:
      ok = take_list(&o->cols, optarg, "--cols", number);
      break;
    case BYTES:
      ok = take_list(&o->bytes, optarg, "--bytes", number);
      break;
    case THREADS:
      ok = take_list(&o->threads, optarg, "--threads", number);
      break;
    case ROWS:
      ok = number(optarg, &o->rows);
      if (!ok) rn_trouble("bench", "--rows wants a whole number from 1, found '%s'", optarg);
      break;
    case TIME:
      o->time = strtod(optarg, &end);
      ok = end != optarg && !*end && o->time > 0 && o->time < 3600;
      if (!ok) rn_trouble("bench", "--time wants seconds, found '%s'", optarg);
      break;
    case IMPL:
      o->impl = optarg;
      break;
    case NAIVE:
      o->naive = true;
      break;
    case COST:
      o->call_cost = true;
      break;
    case JSON:
      o->json = true;
      break;
    case SVG:
      o->svg = optarg;
      break;
    case 'h':
    case HELP:
      fputs(help, stdout);
      *exit_status = 0;
      return false;
    default:
      fputs("Try: rmsnorm bench --help\n", stderr);
      return false;
    }
  if (ok && optind < argc) {
    rn_trouble("bench", "'%s' was not expected; options only. Try: rmsnorm bench --help", argv[optind]);
    return false;
  }
  return ok;
}

/* ---- the machine ---- */

static void machine_name(char *name, size_t bytes) {
  FILE *f = fopen("/proc/cpuinfo", "r");
  char line[256];
  snprintf(name, bytes, "unknown processor");
  while (f && fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) || !colon) continue;
    colon[strcspn(colon, "\n")] = 0;
    snprintf(name, bytes, "%s", colon + 2);
    break;
  }
  if (f) fclose(f);
}

static const char *compiler(void) {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown compiler";
#endif
}

/* ---- printing ---- */

static double gigabytes(const rn_bench_cell *c, rn_bench_who who) {
  return c->least[who] > 0 ? (double)c->call_bytes / c->least[who] * 1e-9 : 0;
}
static double share(const rn_bench_cell *c, const double *times, rn_bench_who who) {
  return times[who] > 0 ? times[rn_bench_best_copy(c)] / times[who] : 0;
}

/* Faster than a copy by half, or a copy that mostly takes twice its best time: something else used the machine. */
static bool reliable(const rn_bench_cell *c) {
  const rn_bench_who copy = rn_bench_best_copy(c);
  return share(c, c->least, RN_BENCH_LIBRARY) <= 1.5 && c->median[copy] <= 2 * c->least[copy];
}

static void size_text(char *text, size_t bytes, int64_t n) {
  if (n >= 1 << 20 && n % (1 << 20) == 0)
    snprintf(text, bytes, "%lldM", (long long)(n >> 20));
  else if (n >= 1024 && n % 1024 == 0)
    snprintf(text, bytes, "%lldK", (long long)(n >> 10));
  else
    snprintf(text, bytes, "%lld", (long long)n);
}

static void print_head(const options *o) {
  char name[200];
  if (o->json) return;
  machine_name(name, sizeof name);
  printf("rmsnorm %s on %s, %ld processors (%s), %s\n", rmsnorm_version_string(), name, sysconf(_SC_NPROCESSORS_ONLN),
         rmsnorm_cpu_features(), compiler());
}

static void print_table_head(const options *o) {
  printf(
      "GB/s and fraction by the fastest round, (median) by the median one; copy: the fastest of memcpy, loop, stream\n"
      "%-11s %-5s %7s %9s %6s %3s %-8s %9s %7s %-7s %7s %8s%s\n",
      "op", "type", "cols", "rows", "set", "thr", "impl", "us/call", "GB/s", "copy", "GB/s", "fraction",
      o->naive ? " (median)    naive fast-math" : " (median)");
}

static void print_cell(const rn_bench_cell *c, const options *o) {
  char set[24];
  rn_bench_who copy = rn_bench_best_copy(c);
  size_text(set, sizeof set, c->set_bytes);
  printf("%-11s %-5s %7lld %9lld %6s %3d %-8s %9.2f %7.2f %-7s %7.2f %8.3f    (%.3f)", rn_bench_op_names[c->op],
         rmsnorm_dtype_name(c->dtype), (long long)c->cols, (long long)c->rows, set, c->threads, c->ran,
         c->least[RN_BENCH_LIBRARY] * 1e6, gigabytes(c, RN_BENCH_LIBRARY), rn_bench_who_names[copy], gigabytes(c, copy),
         share(c, c->least, RN_BENCH_LIBRARY), share(c, c->median, RN_BENCH_LIBRARY));
  if (o->naive && c->least[RN_BENCH_NAIVE] > 0)
    printf(" %8.3f %9.3f", share(c, c->least, RN_BENCH_NAIVE), share(c, c->least, RN_BENCH_NAIVE_FAST));
  printf("%s\n", reliable(c) ? "" : " ?");
  fflush(stdout);
}

static void print_table_foot(const rn_bench_cell *cells, int count) {
  int doubtful = 0;
  for (int i = 0; i < count; i++) doubtful += !reliable(&cells[i]);
  if (doubtful)
    printf("?: the rounds of %d of %d cells differ too much to say anything, the machine was busy; repeat them alone\n",
           doubtful, count);
}

static void print_json_head(void) {
  char name[200];
  machine_name(name, sizeof name);
  printf("{\"version\": \"%s\", \"machine\": ", rmsnorm_version_string());
  rn_json_put(stdout, name);
  printf(", \"processors\": %ld, \"features\": \"%s\", \"compiler\": ", sysconf(_SC_NPROCESSORS_ONLN),
         rmsnorm_cpu_features());
  rn_json_put(stdout, compiler());
}

static void print_json_cell(const rn_bench_cell *c, bool first) {
  printf(
      "%s\n  {\"op\": \"%s\", \"type\": \"%s\", \"cols\": %lld, \"rows\": %lld, \"set_bytes\": %lld, \"threads\": %d, "
      "\"impl\": \"%s\", \"call_bytes\": %lld, \"rounds\": %d, \"copy\": \"%s\", \"fraction\": %.4f, "
      "\"fraction_median\": %.4f, \"reliable\": %s, \"seconds\": {",
      first ? "" : ",", rn_bench_op_names[c->op], rmsnorm_dtype_name(c->dtype), (long long)c->cols, (long long)c->rows,
      (long long)c->set_bytes, c->threads, c->ran, (long long)c->call_bytes, c->rounds,
      rn_bench_who_names[rn_bench_best_copy(c)], share(c, c->least, RN_BENCH_LIBRARY),
      share(c, c->median, RN_BENCH_LIBRARY), reliable(c) ? "true" : "false");
  bool comma = false;
  for (int w = 0; w < RN_BENCH_WHOS; w++) {
    if (c->least[w] <= 0) continue;
    printf("%s\"%s\": [%.9g, %.9g]", comma ? ", " : "", rn_bench_who_names[w], c->least[w], c->median[w]);
    comma = true;
  }
  printf("}}");
}

/* ---- what a call costs ---- */

static double call_cost(int dtype, bool residual, const char *impl) {
  static float x[64], y[64], r[64];
  enum { CALLS = 20000, ROUNDS = 15 };
  double best = 1;
  for (int i = 0; i < 64; i++) x[i] = y[i] = r[i] = 0;
  for (int i = 0; i < 64 && dtype == RMSNORM_DTYPE_F32; i++) x[i] = (float)i - 31;
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = 1, f.cols = 64, f.eps = 1e-6, f.threads = 1, f.impl = impl;
  f.x = rmsnorm_input(x, dtype, 64), f.y = rmsnorm_output(y, dtype, 64);
  f.weight = x, f.weight_dtype = dtype;
  if (residual) f.residual = rmsnorm_input(r, dtype, 64), f.residual_out = rmsnorm_output(r, dtype, 64);
  if (dtype != RMSNORM_DTYPE_F32) memset(x, 0x3c, sizeof x); /* an ordinary value in f16 and in bf16 */
  for (int round = 0; round < ROUNDS; round++) {
    if (residual) memset(r, 0, sizeof r);
    double start = rn_bench_now();
    for (int i = 0; i < CALLS; i++)
      if (rmsnorm_forward(&f, NULL) != RMSNORM_OK) return -1;
    double each = (rn_bench_now() - start) / CALLS;
    if (each < best) best = each;
  }
  return best * 1e9;
}

static int call_costs(const options *o) {
  static const int dtypes[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
  bool first = true;
  if (o->json) {
    print_json_head();
    printf(",\n \"call_cost_ns\": [");
  } else {
    printf("one row of 64 columns, 1 thread, nanoseconds a call, the best of 15 rounds of 20000\n%-9s %-5s %-9s %8s\n",
           "op", "type", "impl", "ns");
  }
  for (int op = 0; op < 2; op++)
    for (int d = 0; d < 3; d++)
      for (int i = -1; i < 0 || rmsnorm_impl_name(i); i++) {
        const char *impl = i < 0 ? NULL : rmsnorm_impl_name(i);
        if (impl && (!o->impl || fnmatch(o->impl, impl, 0) || rmsnorm_impl_why_not(i))) continue;
        double ns = call_cost(dtypes[d], op == 1, impl);
        if (ns < 0) continue;
        const char *op_name = rn_bench_op_names[op], *type = rmsnorm_dtype_name(dtypes[d]);
        if (o->json)
          printf("%s\n  {\"op\": \"%s\", \"type\": \"%s\", \"impl\": \"%s\", \"ns\": %.2f}", first ? "" : ",", op_name,
                 type, impl ? impl : "default", ns);
        else
          printf("%-9s %-5s %-9s %8.1f\n", op_name, type, impl ? impl : "default", ns);
        first = false;
      }
  if (o->json) printf("]}\n");
  return 0;
}

/* ---- cells ---- */

static void shape_cell(rn_bench_cell *c, const options *o) {
  int64_t row = rn_bench_row_bytes(c->op, c->dtype, c->cols);
  int64_t rows = c->set_bytes / row;
  if (rows < 1) rows = 1;
  c->rows = o->rows && o->rows < rows ? o->rows : rows;
  c->sets = rows / c->rows;
}

/* Measures one cell; 0, or the exit status that it forces. */
static int add_cell(rn_bench_cell *c, const options *o, bool first) {
  char why[300];
  shape_cell(c, o);
  if (!rn_bench_measure(c, o->time, o->naive, why, sizeof why)) {
    rn_trouble("bench", "%s %s cols %lld: %s", rn_bench_op_names[c->op], rmsnorm_dtype_name(c->dtype),
               (long long)c->cols, why);
    return strncmp(why, "no memory", 9) ? 1 : 2;
  }
  if (o->json)
    print_json_cell(c, first);
  else
    print_cell(c, o);
  return 0;
}

static int run_cells(const options *o, rn_bench_cell *cells, int *count) {
  int worst = 0;
  for (int b = 0; b < o->bytes.count; b++)
    for (int t = 0; t < o->threads.count; t++)
      for (int op = 0; op < o->ops.count; op++)
        for (int d = 0; d < o->dtypes.count; d++)
          for (int k = 0; k < o->cols.count; k++)
            for (int i = -1; i < 0 || rmsnorm_impl_name(i); i++) {
              const char *impl = i < 0 ? NULL : rmsnorm_impl_name(i);
              if (o->impl ? !impl || fnmatch(o->impl, impl, 0) || rmsnorm_impl_why_not(i) : impl != NULL) continue;
              rn_bench_cell *c = &cells[*count];
              if (*count == MOST_CELLS) return worst;
              memset(c, 0, sizeof *c);
              c->op = (rn_bench_op)o->ops.value[op], c->dtype = (int)o->dtypes.value[d], c->cols = o->cols.value[k];
              c->set_bytes = o->bytes.value[b], c->threads = (int)o->threads.value[t], c->impl = impl;
              int status = add_cell(c, o, *count == 0);
              if (status == 2) return 2;
              if (status > worst) worst = status;
              if (!status) ++*count;
            }
  return worst;
}

static bool write_svg(const options *o, const rn_bench_cell *cells, int count) {
  FILE *f = fopen(o->svg, "w");
  bool ok = f && rn_bench_svg(f, cells, count);
  if (f && fclose(f)) ok = false;
  if (!ok) rn_trouble("bench", "%s could not be written: %s", o->svg, strerror(errno));
  return ok;
}

int rn_cmd_bench(int argc, char **argv) {
  options o = {.ops = {{RN_BENCH_FORWARD, RN_BENCH_RESIDUAL, RN_BENCH_BACKWARD}, 3},
               .dtypes = {{RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16}, 3},
               .cols = {{128, 576, 1024, 4096, 16384, 131072}, 6},
               .bytes = {{(int64_t)512 << 10, (int64_t)8 << 20, (int64_t)256 << 20}, 3},
               .threads = {{1, sysconf(_SC_NPROCESSORS_ONLN)}, 2},
               .time = 0.15};
  int status, count = 0;
  if (o.threads.value[1] <= 1) o.threads.count = 1;
  if (!parse(argc, argv, &o, &status)) return status;
  print_head(&o);
  if (o.call_cost) return call_costs(&o);
  rn_bench_cell *cells = calloc(MOST_CELLS + 1, sizeof *cells);
  if (!cells) return rn_trouble("bench", "no memory");
  if (o.json) {
    print_json_head();
    printf(",\n \"cells\": [");
  } else {
    print_table_head(&o);
  }
  status = run_cells(&o, cells, &count);
  if (o.json)
    printf("]}\n");
  else
    print_table_foot(cells, count);
  if (o.svg && !write_svg(&o, cells, count)) status = 2;
  rn_bench_release();
  free(cells);
  return status;
}
