/* cuda_driver.h - the part of NVIDIA's driver that the library uses, found at run time; no header of CUDA is needed.
 *
 * It knows devices and entry points, no kernels and no problems: src/cuda and src/triton both stand on it. What a
 * thread has made current is used and never changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_GPU_CUDA_DRIVER_H
#define RN_GPU_CUDA_DRIVER_H

#include "../internal.h"

#include <stddef.h>
#include <stdint.h>

/* What the driver's functions answer; those that are told apart here. */
enum {
  RN_CU_SUCCESS = 0,
  RN_CU_INVALID_VALUE = 1,
  RN_CU_NO_DEVICE = 100,
  RN_CU_INVALID_IMAGE = 200,
  RN_CU_INVALID_CONTEXT = 201,
  RN_CU_NO_BINARY_FOR_GPU = 209,
  RN_CU_UNSUPPORTED_PTX_VERSION = 222,
  RN_CU_FIRST_OF_CAPTURE = 900, /* the errors of stream capture */
  RN_CU_LAST_OF_CAPTURE = 908
};

enum { /* CUdevice_attribute */
       RN_CU_DEVICE_MULTIPROCESSORS = 16,
       RN_CU_DEVICE_MAJOR = 75,
       RN_CU_DEVICE_MINOR = 76,
       RN_CU_DEVICE_SHARED_BYTES = 97 /* most a block may ask for */
};
enum { /* CUfunction_attribute */
       RN_CU_KERNEL_STATIC_SHARED_BYTES = 1,
       RN_CU_KERNEL_MOST_DYNAMIC_SHARED_BYTES = 8,
       RN_CU_KERNEL_NON_PORTABLE_CLUSTER = 14
};
enum { RN_CU_LAUNCH_CLUSTER = 4, RN_CU_LAUNCH_DEPENDENT = 6 }; /* CUlaunchAttributeID */

typedef struct rn_cu_launch_attribute {
  int32_t id;
  char pad[4];
  union {
    char pad[64];
    struct {
      uint32_t x, y, z;
    } cluster;
    int32_t dependent;
  } value;
} rn_cu_launch_attribute;

typedef struct rn_cu_launch_config {
  uint32_t blocks[3], threads[3], shared;
  void *stream;
  rn_cu_launch_attribute *attributes;
  uint32_t attribute_count;
} rn_cu_launch_config;

/* The entry points, by what they do. All handles are pointers, all enumerators int. */
typedef struct rn_driver {
  int (*init)(unsigned flags);
  int (*device_count)(int *count);
  int (*device_attribute)(int *value, int attribute, int device);
  int (*context_device)(int *device);
  int (*error_name)(int error, const char **name);
  int (*library_load)(void **library, const void *image, int *jit_options, void **jit_values, unsigned jit_count,
                      int *options, void **values, unsigned count);
  int (*library_unload)(void *library);
  int (*library_kernel)(void **kernel, void *library, const char *name);
  int (*kernel_attribute)(int *value, int attribute, void *kernel, int device);
  int (*set_kernel_attribute)(int attribute, int value, void *kernel, int device);
  int (*kernel_function)(void **function, void *kernel); /* in the current context */
  int (*function_attribute)(int *value, int attribute, void *function);
  int (*function_load)(void *function); /* NULL before 12.4, as the next one */
  int (*kernel_parameter)(void *kernel, size_t index, size_t *offset, size_t *bytes);
  int (*launch)(const rn_cu_launch_config *config, void *kernel, void **params, void **extra);
  int (*memset8)(unsigned long long at, unsigned char value, size_t bytes, void *stream);
  int version; /* 12040 = 12.4 */
} rn_driver;

/* NULL when there is a driver and a device, otherwise why not. The first call looks for them, all others only read. */
const char *rn_driver_why_not(void);
/* The entry points, once rn_driver_why_not has returned NULL. */
const rn_driver *rn_driver_get(void);
/* RMSNORM_ERROR_DEVICE, with the name and the number of the driver's error behind `what`. */
rmsnorm_status rn_driver_error(int error, const char *what, const char *of);

/* Loads into the current context what a handle alone does not load yet; answers as the driver does. */
int rn_driver_load_kernel(void *kernel);
/* Queues zeros. */
rmsnorm_status rn_driver_zero(void *data, size_t bytes, void *stream);

/* What a launch may ask for: the facts of a device. */
typedef struct rn_driver_device {
  int32_t number;
  int32_t major, minor; /* compute capability */
  int32_t multiprocessors;
  int32_t shared_bytes; /* most shared memory a block may ask for */
} rn_driver_device;
/* That of the current context, or why there is none. */
rmsnorm_status rn_driver_device_of_context(rn_driver_device *device);
/* The same without an error: device 0 stands in when no context is current. false: not even that can be asked. */
bool rn_driver_device_to_explain(rn_driver_device *device);

#endif /* RN_GPU_CUDA_DRIVER_H */
