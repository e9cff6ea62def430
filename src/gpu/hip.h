/* hip.h - the part of AMD's HIP runtime that the library uses, found at run time; no header of ROCm is needed.
 *
 * Written after the interface of ROCm 6.0 and its documents. It has been run against a runtime that only writes down
 * what it is asked for, not on AMD hardware.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_GPU_HIP_H
#define RN_GPU_HIP_H

#include "../internal.h"

#include <stddef.h>
#include <stdint.h>

/* What the functions of the runtime answer; those that are told apart here. */
enum {
  RN_HIP_SUCCESS = 0,
  RN_HIP_NO_DEVICE = 100,
  RN_HIP_INVALID_IMAGE = 200,
  RN_HIP_NO_BINARY_FOR_GPU = 209,
  RN_HIP_FIRST_OF_CAPTURE = 900, /* the errors of stream capture */
  RN_HIP_LAST_OF_CAPTURE = 908
};

/* The entry points, by what they do. All handles are pointers, all enumerators int. */
typedef struct rn_hip {
  int (*init)(unsigned flags);
  int (*device_count)(int *count);
  int (*current_device)(int *device);
  int (*device_properties)(void *properties, int device); /* of the layout R0600 */
  const char *(*error_name)(int error);
  int (*module_load)(void **module, const void *image); /* on the current device */
  int (*module_unload)(void *module);
  int (*module_function)(void **function, void *module, const char *name);
  int (*launch)(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **params, void **extra);
  int (*memset8)(void *at, int value, size_t bytes, void *stream);
  int version; /* 60032830 = 6.0.32830 */
} rn_hip;

/* NULL when there is a runtime and a device, otherwise why not. The first call looks for them, all others only read. */
const char *rn_hip_why_not(void);
/* The entry points, once rn_hip_why_not has returned NULL. */
const rn_hip *rn_hip_get(void);
/* RMSNORM_ERROR_DEVICE, with the name and the number of the runtime's error behind `what`. */
rmsnorm_status rn_hip_error(int error, const char *what, const char *of);

typedef struct rn_hip_device {
  int32_t number;
  int32_t arch;            /* the hexadecimal digits of its name: 0x90a of gfx90a. 0: a name that is none of these */
  int32_t wave;            /* threads that go together: 64 on CDNA */
  int32_t multiprocessors; /* compute units */
  int32_t shared_bytes;    /* LDS that a block may ask for */
} rn_hip_device;
/* That which is current in the calling thread, or why it can not be told. */
rmsnorm_status rn_hip_device_of_thread(rn_hip_device *device);
/* The same without an error; false: it can not be asked. */
bool rn_hip_device_to_explain(rn_hip_device *device);

#endif /* RN_GPU_HIP_H */
