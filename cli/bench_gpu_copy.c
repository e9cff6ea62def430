/* bench_gpu_copy.c - the copy limit of a GPU: the best of our own copy kernels and of the driver's copy.
 *
 * The kernels are those of src/cuda/copy.cu, in an image of the command's own; a build without them has the driver's
 * copy alone, which is a third slower than a good kernel, and says so by its name.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef RN_COPY_IMAGE
/* The driver reads the header of an image as words of 8 bytes. */
__asm__(".pushsection .rodata\n"
        ".hidden rn_copy_image\n"
        ".globl rn_copy_image\n"
        ".balign 64\n"
        "rn_copy_image:\n"
        ".incbin \"" RN_COPY_IMAGE "\"\n"
        ".popsection\n");
extern const unsigned char rn_copy_image[] __attribute__((visibility("hidden")));
static const void *const image = rn_copy_image;
#else
static const void *const image = NULL;
#endif

/* The parameters of the kernels. */
typedef struct copy_parameters {
  const void *from[3];
  void *to[2];
  int64_t words; /* of 16 bytes, in each stream */
} copy_parameters;

typedef struct method {
  char name[40];
  void *kernel; /* NULL: the driver's copy */
  unsigned threads;
  int words; /* 16-byte words of a thread */
} method;

enum { METHODS = 16, KEPT = 4, MIXES = 4, CLASSES = 3, KNOWN = 512 };
static const struct mix { int reads, writes; } mixes[MIXES] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}};

/* For each mix: all methods, and for each class of sizes the fastest of them, found at the first size of that class. */
static struct {
  int methods;
  method list[METHODS];
  int kept[CLASSES];
  int best[CLASSES][KEPT];
} table[MIXES];
static bool table_made;

static struct {
  int mix;
  bool hot;
  int64_t bytes;
  double seconds;
  const char *name;
} known[KNOWN];
static int known_count;

static char *arena;
static size_t arena_bytes;

static void make_table(void) {
  static const unsigned threads[] = {128, 256, 512, 1024};
  if (table_made) return;
  table_made = true;
  for (int m = 0; m < MIXES; m++) {
    for (int words = 1; words <= 4 && image; words *= 2) {
      char name[40];
      snprintf(name, sizeof name, "rn_copy_%d_%d_%d", mixes[m].reads, mixes[m].writes, words);
      void *kernel = rn_kernel_find(image, name);
      for (size_t t = 0; kernel && t < sizeof threads / sizeof *threads; t++) {
        method *k = &table[m].list[table[m].methods++];
        k->kernel = kernel, k->threads = threads[t], k->words = words;
        snprintf(k->name, sizeof k->name, "%dx%u", words, threads[t]);
      }
    }
    if (m == 0) snprintf(table[m].list[table[m].methods++].name, sizeof table[m].list[0].name, "driver copy");
  }
}

typedef struct job {
  const method *how;
  const struct mix *mix;
  char *base;
  size_t length, step; /* bytes of one stream, and from one stream to the next */
} job;

static bool queue(void *context, int64_t set, void *stream) {
  job *j = context;
  char *at = j->base + (size_t)set * j->step * (size_t)(j->mix->reads + j->mix->writes);
  if (!j->how->kernel) return rn_device_move(at + j->step, at, j->length, stream);
  copy_parameters p;
  memset(&p, 0, sizeof p);
  for (int i = 0; i < j->mix->reads; i++) p.from[i] = at + (size_t)i * j->step;
  for (int i = 0; i < j->mix->writes; i++) p.to[i] = at + (size_t)(j->mix->reads + i) * j->step;
  p.words = (int64_t)(j->length / 16);
  int64_t each = (int64_t)j->how->threads * j->how->words, blocks = (p.words + each - 1) / each;
  return rn_kernel_launch(j->how->kernel, (unsigned)(blocks ? blocks : 1), j->how->threads, &p, stream);
}

static bool reserve(size_t bytes) {
  if (bytes <= arena_bytes) return true;
  rn_gpu_copy_release();
  arena = rn_device_alloc(bytes);
  if (!arena) return false;
  arena_bytes = bytes;
  /* Neither zeros nor all alike: both can run faster than real data. */
  enum { PERIOD = 1 << 20 };
  unsigned char *pattern = malloc(PERIOD);
  uint32_t x = 2463534242u;
  for (int i = 0; pattern && i < PERIOD; i++) x ^= x << 13, x ^= x >> 17, x ^= x << 5, pattern[i] = (unsigned char)x;
  size_t period = bytes < PERIOD ? bytes : PERIOD;
  bool ok = pattern && rn_device_upload(arena, pattern, period) && rn_device_repeat(arena, period, bytes) &&
            rn_device_finish();
  free(pattern);
  return ok;
}

double rn_gpu_copy(int reads, int writes, int64_t bytes, bool hot, const rn_gpu_settings *s, void *stream,
                   const char **name) {
  int m = 0;
  *name = NULL;
  make_table();
  while (m < MIXES && (mixes[m].reads != reads || mixes[m].writes != writes)) m++;
  if (m == MIXES || !table[m].methods) return 0;
  for (int i = 0; i < known_count; i++)
    if (known[i].mix == m && known[i].hot == hot && known[i].bytes == bytes) {
      *name = known[i].name;
      return known[i].seconds;
    }
  int64_t streams = reads + writes, four = 4 * (int64_t)s->l2_bytes;
  size_t length = ((size_t)(bytes / streams) + 15) / 16 * 16, step = (length + 511) / 512 * 512;
  int64_t sets = hot ? 1 : (four + bytes - 1) / bytes;
  sets = sets < 1 ? 1 : sets > 96 ? 96 : sets;
  if (!reserve((size_t)sets * step * (size_t)streams)) return 0;
  int class = hot ? 0 : bytes < four ? 1 : 2, fresh = table[m].kept[class] == 0;
  double seconds[METHODS], least = 0;
  int candidates = fresh ? table[m].methods : table[m].kept[class];
  for (int i = 0; i < candidates; i++) {
    int which = fresh ? i : table[m].best[class][i];
    job j = {&table[m].list[which], &mixes[m], arena, length, step};
    rn_gpu_time time;
    seconds[i] = 0;
    if (!rn_gpu_time_it(queue, &j, sets, s->budget / 8, stream, &time)) continue;
    seconds[i] = time.median;
    if (!*name || time.median < least) least = time.median, *name = j.how->name;
  }
  for (int k = 0; fresh && k < KEPT; k++) {
    int next = -1;
    for (int i = 0; i < candidates; i++)
      if (seconds[i] > 0 && (next < 0 || seconds[i] < seconds[next])) next = i;
    if (next < 0) break;
    table[m].best[class][table[m].kept[class]++] = next;
    seconds[next] = 0;
  }
  if (*name && known_count < KNOWN) {
    known[known_count].mix = m, known[known_count].hot = hot, known[known_count].bytes = bytes;
    known[known_count].seconds = least, known[known_count++].name = *name;
  }
  return least;
}

void rn_gpu_copy_release(void) {
  rn_device_free(arena);
  arena = NULL, arena_bytes = 0;
}
