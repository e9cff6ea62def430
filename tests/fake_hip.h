/* fake_hip.h - a HIP runtime that runs nothing: it writes down what it is asked for, and fails where it is told to.
 *
 * fake_hip.c is a shared library by the name of the real one. The library under test finds it through
 * RMSNORM_HIP_DRIVER, or because it is mapped; the test finds the struct below under the symbol "fake".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_HIP_H
#define FAKE_HIP_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_HIP_MOST = 512, FAKE_HIP_BYTES = 1024, FAKE_HIP_DEVICES = 2 };

typedef struct fake_hip_launch {
  const void *image; /* of the module */
  char entry[64];
  int device;
  uint32_t blocks[3], threads[3], shared;
  void *stream;
  size_t bytes; /* of arguments */
  unsigned char arguments[FAKE_HIP_BYTES];
} fake_hip_launch;

typedef struct fake_hip {
  /* Set by the test. */
  int version; /* 60032830 = 6.0.32830 */
  int devices, init_result;
  char arch[FAKE_HIP_DEVICES][64];
  int fail_at;   /* the call with this number fails (from 1), with fail_with; 0: none does */
  int fail_with; /* a hipError_t */
  int load_us;   /* how long a module takes to load */
  size_t (*argument_bytes)(const void *image, const char *entry); /* what a kernel reads; NULL: not looked at */
  /* Written by the runtime. */
  int calls;
  char last_call[64], failed_call[64];
  int loads, unloads, functions, launches, memsets;
  fake_hip_launch launch[FAKE_HIP_MOST];
  struct {
    void *at, *stream;
    int value;
    size_t bytes;
  } memset8[FAKE_HIP_MOST];
  char breach[256]; /* the first thing asked for that a real runtime would not do; "" = none */
  void (*make_current)(int device);
} fake_hip;

#endif /* FAKE_HIP_H */
