/* harness_call.c - the call under test: its arrays in guarded memory, or copies of them on a device; the call; what has
 * come back, and what may not have changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "harness_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a parallel-for of the caller ---- */

typedef struct crew {
  atomic_llong next;
  int64_t tasks;
  void (*task)(void *context, int64_t index);
  void *context;
} crew;

static void *crew_work(void *argument) {
  crew *c = argument;
  for (;;) {
    int64_t i = atomic_fetch_sub(&c->next, 1); /* last task first: no order may be relied on */
    if (i < 0) return NULL;
    c->task(c->context, i);
  }
}

static void crew_run(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  enum { MOST = 8 };
  const int *threads = context;
  pthread_t others[MOST];
  int started = 0;
  crew c = {tasks - 1, tasks, task, task_context};
  while (started < *threads - 1 && started < MOST && started < tasks - 1 &&
         !pthread_create(&others[started], NULL, crew_work, &c))
    started++;
  crew_work(&c);
  while (started) pthread_join(others[--started], NULL);
}

/* Device, threads and implementation, alike in the three structs. A device has its own. */
#define EXECUTE(args, h, name, crew_size, how)                                                                         \
  do {                                                                                                                 \
    int threads_ = (h)->device ? 0 : (h)->own.threads;                                                                 \
    (args).impl = (name);                                                                                              \
    (args).device = (h)->device ? rn_device_kind() : RMSNORM_DEVICE_CPU;                                               \
    (args).threads = threads_ > 0 ? threads_ : 0;                                                                      \
    (args).launch = (h)->device ? &(h)->launch : NULL;                                                                 \
    if (threads_ < 0) {                                                                                                \
      (crew_size) = -threads_;                                                                                         \
      (how).context = &(crew_size), (how).threads = (crew_size), (how).run = crew_run;                                 \
      (args).parallel = &(how);                                                                                        \
    }                                                                                                                  \
  } while (0)

static rn_binding slot_binding(const rn_slot *s) {
  rn_binding b = {s->data, s->row_stride, s->head_stride, s->col_stride};
  return b;
}

/* ---- the call under test ---- */

static rmsnorm_backward_args backward_under_test(rn_harness *h, const char *impl, int *crew_size,
                                                 rmsnorm_parallel *how) {
  rmsnorm_backward_args a = rn_bind_backward(&h->own, h->bound);
  EXECUTE(a, h, impl, *crew_size, *how);
  a.workspace = h->bound[RN_WORKSPACE].data, a.workspace_bytes = h->workspace_bytes;
  return a;
}

static rmsnorm_status call(rn_harness *h, const char *impl) {
  const rn_case *c = &h->own;
  const rn_binding *b = h->bound;
  rmsnorm_parallel how;
  int crew_size;
  memset(&how, 0, sizeof how);
  if (c->op == RMSNORM_OP_STATS || c->split) {
    rmsnorm_stats_args a = rn_bind_stats(c, b);
    EXECUTE(a, h, impl, crew_size, how);
    rmsnorm_status status = h->library->stats(&a, h->stream);
    if (status != RMSNORM_OK || !c->split) return status;
  }
  if (c->op == RMSNORM_OP_FORWARD) {
    rmsnorm_forward_args a = rn_bind_forward(c, b);
    if (c->split) a.sumsq = b[RN_SUMSQ].data;
    EXECUTE(a, h, impl, crew_size, how);
    return h->library->forward(&a, h->stream);
  }
  rmsnorm_backward_args a = backward_under_test(h, impl, &crew_size, &how);
  return h->library->backward(&a, h->stream);
}

/* Outputs may share the slot of an input. */
static bool is_alias(const rn_harness *h, int t) {
  return t >= RN_INPUTS && t < RN_WORKSPACE && h->own.alias[t] >= 0;
}

/* The slot that an array of the call lies in. NULL: the call has no such array. */
static rn_slot *slot_of(rn_harness *h, int t) {
  return !h->bound[t].data ? NULL : &h->slot[is_alias(h, t) ? h->own.alias[t] : t];
}

/* Whether the array has a slot of its own, filled and looked at once. */
static bool has_slot(const rn_harness *h, int t) {
  return h->bound[t].data && !is_alias(h, t);
}

static int device_trouble(rn_harness *h) {
  rn_finding *f = rn_find(h, RN_FOUND_REFUSED, RN_X);
  if (f) snprintf(f->text, sizeof f->text, "the device: %.180s", rn_device_error());
  return 2;
}

static bool upload(rn_harness *h) {
  for (int t = 0; t < RN_TENSORS; t++)
    if (has_slot(h, t) && !rn_slot_upload(&h->slot[t])) return false;
  return rn_device_finish(); /* other streams do not wait for the copies */
}

/* The number of rows that exist, on the device. */
static bool place_live_rows(rn_harness *h, int64_t rows) {
  h->launch.live_rows = NULL;
  if (!h->live) return true;
  if (!h->live_place && !(h->live_place = rn_device_alloc(sizeof rows))) return false;
  h->launch.live_rows = h->live_place;
  return rn_device_upload(h->live_place, &rows, sizeof rows);
}

/* How many of its rows a call has written. */
static int64_t rows_written(const rn_harness *h) {
  int64_t rows = h->own.rows;
  return !h->live || h->live_rows > rows ? rows : h->live_rows < 0 ? 0 : h->live_rows;
}

/* The elements of an output that belong to the rows written: its slot becomes so much smaller. */
static int64_t cut_to_rows_written(const rn_harness *h, rn_slot *s, int64_t elements) {
  int64_t rows = h->own.rows, written = rows_written(h);
  if (written == rows) return elements;
  if (s->rows == 1 && s->heads == 1)
    s->cols = s->cols / rows * written; /* packed over all rows */
  else
    s->rows = s->rows / rows * written; /* a dimension of rows, or of rows and heads */
  return elements / rows * written;
}

/* The backward's workspace, once all other arrays have their places. */
static int place_workspace(rn_harness *h, const char *impl) {
  rmsnorm_parallel how;
  int crew_size;
  memset(&how, 0, sizeof how);
  h->workspace_bytes = 0;
  if (h->own.op != RMSNORM_OP_BACKWARD) return 0;
  rmsnorm_backward_args a = backward_under_test(h, impl, &crew_size, &how);
  size_t bytes = 0;
  h->status = h->library->workspace(&a, &bytes);
  if (h->status != RMSNORM_OK || !bytes) return 0;
  rn_slot *s = &h->slot[RN_WORKSPACE];
  s->rows = s->heads = 1, s->cols = (int64_t)bytes, s->row_stride = s->head_stride = 0;
  s->col_stride = 1, s->size = 1;
  if (!rn_slot_place(s, 0, bytes % 64 == 0)) return 2;
  rn_slot_poison(s, RN_POISON_INPUT), rn_slot_keep(s);
  h->bound[RN_WORKSPACE] = slot_binding(s), h->workspace_bytes = bytes;
  return 0;
}

/* Binds the mirror of every slot instead of the slot. */
static int place_mirrors(rn_harness *h) {
  if (!upload(h)) return device_trouble(h);
  for (int t = 0; t < RN_TENSORS; t++) {
    rn_slot *s = slot_of(h, t);
    if (s) h->bound[t].data = rn_slot_mirrored(s);
  }
  return 0;
}

static int place(rn_harness *h, const char *impl) {
  rn_case *c = &h->own;
  rn_binding *b = h->bound;
  memset(b, 0, sizeof h->bound);
  h->found = 0, h->status = RMSNORM_OK, h->outputs = h->all & c->want;
  if (h->device && !rn_device_use(h->device)) return device_trouble(h);
  if (!rn_hand_in(h, c)) return 2;
  if (c->split) c->dtype[RN_SUMSQ] = RMSNORM_DTYPE_F32;
  for (int t = 0; t < RN_INPUTS; t++)
    if (c->dtype[t]) rn_slot_restore(&h->slot[t]), b[t] = slot_binding(&h->slot[t]);
  for (int t = RN_INPUTS; t < RN_WORKSPACE; t++) {
    if (!(h->outputs & 1u << t) && !(c->split && t == RN_SUMSQ)) continue;
    if (c->alias[t] >= 0) {
      b[t] = b[c->alias[t]];
      continue;
    }
    if (!rn_place_slot(h, t)) return 2;
    rn_slot_poison(&h->slot[t], RN_POISON_TEST), rn_slot_keep(&h->slot[t]);
    b[t] = slot_binding(&h->slot[t]);
  }
  int answer = place_workspace(h, impl);
  if (answer || !h->device) return answer;
  if (!place_live_rows(h, h->graph ? c->rows : h->live_rows)) return device_trouble(h);
  return place_mirrors(h);
}

int rn_harness_place(rn_harness *h, const char *impl) {
  const rn_case *outside = h->c;
  h->own = *outside, h->c = &h->own;
  int answer = place(h, impl);
  h->c = outside;
  return answer;
}

/* The call becomes a graph; the graph runs, everything it wrote is undone, and it runs again. */
static rmsnorm_status call_graph(rn_harness *h, const char *impl) {
  if (!rn_graph_begin(h->stream)) {
    device_trouble(h);
    return RMSNORM_ERROR_DEVICE;
  }
  rmsnorm_status status = call(h, impl);
  void *graph = rn_graph_end(h->stream);
  if (status != RMSNORM_OK) {
    rn_graph_free(graph);
    return status;
  }
  bool ok = graph && rn_graph_launch(graph, h->stream) && rn_stream_finish(h->stream) && upload(h) &&
            place_live_rows(h, h->live_rows) && rn_device_finish() && rn_graph_launch(graph, h->stream) &&
            rn_stream_finish(h->stream);
  if (!ok) device_trouble(h);
  rn_graph_free(graph);
  return RMSNORM_OK;
}

void rn_harness_call(rn_harness *h, const char *impl) {
  if (h->status != RMSNORM_OK) return; /* the workspace was refused already */
  if (h->device && !rn_device_use(h->device)) {
    device_trouble(h);
    return;
  }
  h->status = h->graph ? call_graph(h, impl) : call(h, impl);
}

/* Everything back from the device. */
static bool download(rn_harness *h) {
  if (!rn_device_use(h->device) || !rn_stream_finish(h->stream)) return false;
  for (int t = 0; t < RN_TENSORS; t++) {
    bool wild = false;
    int64_t offset = 0;
    if (!has_slot(h, t)) continue;
    if (!rn_grow(&h->scratch, &h->scratch_bytes, h->slot[t].usable)) return false;
    if (!rn_slot_download(&h->slot[t], h->scratch, &wild, &offset)) return false;
    rn_finding *f = wild ? rn_find(h, RN_FOUND_GUARD, t) : NULL;
    if (f) f->col = offset;
  }
  return true;
}

/* Compares what the call returned, and makes the elements those of the image again. Rows that do not exist have to be
 * as they were, which is for look_for_damage to see. */
static bool compare_outputs(rn_harness *h, rn_tally *tally) {
  for (int t = RN_INPUTS; t < RN_WORKSPACE; t++) {
    bool sums = h->own.split && t == RN_SUMSQ; /* they are not compared: what is made of them is */
    if (!(h->outputs & 1u << t) && !sums) continue;
    rn_slot cut = *slot_of(h, t);
    int64_t all = h->count[t];
    h->count[t] = cut_to_rows_written(h, &cut, all);
    bool ok = rn_grow(&h->scratch, &h->scratch_bytes, (size_t)all * cut.size);
    if (ok && !sums) {
      rn_slot_get(&cut, h->scratch);
      tally->differing += rn_compare_bits(h, RN_FOUND_BITS, t, h->scratch, h->packed[t], NULL);
      tally->elements += h->count[t];
    }
    if (ok) rn_slot_forget_elements(&cut);
    h->count[t] = all;
    if (!ok) return false;
  }
  return true;
}

static void look_for_damage(rn_harness *h) {
  for (int t = 0; t < RN_TENSORS; t++) {
    int64_t offset;
    if (!has_slot(h, t) || !rn_slot_damage(&h->slot[t], &offset)) continue;
    bool aliased = false;
    for (int o = RN_INPUTS; o < RN_WORKSPACE; o++) aliased |= h->own.alias[o] == t && h->bound[o].data;
    rn_finding *f = rn_find(h, t < RN_INPUTS && !aliased ? RN_FOUND_INPUT : RN_FOUND_GUARD, t);
    if (f) f->col = offset;
    rn_slot_restore(&h->slot[t]);
  }
}

int rn_harness_collect(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported) {
  const rn_case *outside = h->c;
  bool ran = h->status == RMSNORM_OK;
  int answer = 2;
  *unsupported = !ran && h->status == RMSNORM_ERROR_UNSUPPORTED && strcmp(impl, "portable");
  h->c = &h->own;
  if (!ran && !*unsupported) rn_refused(h, h->status);
  if (h->device && !download(h)) {
    device_trouble(h);
    goto done;
  }
  if (h->bound[RN_WORKSPACE].data) rn_slot_forget_elements(&h->slot[RN_WORKSPACE]);
  /* A call in two has made its statistics before the second half is refused. */
  if (*unsupported && h->own.split) rn_slot_forget_elements(&h->slot[RN_SUMSQ]);
  if (ran && !compare_outputs(h, tally)) goto done;
  look_for_damage(h);
  if (*unsupported)
    tally->unsupported++;
  else
    tally->cases++;
  answer = h->found > 0;
done:
  rn_count_findings(h, tally);
  h->c = outside;
  return answer;
}

int rn_harness_run(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported) {
  *unsupported = false;
  int answer = rn_harness_place(h, impl);
  if (answer) {
    rn_count_findings(h, tally);
    return answer;
  }
  rn_harness_call(h, impl);
  return rn_harness_collect(h, impl, tally, unsupported);
}
