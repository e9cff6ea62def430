/* run_device.c - the call of `rmsnorm run --device cuda` or hip: every tensor to the GPU, the call, the results back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "message.h"
#include "run.h"

#include <string.h>

enum { CALLS = 4, TENSORS = 4 + OUTS + 1 };

/* One tensor of the job, and the pointer of the arguments that leads to it. */
typedef struct visitor {
  const void *host;
  size_t bytes;
  void **place; /* in the copy of the arguments that is for the device */
  char *copy;
  bool output;
} visitor;

static void visit(visitor *list, int *count, const rn_tensor *t, void *place, bool output) {
  void **pointer = place;
  if (t->data == NULL || *pointer == NULL) return;
  list[(*count)++] = (visitor){t->data, (size_t)t->count * (size_t)t->item_bytes, pointer, NULL, output};
}

static int failed(void) {
  return rn_trouble("run", "--device %s: %s", rn_device_kind() == RMSNORM_DEVICE_HIP ? "hip" : "cuda",
                    rn_device_error());
}

/* The fastest of some calls, by the device's own clock. */
static int call(rn_job *j, const rmsnorm_forward_args *args, void *stream) {
  void *events[2] = {rn_event_new(), rn_event_new()};
  int status = events[0] != NULL && events[1] != NULL ? 0 : failed();
  for (int i = 0; i < CALLS && status == 0; i++) {
    double seconds = 0;
    if (!rn_event_record(events[0], stream))
      status = failed();
    else if (rmsnorm_forward(args, stream) != RMSNORM_OK)
      status = rn_trouble("run", "%s", rmsnorm_last_error());
    else if (!rn_event_record(events[1], stream) || !rn_stream_finish(stream) ||
             !rn_event_seconds(events[0], events[1], &seconds))
      status = failed();
    if (i == 0 || seconds < j->seconds) j->seconds = seconds;
  }
  rn_event_free(events[0]), rn_event_free(events[1]);
  return status;
}

int rn_run_on_device(rn_job *j) {
  rmsnorm_forward_args a = j->args;
  visitor list[TENSORS];
  int count = 0, status = 0;
  rn_device_choose(j->where.device);
  rn_device *device = rn_device_open(j->where.ordinal);
  void *stream = device != NULL ? rn_stream_new() : NULL;
  if (stream == NULL) status = failed();
  visit(list, &count, &j->x, &a.x.data, false);
  visit(list, &count, &j->weight, &a.weight, false);
  visit(list, &count, &j->residual, &a.residual.data, false);
  visit(list, &count, &j->gate, &a.gate.data, false);
  visit(list, &count, &j->out[OUT_Y].tensor, &a.y.data, true);
  visit(list, &count, &j->out[OUT_Q].tensor, &a.quant.q.data, true);
  visit(list, &count, &j->out[OUT_SCALE].tensor, &a.quant.scale_out, true);
  visit(list, &count, &j->out[OUT_RESIDUAL].tensor, &a.residual_out.data, true);
  visit(list, &count, &j->out[OUT_RSTD].tensor, &a.rstd, true);
  if (a.quant.scale != NULL)
    list[count++] = (visitor){&j->scale_in, sizeof j->scale_in, (void **)(void *)&a.quant.scale, NULL, false};
  for (int i = 0; i < count && status == 0; i++) {
    list[i].copy = rn_device_alloc(list[i].bytes);
    if (list[i].copy == NULL || !rn_device_upload(list[i].copy, list[i].host, list[i].bytes)) status = failed();
    *list[i].place = list[i].copy;
  }
  if (status == 0 && !rn_device_finish()) status = failed();
  if (status == 0) status = call(j, &a, stream);
  for (int i = 0; i < count; i++) {
    if (status == 0 && list[i].output &&
        !rn_device_download((void *)(uintptr_t)list[i].host, list[i].copy, list[i].bytes))
      status = failed();
    rn_device_free(list[i].copy);
  }
  rn_stream_free(stream);
  rn_device_close(device);
  return status;
}
