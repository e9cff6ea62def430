/* gpu.h - the memory, streams and graphs of a GPU, as the command needs them: it brings its tensors there and back.
 * The library itself asks for none of this; a program that calls it has its own.
 *
 * The driver is opened at run time, nothing of it is linked: CUDA's, or the HIP runtime, whichever rn_device_choose was
 * told. RMSNORM_CUDA_DRIVER and RMSNORM_HIP_DRIVER name another library file in its place, here and in the library.
 * Everything below acts on the context that rn_device_use made current in this thread (HIP: on the device); what
 * returns bool (or a pointer) is false (NULL) on failure, and rn_device_error() says why. The way to HIP has not been
 * run on AMD hardware.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_GPU_H
#define RN_CLI_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --device: which memory the tensors lie in, and which of the machine's GPUs. */
typedef struct rn_where {
  int device;  /* rmsnorm_device */
  int ordinal; /* 0, 1, ... */
} rn_where;
/* "cpu", "cuda", "hip", or with a number "cuda:N", "hip:N"; false for anything else. */
bool rn_where_parse(const char *text, rn_where *where);
#define RN_WHERE_EXPECTED "cpu, cuda, cuda:N, hip or hip:N"
/* "cpu", "cuda", "hip". */
const char *rn_where_name(const rn_where *where);
/* Whether implementation i of the library works on memory of that device. */
bool rn_where_has(const rn_where *where, int i);

typedef struct rn_device_facts {
  char name[128];
  int driver; /* CUDA: 13000 = 13.0; HIP: 60032830 = 6.0.32830 */
  int ordinal;
  int major, minor; /* compute capability */
  char arch[64];    /* HIP: "gfx942:sramecc+:xnack-"; else "" */
  int sms;
  size_t l2_bytes, memory_bytes;
} rn_device_facts;

/* What kind of devices all that follows is about, an rmsnorm_device: CUDA until told otherwise. */
void rn_device_choose(int device);
int rn_device_kind(void);

/* What was wrong last: the driver's function, its error's name and words. Never NULL. */
const char *rn_device_error(void);

/* rn_device_count - how many devices the driver has; 0 with a reason when there is no driver or no device. */
int rn_device_count(void);
bool rn_device_facts_of(int ordinal, rn_device_facts *facts);
/* "driver 13.0", "HIP 6.4"; valid until the next call. */
const char *rn_device_version(const rn_device_facts *facts);

/* rn_device_open - a device through its primary context, made current; rn_device_open_another - a context of its own
 * on that device (HIP has one for each device: the same). NULL: rn_device_error(). */
typedef struct rn_device rn_device;
rn_device *rn_device_open(int ordinal);
rn_device *rn_device_open_another(int ordinal);
void rn_device_close(rn_device *d);
bool rn_device_use(const rn_device *d);
/* Wait for everything in the current context. */
bool rn_device_finish(void);
size_t rn_device_free_bytes(void);

void *rn_device_alloc(size_t bytes);
void rn_device_free(void *data);
bool rn_device_upload(void *to, const void *from, size_t bytes);
bool rn_device_download(void *to, const void *from, size_t bytes);
bool rn_device_fill(void *to, int byte, size_t bytes);
/* Queued, not waited for. */
bool rn_device_move(void *to, const void *from, size_t bytes, void *stream);
/* rn_device_repeat - the first `period` bytes again and again, up to `bytes`. */
bool rn_device_repeat(void *data, size_t period, size_t bytes);
/* Memory of the host that the device reads and writes quickly. */
void *rn_device_host_alloc(size_t bytes);
void rn_device_host_free(void *data);

/* Streams that do not wait for the default stream. */
void *rn_stream_new(void);
bool rn_stream_finish(void *stream);
void rn_stream_free(void *stream);

void *rn_event_new(void);
bool rn_event_record(void *event, void *stream);
/* Seconds between two events that have come to pass. */
bool rn_event_seconds(void *from, void *to, double *seconds);
void rn_event_free(void *event);

/* What is queued between begin and end becomes a graph that can be launched again and again. After a failed end the
 * stream works again. */
bool rn_graph_begin(void *stream);
void *rn_graph_end(void *stream);
bool rn_graph_launch(void *graph, void *stream);
void rn_graph_free(void *graph);

/* Kernels out of an image (fatbin or cubin) that the build made; NULL when it has none of that name. Loaded for all
 * contexts and kept. `parameters` is the one struct that the kernel takes. */
void *rn_kernel_find(const void *image, const char *name);
bool rn_kernel_launch(void *kernel, unsigned blocks, unsigned threads, void *parameters, void *stream);

#endif /* RN_CLI_GPU_H */
