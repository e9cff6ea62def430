/* fake_driver.h - a CUDA driver that runs nothing: it writes down what it is asked for, and fails where it is told to.
 *
 * fake_driver.c is a shared library. The library under test finds it through RMSNORM_CUDA_DRIVER; the test finds the
 * struct below, through which it looks and steers, under the symbol "fake".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_MOST = 512, FAKE_PARAMS = 4096, FAKE_DEVICES = 2 };

typedef struct fake_launch {
  char kernel[96];
  const void *image; /* that it comes out of */
  int device;        /* of the context that was current */
  uint32_t blocks[3], threads[3], shared, cluster, attributes;
  int dependent;
  void *stream;
  /* The first params_bytes of the struct that the only parameter points to; or, with widths, each value in 8 bytes. */
  unsigned char params[FAKE_PARAMS];
} fake_launch;

typedef struct fake_memset {
  unsigned long long at;
  unsigned char value;
  size_t bytes;
  void *stream;
} fake_memset;

typedef struct fake_driver {
  /* Set by the test. */
  int version; /* what cuDriverGetVersion answers: 12040 = 12.4 */
  int devices;
  int init_result; /* of cuInit */
  int major[FAKE_DEVICES], shared_bytes[FAKE_DEVICES];
  int fail_at;       /* the call with this number fails (from 1), with fail_with; 0: none does */
  int fail_with;     /* a CUresult */
  const char *lacks; /* an entry point that this driver does not have, or NULL */
  size_t params_bytes;
  /* The bytes of parameter i of a kernel, 0 past its last; NULL: each kernel takes one struct. */
  size_t (*width)(const void *image, const char *kernel, size_t i);
  int load_us; /* how long a library takes to load */
  /* Written by the driver. */
  int calls; /* all of them, of any thread */
  char last_call[64], failed_call[64];
  char asked[FAKE_MOST][48]; /* entry points asked for by name */
  int asked_count;
  int loads, unloads, functions_loaded, attributes_set[FAKE_DEVICES];
  int launches, memsets;
  fake_launch launch[FAKE_MOST];
  fake_memset memset8[FAKE_MOST];
  char breach[256]; /* the first thing asked for that a real driver would not do; "" = none */
  /* The device whose context is current in the calling thread, -1 = none. */
  void (*make_current)(int device);
} fake_driver;

#endif /* FAKE_DRIVER_H */
