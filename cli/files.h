/* files.h - tensors from and to files: .npy, .safetensors and GGUF.
 *
 * A tensor is named by its file, "x.npy", or by its file and its name in there, "model.safetensors:norm.weight". The
 * format is told from the first bytes, never from the name. Files are untrusted: every number in a header is checked
 * against the size of the file before it is used, and whatever is wrong is one message on `err`.
 *
 * Three layers: a reader per format turns a file into an index (files_npy.c, files_safetensors.c, files_gguf.c);
 * files.c finds an entry of it and loads that, the same way for all formats; the writers are at the end.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_FILES_H
#define RN_CLI_FILES_H

#include "rmsnorm.h"

#include <stdbool.h>
#include <stdio.h>

enum { RN_RANK_MAX = 8 };

/* One tensor in memory, row-major, little-endian, 64-byte aligned. */
typedef struct rn_tensor {
  int dtype;      /* rmsnorm_dtype; NONE = opaque elements of item_bytes bytes (numpy's V2, V1, u2, u1) */
  int item_bytes; /* bytes of one element */
  bool assumed;   /* the elements were opaque; their type is the one the caller gave */
  int rank;       /* 0 ... RN_RANK_MAX */
  int64_t shape[RN_RANK_MAX];
  int64_t count; /* product of shape */
  void *data;    /* owned; never NULL after a read, also when count is 0 */
} rn_tensor;

/* What a GGUF file says about its model; empty for the other formats. */
typedef struct rn_model_facts {
  char architecture[64]; /* general.architecture, "" = the file does not say */
  double eps;            /* ARCH.attention.layer_norm_rms_epsilon, < 0 = the file does not say */
} rn_model_facts;

/* rn_gguf_offset_folded - whether converters to GGUF add the 1 of this architecture's "1 + weight" norms to the weight
 * they store. Readers of GGUF know of no offset, so those of all other architectures want none either. */
bool rn_gguf_offset_folded(const char *architecture);

/* rn_tensor_read - read the tensor `spec` names. `dtype` (or NONE) gives opaque elements of that size their type.
 * `facts` may be NULL. False: one message, ending in a newline, was written to err, and *tensor needs no free. */
bool rn_tensor_read(const char *spec, int dtype, rn_tensor *tensor, rn_model_facts *facts, FILE *err);

/* rn_tensor_new - a zeroed tensor; false when memory is short or the size overflows (no message). */
bool rn_tensor_new(rn_tensor *tensor, int dtype, int rank, const int64_t *shape);
void rn_tensor_free(rn_tensor *tensor);

/* One thing to write. */
typedef struct rn_named_tensor {
  const char *name; /* in the file; .npy has no names */
  const rn_tensor *tensor;
} rn_named_tensor;

/* rn_file_write - write `count` tensors to the file `name`, whose ending chooses the format (.npy takes one tensor
 * only). A temporary file beside it takes its place at the end, so that it is never half written; where it is a
 * symbolic link, it stays one and the file that it leads to is replaced. A note about types numpy does not know goes to
 * err, as do errors. */
bool rn_file_write(const char *name, const rn_named_tensor *tensors, int count, FILE *err);

/* rn_file_writable - whether the ending of path is one that can take `count` tensors. */
bool rn_file_writable(const char *path, int count, FILE *err);

/* rn_file_others - how many tensors with other names than these a file holds; 0 for .npy, whose array has no name. */
int64_t rn_file_others(const char *path, const char *const *names, int count);

/* rn_dtype_parse - a type by its name, ours ("bf16") or that of other tools ("bfloat16", "float8_e4m3fn"); NONE when
 * unknown. */
int rn_dtype_parse(const char *name);

/* rn_spec_split - where the tensor name begins in "file.safetensors:name" (NULL = no name), and the length of the path.
 */
const char *rn_spec_split(const char *spec, size_t *path_length);

/* ------------------------------------------------------------------------------------------------------------------
 * The index: what the readers produce. Used by files.c, and by the tests and the fuzzer, which have the bytes already.
 */
typedef struct rn_entry {
  char *name; /* owned, "" for .npy */
  char type[24];
  int dtype; /* as in rn_tensor; NONE and item_bytes 0: a type this program does not read */
  int item_bytes;
  int rank;
  int64_t shape[RN_RANK_MAX];
  size_t offset, bytes; /* of the data in the file; checked to lie within it */
  bool swapped;         /* big-endian */
  bool fortran;         /* first index fastest */
} rn_entry;

typedef struct rn_index {
  const char *format; /* "npy", "safetensors", "gguf" */
  rn_entry *entries;
  size_t count, room;
  rn_model_facts facts;
} rn_index;

/* rn_index_read - index a whole file that lies in memory. `path` is for messages. False: message written. The index
 * has to be freed in either case. */
bool rn_index_read(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err);
void rn_index_free(rn_index *index);
/* rn_index_file - the same of a file on disk, which may change afterwards: what is loaded later is checked again. */
bool rn_index_file(rn_index *index, const char *path, FILE *err);
/* rn_index_load - the tensor called `name` (NULL: the only one) out of an indexed file. */
bool rn_index_load(const rn_index *index, const char *path, const unsigned char *file, const char *name, int dtype,
                   rn_tensor *tensor, FILE *err);

bool rn_index_npy(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err);
bool rn_index_safetensors(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err);
bool rn_index_gguf(rn_index *index, const char *path, const unsigned char *file, size_t bytes, FILE *err);

/* For the readers. rn_index_add: a new zeroed entry, NULL when memory is short. rn_shape_bytes: the bytes of a shape,
 * false when a dimension is negative or the product overflows. */
rn_entry *rn_index_add(rn_index *index);
bool rn_shape_bytes(int rank, const int64_t *shape, int item_bytes, size_t *bytes);

/* The writers, into an open stream. False: a write failed. */
bool rn_write_npy(FILE *out, const rn_tensor *tensor);
bool rn_write_safetensors(FILE *out, const rn_named_tensor *tensors, int count);

/* rn_print_name - text from a file, its control characters replaced, so that it can not drive the terminal. */
void rn_print_name(FILE *out, const char *text);

#endif /* RN_CLI_FILES_H */
