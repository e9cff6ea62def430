/* parallel.c - who runs the tasks of a call: the caller's parallel-for, OpenMP, or the calling thread.
 *
 * The tasks are cut elsewhere and the order of every sum is fixed there, so nothing in this file can change a result.
 *
 * An OpenMP region is opened only when more than one thread will have something to do, because opening one is never
 * free: it costs microseconds where a short call takes tens of nanoseconds, it starts the runtime's thread pool in
 * processes that never asked for one, and it can hang in a child process that was forked after the pool existed. Inside
 * a parallel region of the caller all cores are taken already; a region of ours there would only oversubscribe them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fpenv.h"
#include "internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* More threads than this are never useful, and products with it stay small. */
enum { RN_THREADS_MAX = 1024 };

int rn_threads(const rn_problem *p) {
  if (p->threads == 1) return 1;
  int threads = 1;
  if (p->parallel != NULL) {
    threads = p->parallel->threads;
    if (p->threads > 0 && p->threads < threads) threads = p->threads;
  } else {
#ifdef _OPENMP
    if (omp_in_parallel()) return 1;
    threads = p->threads > 0 ? p->threads : omp_get_max_threads();
#endif
  }
  return threads < RN_THREADS_MAX ? threads : RN_THREADS_MAX;
}

typedef struct rn_work {
  void (*task)(void *context, int64_t index);
  void *context;
} rn_work;

/* A thread of the caller's pool has a floating-point mode of its own, so every task enters ours. */
static void run_one(void *context, int64_t index) {
  const rn_work *work = context;
  rn_fp fp = rn_fp_enter();
  work->task(work->context, index);
  rn_fp_leave(fp);
}

/* The one task of a short call: without a loop and the registers that it needs. */
static inline void run_single(void (*task)(void *context, int64_t index), void *context) {
  rn_fp fp = rn_fp_enter();
  task(context, 0);
  rn_fp_leave(fp);
}

static void run_serially(int64_t tasks, void (*task)(void *context, int64_t index), void *context) {
  rn_fp fp = rn_fp_enter();
  for (int64_t i = 0; i < tasks; i++) task(context, i);
  rn_fp_leave(fp);
}

static __attribute__((noinline)) void run_many(const rn_problem *p, int threads, int64_t tasks,
                                               void (*task)(void *context, int64_t index), void *context) {
  if (threads <= 1 || tasks <= 1) {
    run_serially(tasks, task, context);
    return;
  }
  if (p->parallel != NULL) {
    rn_work work = {task, context};
    p->parallel->run(p->parallel->context, tasks, run_one, &work);
    return;
  }
#ifdef _OPENMP
  if (!omp_in_parallel()) {
    rn_work work = {task, context};
    if (threads > tasks) threads = (int)tasks;
      /* Static: the same rows land on the same core in every call, where their cache lines still are. */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < tasks; i++) run_one(&work, i);
    return;
  }
#endif
  run_serially(tasks, task, context);
}

void rn_parallel_for(const rn_problem *p, int threads, int64_t tasks, void (*task)(void *context, int64_t index),
                     void *context) {
  if (tasks == 1)
    run_single(task, context);
  else
    run_many(p, threads, tasks, task, context);
}

void rn_parallel_phases(const rn_problem *p, int threads, int64_t tasks, int phases,
                        void (*const *phase)(void *context, int64_t index), void *context) {
#ifdef _OPENMP
  if (threads > 1 && tasks > 1 && p->parallel == NULL && !omp_in_parallel()) {
    if (threads > tasks) threads = (int)tasks;
      /* One region for all phases: a barrier inside it costs a fraction of opening another. */
#pragma omp parallel num_threads(threads)
    for (int k = 0; k < phases; k++) {
      rn_work work = {phase[k], context};
#pragma omp for schedule(static)
      for (int64_t i = 0; i < tasks; i++) run_one(&work, i);
    }
    return;
  }
#endif
  for (int k = 0; k < phases; k++) rn_parallel_for(p, threads, tasks, phase[k], context);
}
