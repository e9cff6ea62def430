/* test_emulator.cpp - does the emulated device do what kernels ask for, and does it find what is wrong with them?
 *
 * Every kernel here has a switch for its fault. Run in several orders of threads (RMSNORM_EMULATED_ORDER).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../../src/cuda/device.h"
#include "engine.h"
#include "expect.h"

#include <cstdlib>
#include <initializer_list>

struct params {
  float *x, *y;
  int fault, n;
};

/* ------------------------------------------------------------------------------------------------------------------
 * Kernels. */

/* y[i] = x[i + 1] + x[i + 2] of the block, through shared memory that is used twice. */
RN_KERNEL(neighbours, params, 256) {
  rn_wait_for_previous();
  RN_SHARED(float, s, 256);
  const int i = rn_thread(), n = rn_threads_of_block();
  const float *x = p.x + rn_block() * n;
  s[i] = x[i];
  if (p.fault != 1) rn_barrier();
  float v = s[(i + 1) % n];
  if (p.fault != 2) rn_barrier();
  s[i] = x[(i + 1) % n];
  rn_barrier();
  v += s[(i + 1) % n];
  p.y[rn_block() * n + i] = v;
}

/* Sums of groups of n lanes; groups take the way round a different number of times. */
RN_KERNEL(groups, params, 128) {
  rn_wait_for_previous();
  const int lane = rn_thread() & 31, n = p.n, first = lane / n * n;
  const uint32_t group = n == 32 ? RN_ALL_LANES : ((1u << n) - 1) << first;
  float v = p.x[rn_thread()];
  if (p.fault == 1 && lane == 3) return;
  for (int times = 0; times <= lane / n; times++) {
    float sum = v;
    for (int m = 1; m < n; m *= 2) sum += rn_from_lane_xor(p.fault == 2 ? 1u << first : group, sum, m);
    v = times == 0 ? sum : sum / (float)n;
    rn_warp_barrier(group);
  }
  if (rn_from_lane(group, v, p.fault == 3 ? (first + n) % 64 : first) != v) v = -1;
  if (rn_any_in_warp(group, lane == first + 1) != (n > 1)) v = -2;
  if (p.fault == 4 && lane == 0) rn_warp_barrier(group);
  if (p.fault == 4 && lane > 0) rn_any_in_warp(group, true);
  p.y[rn_thread()] = v;
}

/* Two halves of a block with a barrier each; the second one goes round more often. */
RN_KERNEL(teams, params, 128) {
  rn_wait_for_previous();
  RN_SHARED(float, s, 128);
  const int team = rn_thread() / 64, i = rn_thread() % 64;
  float v = p.x[rn_thread()];
  for (int times = 0; times < 3 + 4 * team; times++) {
    s[rn_thread()] = v;
    rn_team_barrier(p.fault == 1 ? 3 : 1 + team, p.fault == 2 && team ? 96 : 64);
    v = s[team * 64 + (i + 1) % 64];
    rn_team_barrier(p.fault == 3 && i == 5 ? 7 : 1 + team, 64);
  }
  if (p.fault == 4 && rn_thread() == 70) return;
  p.y[rn_thread()] = v + (rn_any_in_block(rn_thread() == 17) ? 1000.0f : 0.0f);
  if (p.fault == 5 && rn_thread() < 64) rn_barrier();
  if (p.fault == 5 && rn_thread() >= 64) rn_any_in_block(true);
}

RN_KERNEL(wide, params, 64) {
  if (p.fault != 1) rn_wait_for_previous();
  const char *x = (const char *)p.x + p.n;
  char *y = (char *)p.y + p.n;
  if (p.fault == 2) {
    rn_stream_store8(y, rn_kept_load8(x));
  } else {
    rn_stream_store16(y, rn_stream_load16(x));
  }
  if (p.fault == 1) rn_wait_for_previous();
}

/* Plain accesses: y[n] = x[0], or y[0] = x[n]. */
RN_KERNEL(plain, params, 32) {
  if (p.fault != 3) rn_wait_for_previous();
  if (p.fault == 1)
    p.y[p.n] = p.x[0];
  else
    p.y[0] = p.x[p.n];
}
RN_KERNEL(deep, params, 32) {
  rn_wait_for_previous();
  volatile char much[40 * 1024];
  much[p.n] = 1;
  p.y[0] = (float)much[p.n];
}

RN_KERNEL(shared_memory, params, 64) {
  rn_wait_for_previous();
  RN_SHARED(float, own, 33);
  RN_SHARED(double, other, 2);
  RN_SHARED_REST(rest);
  if (rn_thread() == 0) {
    bool nan = own[0] != own[0] && own[32] != own[32] && other[1] != other[1];
    nan = nan && rn_is_nan(((float *)rest)[0]) && (uintptr_t)rest % 128 == 0;
    nan = nan && (uintptr_t)own % 16 == 0 && (uintptr_t)other % 16 == 0;
    p.y[rn_block()] = nan;
    own[0] = own[32] = 1, other[1] = 1, ((float *)rest)[0] = 1;
    volatile int past = p.fault == 1 ? 33 : 0;
    own[past] = 2;
    past = p.fault == 2 ? 5 : 0;
    ((float *)rest)[past] = 2;
  }
}
RN_KERNEL(too_much_shared, params, 64) {
  rn_wait_for_previous();
  RN_SHARED(float, large, 48 * 256 - 16);
  RN_SHARED(float, small, 32);
  large[0] = small[0] = 0;
}

/* Every block of a cluster adds what its neighbour has, and leaves it a mark. */
RN_KERNEL(cluster, params, 64) {
  rn_wait_for_previous();
  RN_SHARED(float, s, 64);
  RN_SHARED(float, marks, 16);
  const int next = (rn_cluster_rank() + 1) % rn_cluster_blocks(), i = rn_thread();
  s[i] = p.x[rn_block() * 64 + i];
  if (p.fault != 1) rn_cluster_arrive();
  if (p.fault == 2) rn_cluster_arrive();
  if (p.fault != 1) rn_cluster_wait();
  if (p.fault == 3) rn_cluster_wait();
  const float v = rn_cluster_load(p.fault == 6 ? p.x : &s[i], p.fault == 4 ? 99 : next);
  if (i == 0) rn_cluster_store(&marks[rn_cluster_rank()], next, (float)rn_block());
  if (p.fault != 5 || rn_cluster_rank() == 0) {
    rn_cluster_arrive();
    rn_cluster_wait();
  }
  if (p.fault == 5 && rn_cluster_rank() == 0) (void)rn_cluster_load(&s[i], next);
  const int before = (rn_cluster_rank() + rn_cluster_blocks() - 1) % rn_cluster_blocks();
  p.y[rn_block() * 64 + i] = s[i] + v + (i == 1 ? 1000 * marks[before] : 0);
}

/* n chunks of 64 floats come through two buffers. */
RN_KERNEL(transfers, params, 64) {
  rn_wait_for_previous();
  RN_SHARED(rn_transfer, full, 2);
  RN_SHARED(float, buffer, 2 * 64);
  const int i = rn_thread();
  if (i == 0 && p.fault != 1) rn_transfer_init(&full[0], 1), rn_transfer_init(&full[1], 1);
  rn_barrier();
  float sum = 0;
  for (int c = 0; c <= p.n; c++) {
    if (i == 0 && c < p.n) {
      rn_transfer_expect(&full[c & 1], p.fault == 2 ? 512 : 256);
      rn_transfer_start(buffer + (c & 1) * 64, p.x + c * 64, p.fault == 5 ? 8 : 256, &full[c & 1]);
    }
    if (c == 0) continue;
    const int d = c - 1;
    if (p.fault == 3 && d == 1) break;
    if (p.fault != 4) rn_transfer_wait(&full[d & 1], (uint32_t)(d / 2 & 1));
    sum += buffer[(d & 1) * 64 + i];
    if (p.fault != 6) rn_barrier();
  }
  if (p.fault == 4 && i == 0) rn_transfer_wait(&full[0], 0), rn_transfer_wait(&full[1], 0);
  p.y[i] = sum;
}

/* Every block sends its number to all blocks of the cluster, n times over two transfers. */
RN_KERNEL(sends, params, 64) {
  rn_wait_for_previous();
  RN_SHARED(rn_transfer, full, 2);
  RN_SHARED(float, got, 2 * 16);
  const int i = rn_thread(), rank = rn_cluster_rank(), blocks = rn_cluster_blocks();
  if (i < 2 && p.fault != 1) rn_transfer_init(&full[i], 1);
  rn_cluster_arrive_relaxed();
  rn_cluster_wait();
  float sum = 0;
  for (int c = 0; c < p.n; c++) {
    if (i == 0) rn_transfer_expect(&full[c & 1], (uint32_t)(4 * blocks + (p.fault == 2 ? 4 : 0)));
    if (i < blocks) rn_cluster_send(&got[(c & 1) * 16 + rank], i, (float)(rank * (c + 1)), &full[c & 1]);
    if (p.fault != 3) rn_cluster_receive(&full[c & 1], (uint32_t)(c / 2 & 1));
    for (int k = 0; k < blocks; k++) sum += got[(c & 1) * 16 + k];
    rn_barrier();
  }
  if (p.fault == 3 && i == 0) rn_cluster_receive(&full[0], 0);
  rn_cluster_arrive();
  rn_cluster_wait();
  p.y[rn_block() * 64 + i] = sum;
}

/* Narrow accesses and the high half of a product. */
RN_KERNEL(narrow, params, 32) {
  rn_wait_for_previous();
  p.y[0] = rn_kept_load<1>(p.x + p.n).w[0] ? 1.0f : 0.0f;
  rn_stream_store<1>(p.y, rn_kept_load<1>((const char *)p.x + p.fault));
  rn_stream_store<2>(p.y + 2, rn_kept_load<2>(p.x + 2));
  rn_stream_store<4>(p.y + 4, rn_stream_load<4>(p.x + 4));
  p.y[1] = (float)rn_high_product((uint64_t)3 << 62, 20);
}

RN_KERNEL(never_waits, params, 32) {}

/* ------------------------------------------------------------------------------------------------------------------ */

namespace {

constexpr int most = 4096;
float *x, *y;

const char *run(const char *kernel, int fault, int n, uint32_t blocks, uint32_t threads, uint32_t in_cluster = 1,
                uint32_t shared = 0) {
  const params p = {x, y, fault, n};
  for (int i = 0; i < most; i++) x[i] = (float)(i % 64), y[i] = NAN;
  return rn_emulate_named(kernel, &p, blocks, threads, in_cluster, shared);
}

bool neighbours_are_right(int blocks) {
  bool right = true;
  for (int i = 0; i < blocks * 256; i++)
    right &= y[i] == x[i / 256 * 256 + (i + 1) % 256] + x[i / 256 * 256 + (i + 2) % 256];
  return right;
}

void test_orders() {
  EXPECT_TEXT(run("neighbours", 0, 0, 4, 256), nullptr);
  EXPECT(neighbours_are_right(4));
  /* Each missing barrier shows in one of the two orders, and the shuffled order finds both. */
  const char *saved = getenv("RMSNORM_EMULATED_ORDER");
  for (int fault = 1; fault <= 2; fault++) {
    int seen = 0;
    for (const char *order : {"forward", "reverse"}) {
      EXPECT(rn_emulated_order(order));
      EXPECT_TEXT(run("neighbours", fault, 0, 4, 256), nullptr);
      seen += !neighbours_are_right(4);
    }
    EXPECT(seen >= 1);
    EXPECT(rn_emulated_order("random:7"));
    EXPECT_TEXT(run("neighbours", fault, 0, 4, 256), nullptr);
    EXPECT(!neighbours_are_right(4));
  }
  EXPECT(!rn_emulated_order("backwards"));
  EXPECT(!rn_emulated_order("random:x"));
  EXPECT(rn_emulated_order(saved ? saved : "forward"));
}

void test_lanes() {
  for (int n = 1; n <= 32; n *= 2) {
    EXPECT_TEXT(run("groups", 0, n, 1, 128), nullptr);
    for (int i = 0; i < 128; i++) {
      float sum = 0;
      for (int k = 0; k < n; k++) sum += x[i / n * n + k];
      EXPECT(y[i] == sum);
    }
  }
  EXPECT_TEXT(run("groups", 1, 8, 1, 128), "deadlock");
  EXPECT_TEXT(run("groups", 1, 8, 1, 128), "waits for the lanes 000000ff of its warp, of which 000000f7 have arrived");
  EXPECT_TEXT(run("groups", 2, 8, 1, 128), "none of");
  EXPECT_TEXT(run("groups", 3, 8, 1, 128), "wants the value of lane");
  EXPECT_TEXT(run("groups", 4, 8, 1, 128), "calls another word");
}

void test_barriers() {
  EXPECT_TEXT(run("teams", 0, 0, 2, 128), nullptr);
  for (int i = 0; i < 128; i++) EXPECT(y[i] == x[i / 64 * 64 + (i + 3 + 4 * (i / 64)) % 64] + 1000);
  EXPECT_TEXT(run("teams", 2, 0, 1, 128), "deadlock");
  EXPECT_TEXT(run("teams", 3, 0, 1, 128), "waits at barrier 7, where 2 of 64");
  EXPECT_TEXT(run("teams", 4, 0, 1, 128), "has left");
  EXPECT_TEXT(run("teams", 4, 0, 1, 128), "127 of 128 threads have arrived");
  EXPECT_TEXT(run("teams", 5, 0, 1, 128), "and a vote");
  EXPECT_TEXT(run("teams", 0, 0, 1, 256), "no grid for the kernel");
}

void test_memory() {
  const int last = most * 4;
  EXPECT_TEXT(run("wide", 0, last - 16, 1, 1), nullptr);
  EXPECT(!memcmp(x + most - 4, y + most - 4, 16));
  EXPECT_TEXT(run("wide", 2, last - 8, 1, 1), nullptr);
  EXPECT(!memcmp(x + most - 2, y + most - 2, 8));
  EXPECT_TEXT(run("wide", 0, 8, 1, 1), "loads 16 bytes");
  EXPECT_TEXT(run("wide", 0, 8, 1, 1), "not aligned");
  EXPECT_TEXT(run("wide", 2, 4, 1, 1), "not aligned");
  EXPECT_TEXT(run("wide", 0, last, 1, 1), "out of bounds");
  EXPECT_TEXT(run("wide", 0, -16, 1, 1), "out of bounds");
  EXPECT_TEXT(run("wide", 1, 0, 1, 1), "before rn_wait_for_previous");
  EXPECT_TEXT(run("never_waits", 0, 0, 1, 32), "no thread has called rn_wait_for_previous");
  alignas(16) static float host[16];
  const params p = {host, y, 0, 0};
  EXPECT_TEXT(rn_emulate_named("wide", &p, 1, 1, 1, 0), "out of bounds");

  EXPECT_TEXT(run("narrow", 0, 0, 1, 1), nullptr);
  EXPECT(y[0] == x[0] && y[1] == 15 && y[2] == x[2] && y[3] == x[3] && !memcmp(x + 4, y + 4, 16));
  EXPECT_TEXT(run("narrow", 2, 0, 1, 1), "not aligned");
  EXPECT_TEXT(run("narrow", 0, most, 1, 1), "out of bounds");

  EXPECT_TEXT(run("plain", 0, most - 1, 1, 1), nullptr);
  EXPECT_TEXT(run("plain", 0, most, 1, 1), "access out of bounds");
  EXPECT_TEXT(run("plain", 1, most, 1, 1), "access out of bounds");
#ifndef RN_EMULATED_ASAN /* which ends the program, with a report of its own */
  EXPECT_TEXT(run("plain", 1, -1, 1, 1), "written before the allocation");
  const params small = {x, (float *)rn_emulated_alloc(20), 1, 5};
  EXPECT_TEXT(rn_emulate_named("plain", &small, 1, 1, 1, 0), "written after the allocation of 20 bytes");
  EXPECT(rn_emulated_free(small.y));
#endif
  float *freed = (float *)rn_emulated_alloc(64);
  EXPECT(rn_is_nan(freed[0]) && rn_is_nan(freed[15]));
  EXPECT(!rn_emulated_free(freed + 1));
  EXPECT(rn_emulated_free(freed));
  EXPECT(!rn_emulated_free(freed));
  const params late = {freed, y, 0, 0};
  EXPECT_TEXT(rn_emulate_named("plain", &late, 1, 1, 1, 0), "access out of bounds");
  EXPECT_TEXT(rn_emulate_named("wide", &late, 1, 1, 1, 0), "out of bounds");
  EXPECT(!rn_emulated_alloc((size_t)1 << 60));
  EXPECT_TEXT(run("deep", 0, 0, 2, 32), nullptr);

  /* Once shut, the first thread finds memory closed until it has waited. */
  const params early = {x, y, 3, 0};
  rn_emulated_shut();
  EXPECT_TEXT(rn_emulate_named("plain", &early, 1, 1, 1, 0), "before rn_wait_for_previous");
  const params open = {x, y, 0, 0};
  EXPECT_TEXT(rn_emulate_named("plain", &open, 1, 1, 1, 0), nullptr);
  EXPECT(rn_emulated_is_shut());
  rn_emulated_open();
  EXPECT(y[0] == x[0]);
  rn_emulated_own(5);
  EXPECT_TEXT(rn_emulate_named("wide", &open, 1, 1, 1, 0), "out of bounds");
  rn_emulated_own(0);
}

void test_shared() {
  EXPECT_TEXT(run("shared_memory", 0, 0, 3, 64, 1, 20), nullptr);
  EXPECT(y[0] == 1 && y[1] == 1 && y[2] == 1);
#ifndef RN_EMULATED_ASAN
  EXPECT_TEXT(run("shared_memory", 1, 0, 3, 64, 1, 20), "past the end of the shared own");
  EXPECT_TEXT(run("shared_memory", 2, 0, 3, 64, 1, 20), "past the end of the shared memory asked for");
#endif
  EXPECT_TEXT(run("too_much_shared", 0, 0, 1, 64), "bytes of RN_SHARED arrays");
  EXPECT_TEXT(run("shared_memory", 0, 0, 1, 64, 1, 228 * 1024), "shared memory");
}

void test_clusters() {
  for (uint32_t blocks : {1, 2, 8, 16}) {
    EXPECT_TEXT(run("cluster", 0, 0, 16, 64, blocks), nullptr);
    for (uint32_t i = 0; i < 16 * 64; i++) {
      const uint32_t block = i / 64, rank = block % blocks, before = block - rank + (rank + blocks - 1) % blocks;
      EXPECT(y[i] == 2 * x[i] + (i % 64 == 1 ? 1000 * (float)before : 0));
    }
  }
  EXPECT_TEXT(run("cluster", 1, 0, 16, 64, 4), "no barrier of the cluster so far");
  EXPECT_TEXT(run("cluster", 2, 0, 16, 64, 4), "twice without waiting");
  EXPECT_TEXT(run("cluster", 3, 0, 16, 64, 4), "without having arrived");
  EXPECT_TEXT(run("cluster", 4, 0, 16, 64, 4), "looks into block 99 of a cluster of 4");
  EXPECT_TEXT(run("cluster", 5, 0, 16, 64, 4), "which has left");
  EXPECT_TEXT(run("cluster", 6, 0, 16, 64, 4), "no place in shared memory");
  EXPECT_TEXT(run("cluster", 0, 0, 16, 64, 3), "whole number of clusters");
}

bool transfers_are_right(int n) {
  bool right = true;
  for (int i = 0; i < 64; i++) right &= y[i] == (float)(n * i);
  return right;
}
void test_transfers() {
  for (int n : {1, 2, 3, 4, 9}) {
    EXPECT_TEXT(run("transfers", 0, n, 1, 64), nullptr);
    EXPECT(transfers_are_right(n));
  }
  EXPECT_TEXT(run("transfers", 1, 4, 1, 64), "not made by rn_transfer_init");
  EXPECT_TEXT(run("transfers", 2, 4, 1, 64), "waits for a transfer");
  EXPECT_TEXT(run("transfers", 3, 4, 1, 64), "nobody waited for it");
  EXPECT_TEXT(run("transfers", 4, 2, 1, 64), nullptr);
  EXPECT(!transfers_are_right(2));
  EXPECT_TEXT(run("transfers", 5, 4, 1, 64), "not multiples of 16");
  EXPECT_TEXT(run("transfers", 0, 65, 1, 64), "out of bounds");
  /* A thread that refills a buffer while others still wait for it goes round the parity. */
  EXPECT_TEXT(run("transfers", 6, 9, 1, 64), "deadlock");
  for (uint32_t blocks : {1, 4, 16})
    for (int n : {1, 2, 3, 6}) {
      EXPECT_TEXT(run("sends", 0, n, 16, 64, blocks), nullptr);
      for (int i = 0; i < 16 * 64; i++)
        EXPECT(y[i] == (float)(blocks * (blocks - 1) / 2 * (uint32_t)(n * (n + 1) / 2)));
    }
  EXPECT_TEXT(run("sends", 1, 2, 16, 64, 4), "not made");
  EXPECT_TEXT(run("sends", 2, 2, 16, 64, 4), "deadlock");
  EXPECT_TEXT(run("sends", 3, 1, 16, 64, 4), nullptr);
  EXPECT(y[0] != y[0]);
  rn_emulated_capability = 80;
  EXPECT_TEXT(run("transfers", 0, 4, 1, 64), "does not have");
  EXPECT_TEXT(run("cluster", 0, 0, 16, 64, 4), "whole number of clusters");
  rn_emulated_capability = 90;
}

} // namespace

int main() {
  x = (float *)rn_emulated_alloc(most * sizeof *x);
  y = (float *)rn_emulated_alloc(most * sizeof *y);
  EXPECT_TEXT(rn_emulate_named("unheard_of", nullptr, 1, 1, 1, 0), "no kernel of that name");
  test_orders();
  test_lanes();
  test_barriers();
  test_memory();
  test_shared();
  test_clusters();
  test_transfers();
  printf("test_emulator: %d failures\n", failures);
  return failures != 0;
}
