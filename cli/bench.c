/* bench.c - `rmsnorm bench`: options, the list of cells, the table. How a cell is measured: bench_measure.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "bench_gpu.h"
#include "commands.h"
#include "json.h"
#include "message.h"
#include "options.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <unistd.h>

static const char help[] =
    "Examples:\n"
    "  rmsnorm bench                                  a table of the usual cells, some minutes\n"
    "  rmsnorm bench --op forward --dtype bf16 --cols 4096 --bytes 256M\n"
    "  rmsnorm bench --rows 1 --cols 576,4096 --threads 1\n"
    "  rmsnorm bench --json --svg chart.svg\n"
    "  rmsnorm bench --call-cost                      nanoseconds of a one-row call of 64 columns\n"
    "  rmsnorm bench --device cuda --peers peers.csv  a GPU, beside the times of others\n"
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
    "  --device WHERE   cpu (default), cuda, hip, or with the number of the GPU: cuda:N, hip:N\n"
    "\n"
    "On a GPU: graphs of many launches, buffers in the L2 (hot: at most 256 rows and 12 MiB) or four times its size\n"
    "(cold); sampled rows are compared with portable before and after.\n"
    "  --op LIST        fwd, add, bwd, addbwd, q, dyn, dyn8, addq, adddyn (default: the first three)\n"
    "  --rows LIST      (default 1,256,2048 and 2^28 elements)\n"
    "  --peers FILE     the cells of this table (op,dtype,rows,cols,mode,best_us,peer,bytes,copy_us), beside its "
    "times\n"
    "  --every N        only every Nth cell\n"
    "  --dependent      launches that may begin before the one before has ended\n"
    "  --multiprocessors N   grids for at most so many\n"
    "\n"
    "A cell marked ? (\"reliable\": false) was measured on a busy machine: its fraction is above 1.5, or the median "
    "copy\n"
    "took more than twice as long as the fastest.\n"
    "For two threads and more set OMP_PROC_BIND=true in the environment, so that they stay where they are.\n"
    "Exit status: 0 fine, 1 a result was wrong, 2 trouble.\n";

enum { MOST_CELLS = 4096 };

typedef struct options {
  rn_list ops, dtypes, cols, bytes, threads;
  int64_t rows;
  double time;
  const char *impl, *svg;
  bool json, naive, call_cost;
} options;

/* ---- options ---- */

static bool take_op(const char *word, void *value) {
  for (int i = 0; i < RN_BENCH_OPS; i++)
    if (!strcmp(word, rn_bench_op_names[i])) return *(int64_t *)value = i, true;
  return false;
}

/* A GPU has operations of its own; those that both have may be called as on the CPU. */
static bool take_gpu_op(const char *word, void *value) {
  static const char *const others[] = {"forward", "residual", "backward"};
  for (int i = 0; i < RN_GPU_OPS; i++)
    if (!strcmp(word, rn_gpu_op_names[i]) || (i < 3 && !strcmp(word, others[i]))) return *(int64_t *)value = i, true;
  return false;
}

static bool take_dtype(const char *word, void *value) {
  static const int dtypes[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
  for (int i = 0; i < 3; i++)
    if (!strcmp(word, rmsnorm_dtype_name(dtypes[i]))) return *(int64_t *)value = dtypes[i], true;
  return false;
}

static bool take_dtypes(const char *text, void *list) {
  return rn_take_list(text, list, take_dtype);
}
static bool take_counts(const char *text, void *list) {
  return rn_take_list(text, list, rn_take_count);
}

/* -1: go on, with *o for the CPU or *g for a GPU. */
static int parse(int argc, char **argv, options *o, rn_gpu_bench *g) {
  const char *ops = NULL;
  rn_list dtypes = {{0}, 0}, cols = {{0}, 0}, rows = {{0}, 0};
  int64_t multiprocessors = 0;
  bool dependent = false;
  const rn_option table[] = {{"device", rn_take_where, &g->where, RN_WHERE_EXPECTED},
                             {"op", rn_take_text, &ops, "a list of operations"},
                             {"dtype", take_dtypes, &dtypes, "a list of f32, bf16, f16"},
                             {"cols", take_counts, &cols, "a list of whole numbers from 1"},
                             {"bytes", take_counts, &o->bytes, "a list of sizes such as 512K,8M"},
                             {"rows", take_counts, &rows, "whole numbers from 1"},
                             {"threads", take_counts, &o->threads, "a list of whole numbers from 1"},
                             {"impl", rn_take_text, &o->impl, "a pattern"},
                             {"naive", rn_take_flag, &o->naive, NULL},
                             {"time", rn_take_seconds, &o->time, "seconds"},
                             {"call-cost", rn_take_flag, &o->call_cost, NULL},
                             {"peers", rn_take_text, &g->peers, "a file"},
                             {"every", rn_take_count, &g->every, "a whole number from 1"},
                             {"dependent", rn_take_flag, &dependent, NULL},
                             {"multiprocessors", rn_take_count, &multiprocessors, "a whole number from 1"},
                             {"json", rn_take_flag, &o->json, NULL},
                             {"svg", rn_take_text, &o->svg, "a file"},
                             {NULL, NULL, NULL, NULL}};
  int status = rn_options("bench", argc, argv, table, help);
  if (status >= 0) return status;
  bool gpu = g->where.device != RMSNORM_DEVICE_CPU;
  rn_list *list = gpu ? &g->ops : &o->ops;
  if (ops && !rn_take_list(ops, list, gpu ? take_gpu_op : take_op))
    return rn_trouble("bench", "--op does not take '%s'. Try: rmsnorm bench --help", ops);
  if (gpu) {
    g->dtypes = dtypes, g->cols = cols, g->rows = rows;
    g->settings.budget = o->time, g->settings.impl = o->impl;
    g->settings.launch.dependent = dependent, g->settings.launch.multiprocessors = (int32_t)multiprocessors;
    g->json = o->json, g->call_cost = o->call_cost;
    if (o->svg || o->naive) return rn_trouble("bench", "--svg and --naive are for the CPU. Try: rmsnorm bench --help");
    return -1;
  }
  if (g->peers || dependent || multiprocessors)
    return rn_trouble("bench", "--peers, --dependent and --multiprocessors want a GPU (--device)");
  if (dtypes.count) o->dtypes = dtypes;
  if (cols.count) o->cols = cols;
  if (rows.count > 1) return rn_trouble("bench", "--rows wants one whole number on the CPU");
  if (rows.count) o->rows = rows.value[0];
  return -1;
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

static bool runs_here(int impl) {
  return rmsnorm_impl_device(impl) == RMSNORM_DEVICE_CPU && !rmsnorm_impl_why_not(impl);
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
        if (impl && (!o->impl || fnmatch(o->impl, impl, 0) || !runs_here(i))) continue;
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
              if (o->impl ? !impl || fnmatch(o->impl, impl, 0) || !runs_here(i) : impl != NULL) continue;
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
  rn_gpu_bench gpu = {.every = 1};
  int count = 0;
  if (o.threads.value[1] <= 1) o.threads.count = 1;
  int status = parse(argc, argv, &o, &gpu);
  if (status >= 0) return status;
  if (gpu.where.device != RMSNORM_DEVICE_CPU) return rn_gpu_bench_run(&gpu);
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
