/* bench_gpu.c - `rmsnorm bench --device cuda`: which cells, the table, the peers beside it, the summary.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench_gpu.h"
#include "bench.h"
#include "json.h"
#include "message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 8192 };

/* How much slower than a peer counts as a tie: what two runs of the same kernel differ by. */
static const double tie = 1.03;

typedef struct table {
  rn_gpu_cell *cells;
  int count;
} table;

/* ---- which cells ---- */

static bool wanted(const rn_gpu_bench *b, const rn_gpu_cell *c) {
  return (!b->ops.count || rn_list_has(&b->ops, (int64_t)c->op)) &&
         (!b->dtypes.count || rn_list_has(&b->dtypes, c->dtype)) &&
         (!b->cols.count || rn_list_has(&b->cols, c->cols)) && (!b->rows.count || rn_list_has(&b->rows, c->rows));
}

static void add(const rn_gpu_bench *b, table *t, const rn_gpu_cell *c, int64_t *seen) {
  if (!wanted(b, c) || (*seen)++ % b->every || t->count == MOST_CELLS) return;
  t->cells[t->count++] = *c;
}

/* op,dtype,rows,cols,mode,best_us,peer,bytes,copy_us; lines that begin with # or op are skipped. */
static int read_peers(const rn_gpu_bench *b, table *t) {
  static const struct {
    const char *name;
    int dtype;
  } dtypes[] = {{"bf16", RMSNORM_DTYPE_BF16},
                {"fp16", RMSNORM_DTYPE_F16},
                {"f16", RMSNORM_DTYPE_F16},
                {"fp32", RMSNORM_DTYPE_F32},
                {"f32", RMSNORM_DTYPE_F32}};
  FILE *f = fopen(b->peers, "r");
  char line[400], op[16], dtype[16], mode[16], peer[32];
  int64_t seen = 0;
  if (!f) return rn_trouble("bench", "--peers %s: %s", b->peers, strerror(errno));
  for (int number = 1; fgets(line, sizeof line, f); number++) {
    rn_gpu_cell c;
    long long rows, cols, bytes;
    memset(&c, 0, sizeof c);
    if (*line == '#' || *line == '\n' || !strncmp(line, "op,", 3)) continue;
    bool ok = sscanf(line, "%15[^,],%15[^,],%lld,%lld,%15[^,],%lf,%31[^,],%lld,%lf", op, dtype, &rows, &cols, mode,
                     &c.peer_us, peer, &bytes, &c.peer_copy_us) == 9;
    c.rows = rows, c.cols = cols, c.hot = !strcmp(mode, "hot");
    snprintf(c.peer, sizeof c.peer, "%s", peer);
    int which = 0;
    while (ok && which < RN_GPU_OPS && strcmp(op, rn_gpu_op_names[which])) which++;
    c.op = (rn_gpu_op)which;
    for (size_t d = 0; ok && d < sizeof dtypes / sizeof *dtypes; d++)
      if (!strcmp(dtype, dtypes[d].name)) c.dtype = dtypes[d].dtype;
    ok = ok && which < RN_GPU_OPS && c.dtype && rows > 0 && cols > 0;
    ok = ok && rn_gpu_bytes(c.op, c.dtype, c.rows, c.cols) == bytes;
    if (!ok) {
      fclose(f);
      return rn_trouble("bench", "--peers %s: line %d is not op,dtype,rows,cols,mode,best_us,peer,bytes,copy_us",
                        b->peers, number);
    }
    add(b, t, &c, &seen);
  }
  fclose(f);
  return 0;
}

/* Without peers: one of each kind. Rows 0 stands for the largest, 2^28 elements (2^27 of f32). */
static void usual_cells(const rn_gpu_bench *b, table *t) {
  static const int64_t all_cols[] = {1024, 4096, 16384}, all_rows[] = {1, 256, 2048, 0};
  rn_gpu_bench own = *b;
  int64_t seen = 0;
  if (!own.ops.count) own.ops = (rn_list){{RN_GPU_FWD, RN_GPU_ADD, RN_GPU_BWD}, 3};
  if (!own.dtypes.count) own.dtypes = (rn_list){{RMSNORM_DTYPE_BF16}, 1};
  if (!own.cols.count) memcpy(own.cols.value, all_cols, sizeof all_cols), own.cols.count = 3;
  if (!own.rows.count) memcpy(own.rows.value, all_rows, sizeof all_rows), own.rows.count = 4;
  rn_gpu_bench any = *b; /* the lists above are all that is to be taken */
  any.ops.count = any.dtypes.count = any.cols.count = any.rows.count = 0;
  for (int o = 0; o < own.ops.count; o++)
    for (int d = 0; d < own.dtypes.count; d++)
      for (int k = 0; k < own.cols.count; k++)
        for (int r = 0; r < own.rows.count; r++) {
          rn_gpu_cell c;
          memset(&c, 0, sizeof c);
          c.op = (rn_gpu_op)own.ops.value[o], c.dtype = (int)own.dtypes.value[d], c.cols = own.cols.value[k];
          int64_t most = (int64_t)1 << (c.dtype == RMSNORM_DTYPE_F32 ? 27 : 28);
          c.rows = own.rows.value[r] ? own.rows.value[r] : most / c.cols > 0 ? most / c.cols : 1;
          c.hot = rn_gpu_is_hot(c.rows, rn_gpu_bytes(c.op, c.dtype, c.rows, c.cols));
          add(&any, t, &c, &seen);
        }
}

/* ---- printing ---- */

static double share(double copy, const rn_gpu_cell *c) {
  return c->outcome == RN_GPU_TIMED && copy > 0 ? copy / c->time.median : 0;
}
static double ratio(const rn_gpu_cell *c) {
  return c->outcome == RN_GPU_TIMED && c->peer_us > 0 ? c->peer_us * 1e-6 / c->time.median : 0;
}

static void print_cell(FILE *out, const rn_gpu_cell *c) {
  static const char *const outcomes[] = {"", "not supported", "WRONG", "no room", "failed"};
  fprintf(out, "%-7s %-5s %8lld %7lld %-4s ", rn_gpu_op_names[c->op], rmsnorm_dtype_name(c->dtype), (long long)c->rows,
          (long long)c->cols, c->hot ? "hot" : "cold");
  if (c->outcome != RN_GPU_TIMED) {
    fprintf(out, "%s: %s\n", outcomes[c->outcome], c->why);
    return;
  }
  fprintf(out, "%9.3f %5.1f%% %9.3f %6.3f ", c->time.median * 1e6,
          100 * (c->time.high - c->time.least) / c->time.median, c->copy * 1e6, share(c->copy, c));
  if (c->mixed > 0)
    fprintf(out, "%6.3f ", share(c->mixed, c));
  else
    fprintf(out, "%6s ", "-");
  fprintf(out, "%7.2f", c->host * 1e6);
  if (c->peer_us > 0) fprintf(out, " %9.3f %6.3f %s%s", c->peer_us, ratio(c), c->peer, ratio(c) * tie < 1 ? " <" : "");
  fprintf(out, "\n");
}

static void print_head(const rn_gpu_bench *b, const rn_device_facts *f) {
  printf("rmsnorm %s on %s, %d multiprocessors, %s%s\n", rmsnorm_version_string(), f->name, f->sms,
         rn_device_version(f), b->settings.launch.dependent ? ", dependent launches" : "");
  printf("microseconds of one launch inside a graph, the median of its replays; spread: (90th percentile - least) / "
         "median\n"
         "copy: as many bytes, by the fastest copy; mixed: in the operation's proportion of reads and writes; host: of "
         "one call\n"
         "%-7s %-5s %8s %7s %-4s %9s %6s %9s %6s %6s %7s%s\n",
         "op", "type", "rows", "cols", "mode", "us", "spread", "copy us", "share", "mixed", "host us",
         b->peers ? "   peer us  ratio peer" : "");
}

static void print_json_cell(const rn_gpu_cell *c, bool first) {
  static const char *const outcomes[] = {"timed", "unsupported", "wrong", "no room", "failed"};
  printf("%s\n  {\"op\": \"%s\", \"type\": \"%s\", \"rows\": %lld, \"cols\": %lld, \"mode\": \"%s\", \"bytes\": %lld, "
         "\"outcome\": \"%s\"",
         first ? "" : ",", rn_gpu_op_names[c->op], rmsnorm_dtype_name(c->dtype), (long long)c->rows, (long long)c->cols,
         c->hot ? "hot" : "cold", (long long)c->bytes, outcomes[c->outcome]);
  if (c->outcome == RN_GPU_TIMED) {
    printf(", \"sets\": %d, \"launches\": %d, \"replays\": %d, \"us\": %.4f, \"us_least\": %.4f, \"us_high\": %.4f, "
           "\"host_us\": %.3f",
           c->sets, c->time.launches, c->time.replays, c->time.median * 1e6, c->time.least * 1e6, c->time.high * 1e6,
           c->host * 1e6);
    if (c->copy > 0)
      printf(", \"copy\": \"%s\", \"copy_us\": %.4f, \"share\": %.4f", c->copy_name, c->copy * 1e6, share(c->copy, c));
    if (c->mixed > 0)
      printf(", \"mixed\": \"%s\", \"mixed_us\": %.4f, \"mixed_share\": %.4f", c->mixed_name, c->mixed * 1e6,
             share(c->mixed, c));
  } else {
    printf(", \"why\": ");
    rn_json_put(stdout, c->why);
  }
  if (c->peer_us > 0) {
    printf(", \"peer\": ");
    rn_json_put(stdout, c->peer);
    printf(", \"peer_us\": %.4f, \"peer_copy_us\": %.4f, \"ratio\": %.4f", c->peer_us, c->peer_copy_us, ratio(c));
  }
  printf("}");
}

/* ---- the summary ---- */

typedef struct summary {
  int outcomes[RN_GPU_FAILED + 1];
  int with_peer, slower;
  double logs, worst;
  double shares; /* sum of the logarithms of the shares of the copy */
  int shared;
} summary;

static summary sum_up(const table *t) {
  summary s;
  memset(&s, 0, sizeof s);
  for (int i = 0; i < t->count; i++) {
    const rn_gpu_cell *c = &t->cells[i];
    s.outcomes[c->outcome]++;
    if (share(c->copy, c) > 0) s.shares += log(share(c->copy, c)), s.shared++;
    if (ratio(c) <= 0) continue;
    s.with_peer++, s.logs += log(ratio(c));
    if (s.with_peer == 1 || ratio(c) < s.worst) s.worst = ratio(c);
    if (ratio(c) * tie < 1) s.slower++;
  }
  return s;
}

static void print_slower(FILE *out, const table *t) {
  for (int i = 0; i < t->count; i++) {
    const rn_gpu_cell *c = &t->cells[i];
    if (ratio(c) > 0 && ratio(c) * tie < 1)
      fprintf(out, "  %-7s %-5s %8lld x %-7lld %-4s %9.3f us, %s %.3f us: %.2fx slower\n", rn_gpu_op_names[c->op],
              rmsnorm_dtype_name(c->dtype), (long long)c->rows, (long long)c->cols, c->hot ? "hot" : "cold",
              c->time.median * 1e6, c->peer, c->peer_us, 1 / ratio(c));
  }
}

static void print_summary(FILE *out, const table *t, double seconds, const char *copies) {
  const summary s = sum_up(t);
  if (s.slower) fprintf(out, "\nslower than the best peer by more than %.0f%%:\n", 100 * (tie - 1));
  print_slower(out, t);
  for (int i = 0; i < t->count; i++)
    if (t->cells[i].outcome == RN_GPU_WRONG) print_cell(out, &t->cells[i]);
  fprintf(out, "\n%d cells in %.1f s: %d timed, %d not supported, %d wrong, %d without room, %d failed\n", t->count,
          seconds, s.outcomes[RN_GPU_TIMED], s.outcomes[RN_GPU_UNSUPPORTED], s.outcomes[RN_GPU_WRONG],
          s.outcomes[RN_GPU_NO_ROOM], s.outcomes[RN_GPU_FAILED]);
  if (s.shared)
    fprintf(out, "share of the copy limit (%s), geometric mean of %d cells: %.3f\n", copies, s.shared,
            exp(s.shares / s.shared));
  if (s.with_peer)
    fprintf(out, "best peer / ours, geometric mean of %d cells: %.3f; worst %.3f; %d slower by more than %.0f%%\n",
            s.with_peer, exp(s.logs / s.with_peer), s.worst, s.slower, 100 * (tie - 1));
}

static void print_json_summary(const table *t, double seconds) {
  const summary s = sum_up(t);
  printf("],\n \"summary\": {\"seconds\": %.1f, \"cells\": %d, \"timed\": %d, \"unsupported\": %d, \"wrong\": %d, "
         "\"no_room\": %d, \"failed\": %d, \"share\": %.4f, \"with_peer\": %d, \"ratio\": %.4f, \"worst\": %.4f, "
         "\"slower\": %d}}\n",
         seconds, t->count, s.outcomes[RN_GPU_TIMED], s.outcomes[RN_GPU_UNSUPPORTED], s.outcomes[RN_GPU_WRONG],
         s.outcomes[RN_GPU_NO_ROOM], s.outcomes[RN_GPU_FAILED], s.shared ? exp(s.shares / s.shared) : 0, s.with_peer,
         s.with_peer ? exp(s.logs / s.with_peer) : 0, s.worst, s.slower);
}

/* ---- running ---- */

static int run_cells(const rn_gpu_bench *b, const rn_device_facts *f, table *t) {
  double start = rn_bench_now();
  const char *copies = "driver copy";
  int done = 0, worst = 0;
  bool lost = false;
  if (b->json) {
    printf("{\"version\": \"%s\", \"device\": ", rmsnorm_version_string());
    rn_json_put(stdout, f->name);
    printf(", \"multiprocessors\": %d, \"driver\": %d, \"dependent\": %s,\n \"cells\": [", f->sms, f->driver,
           b->settings.launch.dependent ? "true" : "false");
  } else {
    print_head(b, f);
  }
  for (; done < t->count && !lost; done++) {
    rn_gpu_cell *c = &t->cells[done];
    lost = !rn_gpu_measure(c, &b->settings);
    if (c->copy_name && strcmp(c->copy_name, copies)) copies = "the best of several kernels and the driver's copy";
    if (b->json)
      print_json_cell(c, done == 0);
    else
      print_cell(stdout, c);
    fflush(stdout);
    if (c->outcome == RN_GPU_WRONG || c->outcome == RN_GPU_FAILED) worst = 1;
  }
  t->count = done;
  double seconds = rn_bench_now() - start;
  if (b->json) {
    print_json_summary(t, seconds);
    print_summary(stderr, t, seconds, copies);
  } else {
    print_summary(stdout, t, seconds, copies);
  }
  if (lost) return rn_trouble("bench", "the device is lost: %s", rn_device_error()), 1;
  return worst;
}

/* One row of 64 columns: what a call costs the caller's thread. */
static void call_cost_cells(table *t) {
  for (int op = 0; op < RN_GPU_OPS; op++) {
    rn_gpu_cell *c = &t->cells[t->count++];
    memset(c, 0, sizeof *c);
    c->op = (rn_gpu_op)op, c->dtype = RMSNORM_DTYPE_BF16, c->rows = 1, c->cols = 64, c->hot = true;
  }
}

int rn_gpu_bench_run(const rn_gpu_bench *b) {
  rn_gpu_bench own = *b;
  rn_device_facts facts;
  table t = {calloc(MOST_CELLS, sizeof *t.cells), 0};
  rn_device *device = NULL;
  int status = 0;
  memset(&facts, 0, sizeof facts);
  if (!t.cells) return rn_trouble("bench", "no memory");
  if (b->call_cost)
    call_cost_cells(&t);
  else if (b->peers)
    status = read_peers(b, &t);
  else
    usual_cells(b, &t);
  if (!status && !t.count) status = rn_trouble("bench", "no cell is left. Try: rmsnorm bench --help");
  if (!status) {
    rn_device_choose(b->where.device);
    device = rn_device_open(b->where.ordinal);
    if (!device || !rn_device_facts_of(b->where.ordinal, &facts))
      status = rn_trouble("bench", "--device %s: %s", rn_where_name(&b->where), rn_device_error());
    else if (rmsnorm_preload(b->where.device) != RMSNORM_OK)
      status = rn_trouble("bench", "--device %s: %s", rn_where_name(&b->where), rmsnorm_last_error());
  }
  if (!status) {
    own.settings.l2_bytes = facts.l2_bytes ? facts.l2_bytes : (size_t)64 << 20;
    status = run_cells(&own, &facts, &t);
    rn_gpu_release();
  }
  rn_device_close(device);
  free(t.cells);
  return status;
}
