/* words.cpp - the words of device.h that wait, look at other threads or check what they are given.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

using namespace rn_emulator;

namespace {

void sleep_for(waits what) {
  self().waits_for = what;
  give_way();
}

} // namespace

/* ------------------------------------------------------------------------------------------------------------------
 * Barriers. */

bool rn_emulated_barrier(int number, int threads, rn_emulated_word word, bool is) {
  cuda_thread &t = self();
  cuda_block &b = *t.home;
  barrier &at = b.barriers[number];
  if (at.arrived && (at.threads != threads || at.word != word))
    fault("arrives at barrier %d for %d threads%s; others are there for %d%s", number, threads,
          word == RN_WORD_ANY ? " and a vote" : "", at.threads, at.word == RN_WORD_ANY ? " and a vote" : "");
  if (!at.arrived) at.threads = threads, at.word = word, at.any = false;
  at.any |= is;
  t.number = number;
  t.waits_for = AT_BARRIER;
  if (++at.arrived == threads) {
    cuda_thread *list[1024];
    int count = 0;
    for (int i = 0; i < b.count; i++) {
      cuda_thread &other = b.threads[i];
      if (other.waits_for != AT_BARRIER || other.number != number) continue;
      other.result = at.any;
      list[count++] = &other;
    }
    at.arrived = 0;
    wake(list, count, false);
  }
  give_way();
  return t.result != 0;
}

void rn_team_barrier(int number, int threads) {
  if (number < 1 || number > 15 || threads < 32 || threads % 32 || threads > rn_threads_of_block())
    fault("calls rn_team_barrier(%d, %d)", number, threads);
  rn_emulated_barrier(number, threads, RN_WORD_BARRIER, false);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Lanes of a warp. A group is complete when all its lanes wait with the same group. */

uint32_t rn_emulated_meet(uint32_t lanes, rn_emulated_word word, uint32_t value, int from) {
  cuda_thread &t = self();
  cuda_block &b = *t.home;
  const int base = t.thread & ~31, own = t.thread & 31;
  cuda_thread *warp = b.threads + base;
  uint32_t &arrived = b.arrived_lanes[(size_t)base / 32];
  if (!(lanes >> own & 1)) fault("(lane %d) asks for the lanes %08x, where it is none of", own, lanes);
  if ((word == RN_WORD_FROM || word == RN_WORD_FROM_XOR) && (from < 0 || from > 31 || !(lanes >> from & 1)))
    fault("(lane %d) wants the value of lane %d, which is none of %08x", own, from, lanes);
  t.lanes = lanes, t.word = word, t.value = value, t.from = from;
  t.waits_for = AT_LANES;
  arrived |= (uint32_t)1 << own;
  bool complete = (arrived & lanes) == lanes, any = false;
  cuda_thread *list[32];
  int count = 0;
  for (uint32_t rest = complete ? lanes : 0; rest; rest &= rest - 1) {
    cuda_thread &other = warp[__builtin_ctz(rest)];
    complete &= other.lanes == lanes;
    any |= other.value != 0;
    list[count++] = &other;
  }
  if (complete) {
    for (int i = 0; i < count; i++) {
      cuda_thread &other = *list[i];
      if (other.word != word)
        fault("(lane %d) meets lane %d of %08x, which calls another word", own, other.thread & 31, lanes);
      other.result = word == RN_WORD_ANY ? any : warp[other.from].value;
    }
    arrived &= ~lanes;
    wake(list, count, true);
  }
  give_way();
  return t.result;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Memory. */

static void check(const void *at, size_t bytes, const char *what, bool also_shared) {
  const cuda_thread &t = self();
  if ((uintptr_t)at % bytes) fault("%s %zu bytes at %p, which is not aligned to as many", what, bytes, at);
  if (also_shared && in_shared(*t.home, at, bytes)) return;
  if (!rn_emulated_holds(at, bytes)) fault("%s %zu bytes at %p, out of bounds", what, bytes, at);
  if (!t.has_waited) fault("%s %zu bytes at %p before rn_wait_for_previous", what, bytes, at);
}
void rn_emulated_load(const void *at, size_t bytes) {
  check(at, bytes, "loads", false);
}
void rn_emulated_store(const void *at, size_t bytes) {
  check(at, bytes, "stores", true);
}

void rn_wait_for_previous() {
  cuda_thread &t = self();
  t.has_waited = now.somebody_waited = true;
  if (rn_emulated_is_shut()) rn_emulated_open();
}

/* ------------------------------------------------------------------------------------------------------------------
 * Clusters. */

void rn_emulator::cluster_turn() {
  if (!now.cluster_arrived || now.cluster_arrived < (uint32_t)now.living) return;
  std::vector<cuda_thread *> list;
  for (cuda_thread &t : now.workers)
    if (t.waits_for == AT_CLUSTER) list.push_back(&t);
  now.cluster_arrived = 0;
  now.cluster_phase++;
  wake(list.data(), (int)list.size(), false);
}

void rn_cluster_arrive() {
  cuda_thread &t = self();
  if (t.has_arrived) fault("arrives at the barrier of the cluster twice without waiting there");
  t.has_arrived = true;
  t.phase = now.cluster_phase;
  now.cluster_arrived++;
  cluster_turn();
}

void rn_cluster_wait() {
  cuda_thread &t = self();
  if (!t.has_arrived) fault("waits at the barrier of the cluster without having arrived");
  t.has_arrived = false;
  if (t.phase == now.cluster_phase) sleep_for(AT_CLUSTER);
}

/* The place in the shared memory of the block `rank` that `at` is in one's own. */
template <class V> static char *in_peer(const V *at, int rank) {
  const cuda_thread &t = self();
  if (!in_shared(*t.home, at, sizeof *at) || (uintptr_t)at % sizeof *at)
    fault("looks at %p of another block: that is no place in shared memory", (const void *)at);
  if (rank < 0 || rank >= t.cluster) fault("looks into block %d of a cluster of %d", rank, t.cluster);
  const cuda_block &peer = now.home[(size_t)rank];
  if (!peer.living) fault("looks into the shared memory of block %d of the cluster, which has left", rank);
  if (&peer != t.home && !now.cluster_phase)
    fault("looks into block %d of the cluster, which may not have started: no barrier of the cluster so far", rank);
  return peer.shared + ((const char *)at - t.home->shared);
}

float rn_cluster_load(const float *at, int rank) {
  float v;
  memcpy(&v, in_peer(at, rank), sizeof v);
  return v;
}

void rn_cluster_store(float *at, int rank, float v) {
  memcpy(in_peer(at, rank), &v, sizeof v);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Transfers. The word holds a mark, so that one that was never made shows; the parity of its phase; how many arrive in
 * a phase and how many still have to; and the bytes expected and not yet there. */

namespace {

constexpr uint64_t mark = 0xb5;

struct state {
  int arrivals, missing; /* 10 bits each */
  uint32_t parity;
  int32_t bytes;
};

uint64_t pack(const state &s) {
  return mark << 56 | (uint64_t)s.parity << 52 | (uint64_t)s.arrivals << 42 | (uint64_t)s.missing << 32 |
         (uint32_t)s.bytes;
}

state open_word_of_any(const rn_transfer *t) {
  if (*t >> 56 != mark) fault("uses a transfer that was not made by rn_transfer_init");
  return {(int)(*t >> 42 & 1023), (int)(*t >> 32 & 1023), (uint32_t)(*t >> 52 & 1), (int32_t)*t};
}

state open_word(const rn_transfer *t) {
  if (!in_shared(*self().home, t, sizeof *t)) fault("uses a transfer at %p, outside of shared memory", (const void *)t);
  return open_word_of_any(t);
}

void wake_waiting(const rn_transfer *t) {
  std::vector<cuda_thread *> list;
  for (cuda_thread &other : now.workers)
    if (other.waits_for == AT_TRANSFER && other.transfer == t) list.push_back(&other);
  wake(list.data(), (int)list.size(), false);
}

void store_word(rn_transfer *t, state s) {
  if (!s.missing && !s.bytes) {
    s.parity ^= 1;
    s.missing = s.arrivals;
  }
  *t = pack(s);
  wake_waiting(t);
}

void make_copies(rn_transfer *t) {
  for (size_t i = 0; i < now.copies.size();) {
    const copy c = now.copies[i];
    if (c.transfer != t) {
      i++;
      continue;
    }
    now.copies.erase(now.copies.begin() + (long)i);
    memcpy(c.to, c.from ? c.from : (const char *)&c.value, c.bytes);
    state s = open_word(t);
    s.bytes -= (int32_t)c.bytes;
    store_word(t, s);
  }
}

} // namespace

static void need_transfers() {
  if (rn_emulated_capability < 90) fault("uses transfers, which this device does not have");
}

void rn_transfer_init(rn_transfer *t, int arrivals) {
  need_transfers();
  if (!in_shared(*self().home, t, sizeof *t) || (uintptr_t)t % sizeof *t || arrivals < 1 || arrivals > 1023)
    fault("calls rn_transfer_init(%p, %d)", (void *)t, arrivals);
  *t = pack({arrivals, arrivals, 0, 0});
}

static void arrive(rn_transfer *t, uint32_t bytes) {
  state s = open_word(t);
  if (!s.missing) fault("arrives at a transfer where everybody has arrived already");
  if (bytes >= 1u << 20) fault("expects %u bytes of a transfer, which counts to 2^20 - 1", bytes);
  s.missing--;
  s.bytes += (int32_t)bytes;
  store_word(t, s);
}
void rn_transfer_expect(rn_transfer *t, uint32_t bytes) {
  arrive(t, bytes);
}
void rn_transfer_arrive(rn_transfer *t) {
  arrive(t, 0);
}

void rn_transfer_start(void *shared, const void *global, uint32_t bytes, rn_transfer *t) {
  const cuda_thread &own = self();
  open_word(t);
  if (bytes % 16 || !bytes || (uintptr_t)shared % 16 || (uintptr_t)global % 16)
    fault("transfers %u bytes from %p to %p: not multiples of 16", bytes, global, shared);
  if (!in_shared(*own.home, shared, bytes)) fault("transfers %u bytes to %p, out of bounds", bytes, shared);
  if (!rn_emulated_holds(global, bytes)) fault("transfers %u bytes from %p, out of bounds", bytes, global);
  if (!own.has_waited) fault("transfers %u bytes from %p before rn_wait_for_previous", bytes, global);
  memset(shared, 0xff, bytes);
  now.copies.push_back({(char *)shared, (const char *)global, 0, bytes, t});
  wake_waiting(t);
}

void rn_cluster_send(float *at, int rank, float v, rn_transfer *t) {
  need_transfers();
  char *const to = in_peer(at, rank);
  rn_transfer *const there = (rn_transfer *)in_peer(t, rank);
  open_word_of_any(there);
  memset(to, 0xff, sizeof v);
  now.copies.push_back({to, nullptr, v, sizeof v, there});
  wake_waiting(there);
}

void rn_transfer_wait(rn_transfer *t, uint32_t parity) {
  cuda_thread &own = self();
  own.transfer = t;
  if (parity > 1) fault("waits for the phase %u of a transfer", parity);
  while (open_word(t).parity == parity) {
    make_copies(t);
    if (open_word(t).parity == parity) sleep_for(AT_TRANSFER);
  }
}
