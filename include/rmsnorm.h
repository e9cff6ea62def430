/* rmsnorm.h - root-mean-square normalisation with the same bits everywhere.
 *
 *   y = x * rsqrt(mean(x^2, -1) + eps) * weight
 *
 * This is the whole interface of the library. Read it from top to bottom:
 *
 *   1. Status codes            what a call answers
 *   2. Types and switches      number types, rounding points, gates, quantised formats
 *   3. Tensors                 a pointer with its type and its strides
 *   4. Threads and devices     who runs the rows, and where
 *   5. Forward                 rmsnorm_forward
 *   6. Split statistics        rmsnorm_stats
 *   7. Backward                rmsnorm_backward
 *   8. Presets                 the roundings of the model families, by name
 *   9. Explanations            which implementation runs, and why the others do not
 *
 * The shortest useful program:
 *
 *   rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
 *   args.rows = rows;
 *   args.cols = cols;
 *   args.eps = 1e-6;
 *   args.x = rmsnorm_input(x, RMSNORM_DTYPE_BF16, cols);
 *   args.weight = weight;
 *   args.weight_dtype = RMSNORM_DTYPE_BF16;
 *   args.y = rmsnorm_output(y, RMSNORM_DTYPE_BF16, cols);
 *   if (rmsnorm_forward(&args, NULL) != RMSNORM_OK)
 *     fprintf(stderr, "%s\n", rmsnorm_last_error());
 *
 * Promises that hold for every function here:
 *  - Same bits. For equal arguments the result has the same bits whatever the device, the instruction set, the number
 *    of threads, the number of rows, the place of a row, the strides, the alignment, or in-place use. docs/numerics.md
 *    writes the order of every operation down. (NaN: same places, payload free.)
 *  - No allocation, no lock, no global mode, no printing, no exit, but for what OpenMP and the driver of a device do at
 *    a first use (section 4). Safe from many threads as long as their outputs do not overlap. The rounding mode, the
 *    flush-to-zero bits and the exception flags of the caller neither leak in nor out.
 *  - Bad input is refused before anything is written, with a status of its own and a sentence in rmsnorm_last_error().
 *  - Counts and strides are int64_t and counted in elements. Anything in bytes ends in `_bytes`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RMSNORM_H
#define RMSNORM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMSNORM_VERSION_MAJOR 0
#define RMSNORM_VERSION_MINOR 1
#define RMSNORM_VERSION_PATCH 0
/* The version as one number: major * 10000 + minor * 100 + patch. */
#define RMSNORM_VERSION (RMSNORM_VERSION_MAJOR * 10000 + RMSNORM_VERSION_MINOR * 100 + RMSNORM_VERSION_PATCH)

#if defined(RMSNORM_STATIC)
#define RMSNORM_API
#elif defined(_WIN32)
#define RMSNORM_API
#else
#define RMSNORM_API __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------------------------------------------------------
 * 1. Status codes. Values never change; gaps are for later members of the same kind. Every refusal below leaves every
 *    output as it was. When several arguments are wrong, the first one found is reported. */
typedef enum rmsnorm_status {
  RMSNORM_OK = 0,
  RMSNORM_ERROR_NULL = 10,         /* a pointer that is needed is NULL */
  RMSNORM_ERROR_STRUCT_SIZE = 12,  /* struct_size is 0 (no initialiser was used) or not that of this library */
  RMSNORM_ERROR_SIZE = 14,         /* rows, heads, cols, groups, divisor, threads, block_cols: out of range, or a
                                      product overflows */
  RMSNORM_ERROR_STRIDE = 16,       /* rows of an output would overlap, a stride overflows, scale_stride is too small */
  RMSNORM_ERROR_COL_STRIDE = 18,   /* the last dimension must have stride 1 */
  RMSNORM_ERROR_ALIGNMENT = 20,    /* a pointer is not aligned to its own element */
  RMSNORM_ERROR_OVERLAP = 22,      /* an output overlaps another buffer in a way the table of aliases does not allow */
  RMSNORM_ERROR_ENUM = 24,         /* an unknown dtype, rounding, gate, format, ..., or one that this argument can not
                                      have (a quantised type for x) */
  RMSNORM_ERROR_VALUE = 26,        /* eps, weight_offset, scale, scale_max: negative, NaN or infinite where that has no
                                      meaning; a reserved field that is not 0 */
  RMSNORM_ERROR_WORKSPACE = 28,    /* the workspace is NULL, misaligned or too small */
  RMSNORM_ERROR_COMBINATION = 30,  /* two arguments that exclude each other, or one that needs another: f64 beside an x
                                      that is not, a stream or a launch on the CPU, a gate without an activation, ... */
  RMSNORM_ERROR_UNSUPPORTED = 40,  /* legal, but no implementation here (or not the one forced) takes it */
  RMSNORM_ERROR_UNKNOWN_IMPL = 42, /* the implementation asked for by name does not exist in this build */
  RMSNORM_ERROR_DEVICE = 50,       /* the driver of a device failed, or has no current context; the sentence names the
                                      driver's error. Only here outputs may have been written: kernels that were queued
                                      before the failure run */
  RMSNORM_ERROR_BUFFER = 60        /* a text buffer of the caller is too small */
} rmsnorm_status;

/* rmsnorm_status_string - the name of a status and one line about it. Never NULL; static storage; any int is accepted.
 */
RMSNORM_API const char *rmsnorm_status_string(int status);

/* rmsnorm_last_error - what was wrong with the last refused call of this thread: which argument, what was expected,
 * what was found. Never NULL; "" when nothing was refused yet. The text is thread-local and lives until the thread's
 * next refused call. A successful call does not clear it. At most 511 bytes; what is longer is cut. */
RMSNORM_API const char *rmsnorm_last_error(void);

/* rmsnorm_version - RMSNORM_VERSION of the library that is loaded; rmsnorm_version_string - "major.minor.patch". */
RMSNORM_API int rmsnorm_version(void);
RMSNORM_API const char *rmsnorm_version_string(void);

/* ------------------------------------------------------------------------------------------------------------------
 * 2. Types and switches. All are int32_t in the structs, so that their size is fixed. */

/* Element types. f32, f16 and bf16 mix freely in one call. f64 computes everything in double (portable implementation
 * only; gradient checks need it) and is chosen by the type of x; f64 anywhere else needs an f64 x
 * (RMSNORM_ERROR_COMBINATION). An x in f64 can not be quantised (RMSNORM_ERROR_UNSUPPORTED) and has no split
 * statistics.
 * The last four occur only as outputs of a quantising forward. */
typedef enum rmsnorm_dtype {
  RMSNORM_DTYPE_NONE = 0,
  RMSNORM_DTYPE_F32 = 1,
  RMSNORM_DTYPE_F16 = 2,
  RMSNORM_DTYPE_BF16 = 3,
  RMSNORM_DTYPE_F64 = 4,
  RMSNORM_DTYPE_FP8_E4M3 = 8, /* OCP e4m3fn: no infinities, NaN = 0x7f / 0xff, largest 448 */
  RMSNORM_DTYPE_FP8_E5M2 = 9, /* OCP e5m2: largest finite 57344 */
  RMSNORM_DTYPE_INT8 = 10,
  RMSNORM_DTYPE_E8M0 = 11 /* a scale: 2^(code - 127), 0xff = NaN */
} rmsnorm_dtype;

/* rmsnorm_dtype_bytes - bytes of one element, 0 for an unknown type. rmsnorm_dtype_name - "f32", "bf16", ... or "?". */
RMSNORM_API size_t rmsnorm_dtype_bytes(int dtype);
RMSNORM_API const char *rmsnorm_dtype_name(int dtype);

/* Where an intermediate value is rounded. Every rounding is to nearest, ties to even. */
typedef enum rmsnorm_rounding {
  RMSNORM_ROUND_NONE = 0,     /* stays float32 (double when x is f64) */
  RMSNORM_ROUND_X = 1,        /* to the type of x */
  RMSNORM_ROUND_WEIGHT = 2,   /* to the type of weight if that is f16 or bf16, otherwise not at all (T5) */
  RMSNORM_ROUND_PROMOTED = 3, /* to the type x and weight promote to: theirs when equal, otherwise f32 = not at all.
                                 Without weight: to the type of x */
  RMSNORM_ROUND_STORED = 4    /* only for round_sum: to the type of residual_out; when that is absent, to the type x
                                 and residual promote to */
} rmsnorm_rounding;

/* The activation: silu(z) = z * sigmoid(z), so silu(-inf) = -inf * 0 is NaN; sigmoid(-inf) = 0. */
typedef enum rmsnorm_gate { RMSNORM_GATE_NONE = 0, RMSNORM_GATE_SILU = 1, RMSNORM_GATE_SIGMOID = 2 } rmsnorm_gate;
typedef enum rmsnorm_gate_place {
  RMSNORM_GATE_AFTER = 0, /* y * act(gate): fla, Qwen3-Next */
  RMSNORM_GATE_BEFORE = 1 /* norm(x * act(gate)): Mamba-2 */
} rmsnorm_gate_place;

/* The shape of weight and of dweight; packed in every case. */
typedef enum rmsnorm_weight_shape {
  RMSNORM_WEIGHT_COLS = 0,       /* [cols]: one weight per column, all heads alike */
  RMSNORM_WEIGHT_HEADS_COLS = 1, /* [heads, cols]: each head its own */
  RMSNORM_WEIGHT_GROUP = 2       /* [cols / groups]: the same weight for every group */
} rmsnorm_weight_shape;

typedef enum rmsnorm_quant_granularity {
  RMSNORM_QUANT_NONE = 0,
  RMSNORM_QUANT_TENSOR = 1, /* one scale, given by the caller */
  RMSNORM_QUANT_ROW = 2,    /* a scale per row (all cols of one head, over all groups), written to scale_out */
  RMSNORM_QUANT_BLOCK = 3,  /* a scale per block of 32, 64 or 128 columns, written to scale_out */
  RMSNORM_QUANT_MX = 4      /* OCP microscaling: blocks of 32 columns, e8m0 scales, fp8 elements */
} rmsnorm_quant_granularity;

typedef enum rmsnorm_scale_op {
  RMSNORM_SCALE_DIVIDE = 0,    /* q = round(value / scale) */
  RMSNORM_SCALE_RECIPROCAL = 1 /* q = round(value * (1 / scale)), the reciprocal rounded to f32 first */
} rmsnorm_scale_op;

typedef enum rmsnorm_scale_layout {
  RMSNORM_SCALE_ROW_MAJOR = 0, /* element (row, block) at row * scale_stride + block; scale_stride >= blocks */
  RMSNORM_SCALE_COL_MAJOR = 1  /* element (row, block) at block * scale_stride + row; scale_stride >= rows * heads */
} rmsnorm_scale_layout;

typedef enum rmsnorm_e8m0_rounding {
  RMSNORM_E8M0_FLOOR = 0, /* OCP MX v1.0, section 6.3: 2^(floor(log2 amax) - emax); the largest values may saturate */
  RMSNORM_E8M0_CEIL = 1   /* the smallest power of two with which amax does not saturate */
} rmsnorm_e8m0_rounding;

typedef enum rmsnorm_device { RMSNORM_DEVICE_CPU = 0, RMSNORM_DEVICE_CUDA = 1, RMSNORM_DEVICE_HIP = 2 } rmsnorm_device;

/* ------------------------------------------------------------------------------------------------------------------
 * 3. Tensors. Element (row, head, col) lies at data + row * row_stride + head * head_stride + col * col_stride, counted
 *    in elements. With heads == 1, head_stride is not looked at; with rows == 1, row_stride is not.
 *    Inputs: any strides, also 0 (one row seen by all) and negative. Outputs: rows may not overlap each other, and one
 *    of the two outer dimensions has to nest in the other (RMSNORM_ERROR_STRIDE).
 *    col_stride must be 1: it is here so that a transposed view is refused (RMSNORM_ERROR_COL_STRIDE), never misread.
 *    A base pointer needs only the alignment of its element. data == NULL means: absent; the rest is not looked at. */
typedef struct rmsnorm_input_tensor {
  const void *data;
  int64_t row_stride;
  int64_t head_stride;
  int64_t col_stride;
  int32_t dtype;    /* rmsnorm_dtype */
  int32_t reserved; /* 0, or RMSNORM_ERROR_VALUE */
} rmsnorm_input_tensor;

typedef struct rmsnorm_output_tensor {
  void *data;
  int64_t row_stride;
  int64_t head_stride;
  int64_t col_stride;
  int32_t dtype;    /* rmsnorm_dtype */
  int32_t reserved; /* 0, or RMSNORM_ERROR_VALUE */
} rmsnorm_output_tensor;

/* Short hands for the usual cases: [rows, cols] with a row stride, and [rows, heads, cols] with both. */
static inline rmsnorm_input_tensor rmsnorm_input_heads(const void *data, int dtype, int64_t row_stride,
                                                       int64_t head_stride) {
  rmsnorm_input_tensor t;
  t.data = data, t.row_stride = row_stride, t.head_stride = head_stride, t.col_stride = 1;
  t.dtype = dtype, t.reserved = 0;
  return t;
}
static inline rmsnorm_input_tensor rmsnorm_input(const void *data, int dtype, int64_t row_stride) {
  return rmsnorm_input_heads(data, dtype, row_stride, 0);
}
static inline rmsnorm_output_tensor rmsnorm_output_heads(void *data, int dtype, int64_t row_stride,
                                                         int64_t head_stride) {
  rmsnorm_output_tensor t;
  t.data = data, t.row_stride = row_stride, t.head_stride = head_stride, t.col_stride = 1;
  t.dtype = dtype, t.reserved = 0;
  return t;
}
static inline rmsnorm_output_tensor rmsnorm_output(void *data, int dtype, int64_t row_stride) {
  return rmsnorm_output_heads(data, dtype, row_stride, 0);
}

/* The numerics of a norm: six switches and an offset describe every model family (docs/numerics.md has the table).
 * All zero = float32 throughout, every output rounded once. rmsnorm_preset fills one by name. */
typedef struct rmsnorm_numerics {
  float weight_offset;  /* added to weight in float32; Gemma: 1. Finite. Ignored without weight */
  int32_t round_sum;    /* NONE: the float32 sum x + residual is normalised (residual_out is rounded all the same);
                           STORED: the rounded sum is. Only these two */
  int32_t round_rstd;   /* rstd before it is used (and before it is returned): NONE or X */
  int32_t round_xhat;   /* x * rstd before the weight: NONE, X, WEIGHT, PROMOTED */
  int32_t round_normed; /* x-hat * weight before the gate or the quantiser: NONE, X, WEIGHT, PROMOTED */
  int32_t gate;         /* rmsnorm_gate: the activation of the gate; NONE = no gate tensor */
  int32_t gate_place;   /* rmsnorm_gate_place */
} rmsnorm_numerics;

/* ------------------------------------------------------------------------------------------------------------------
 * 4. Threads and devices.
 *    Threads, on the CPU. Rows, and the columns of few long rows, are shared out by the library:
 *      threads == 0   through OpenMP, as many threads as omp_get_max_threads() says, fewer for small work, none inside
 *                     a parallel region of the caller (a build without OpenMP runs serially)
 *      threads == 1   serially, in the calling thread
 *      threads == n   at most n; negative: RMSNORM_ERROR_SIZE
 *    or, when `parallel` is not NULL, by the caller's own parallel-for, cut for parallel->threads threads, or for
 *    `threads` if that is set and less. Small work, and threads == 1, runs in the calling thread without a call of run.
 *    Results never depend on any of this.
 *    Allocation, locks, threads that stay: the library has none of these; the OpenMP runtime has them all when it opens
 *    its threads, which happens only in calls that are large enough for more than one.
 *    fork: the OpenMP runtime (libgomp) does not survive it. Once the parent has opened OpenMP threads, here or
 *    elsewhere, a call in a forked child that opens them again hangs. In such children set threads = 1, or `parallel`
 *    with a pool that the child has started itself. (exec is no problem.) */
typedef struct rmsnorm_parallel {
  void *context;    /* handed to run */
  int32_t threads;  /* how many tasks run may keep going at one time, >= 1 */
  int32_t reserved; /* 0 */
  /* Calls task(task_context, i) once for every i in [0, tasks), in any order, from any threads, and returns when all
   * are done. */
  void (*run)(void *context, int64_t tasks, void (*task)(void *task_context, int64_t index), void *task_context);
} rmsnorm_parallel;

/*    Devices. With device == RMSNORM_DEVICE_CUDA every pointer to elements, scales, statistics, weights and workspace,
 *    and live_rows below, is one that kernels of the current CUDA context can follow; the argument struct, launch and
 *    impl are the caller's memory as ever, read before the call returns. The bits are those of the CPU.
 *    Stream: a CUstream (cudaStream_t is the same) of the context that is current in the calling thread, which the
 *    caller has made current (cudaSetDevice, cuCtxSetCurrent). The work is queued there and the call returns. NULL is
 *    the default stream, as everywhere in CUDA; the library has none of its own. threads and parallel have no effect.
 *    Driver: looked for at the first call for CUDA, never on the CPU: libcuda.so.1, or the file that the environment
 *    variable RMSNORM_CUDA_DRIVER names; for CUDA 12.0 or later. Kernels are loaded when they are first used. Both may
 *    take long, and lock and allocate inside the driver. From then on a call allocates nothing, waits for nothing and
 *    takes no lock of this library. It never changes the current context or device; a process may use several of both.
 *    fork: CUDA does not survive it; a child that wants CUDA must be the first to use it.
 *    Graphs: every call can be captured, once rmsnorm_preload has loaded all kernels in that context. Without it the
 *    driver may have to load a kernel while it captures: depending on its version and the mode of the capture it does,
 *    or the call is refused with RMSNORM_ERROR_DEVICE and the capture is lost. A graph keeps pointers and sizes.
 *    HIP. RMSNORM_DEVICE_HIP is the same for AMD GPUs, those of gfx90a, gfx942 and gfx950 that the build has kernels
 *    for (rmsnorm_explain says which). The stream is a hipStream_t of the device that is current in the calling thread
 *    (hipSetDevice); kernels are loaded, and preloaded, for each device. The runtime is the libamdhip64.so that the
 *    process has mapped already, otherwise that of the system, of ROCm 6.0 or later, or the file that the environment
 *    variable RMSNORM_HIP_DRIVER names. This part is compiled and inspected; it has not been run on AMD hardware. */
typedef struct rmsnorm_launch {
  /* 1: the kernels may start before the work that precedes them in the stream has ended (programmatic dependent launch;
   * without effect below compute capability 9.0, with the implementation "triton", and on HIP). They wait for it before
   * they read anything, so only time changes. The one condition: if what precedes was itself launched so, it must have
   * waited for its own predecessor. 0: not */
  int32_t dependent;
  int32_t multiprocessors; /* the grids are made for at most so many; 0 = all, negative: RMSNORM_ERROR_SIZE. Fewer are
                              slower, the bits are the same */
  /* NULL = all rows. Otherwise one number on the device, read when the kernels run: only the rows before it exist. More
   * than `rows` counts as `rows`, less than 0 as 0. Outputs of the other rows are not touched. So a captured graph can
   * be replayed with fewer rows. forward and stats only (RMSNORM_ERROR_COMBINATION) */
  const int64_t *live_rows;
} rmsnorm_launch;

/* rmsnorm_preload - load what the first calls would load: for CUDA the driver and, in the current context, all kernels
 * of all implementations; for HIP the runtime and, on the current device, all kernels. Once for each context (device),
 * before capturing a graph or where the first call must not be slow; again does no harm. device is an rmsnorm_device;
 * the CPU needs nothing: RMSNORM_OK. Refusals: RMSNORM_ERROR_ENUM; RMSNORM_ERROR_UNSUPPORTED, with the reason, where
 * the build or the machine has no such device; RMSNORM_ERROR_DEVICE. */
RMSNORM_API rmsnorm_status rmsnorm_preload(int32_t device);

/* ------------------------------------------------------------------------------------------------------------------
 * 5. Forward. */

/* block_cols, scale_max, scale and scale_out must be 0 or NULL where the granularity does not have them, and MX takes
 * no INT8: RMSNORM_ERROR_COMBINATION. A block_cols that BLOCK does not know is RMSNORM_ERROR_SIZE, a scale_stride that
 * is too small for its layout RMSNORM_ERROR_STRIDE. */
typedef struct rmsnorm_quant {
  int32_t granularity;     /* rmsnorm_quant_granularity; NONE = no quantised output, the rest is not looked at */
  int32_t block_cols;      /* BLOCK: 32, 64 or 128; divides nothing: a last block may be short. Others: 0 */
  int32_t scale_op;        /* rmsnorm_scale_op */
  int32_t scale_layout;    /* rmsnorm_scale_layout; BLOCK and MX */
  int32_t e8m0_rounding;   /* rmsnorm_e8m0_rounding; MX */
  float scale_max;         /* ROW and BLOCK: upper bound of the scale; 0 = none. Others: 0 */
  const float *scale;      /* TENSOR: [1], read; finite and > 0 (checked on the CPU only, the memory of a device can not
                              be looked at here). Others: NULL */
  void *scale_out;         /* ROW: f32 [rows * heads] packed. BLOCK: f32. MX: uint8_t e8m0 codes. TENSOR: NULL */
  int64_t scale_stride;    /* BLOCK and MX: see rmsnorm_scale_layout. 0 = packed */
  rmsnorm_output_tensor q; /* the quantised values: FP8_E4M3, FP8_E5M2 or INT8 (MX: fp8 only) */
} rmsnorm_quant;

typedef struct rmsnorm_forward_args {
  size_t struct_size; /* sizeof(rmsnorm_forward_args), set by the initialiser */
  int64_t rows;       /* >= 0. Tokens */
  int64_t heads;      /* >= 1. Every (row, head) pair is one row to normalise */
  int64_t cols;       /* >= 1. The length that is normalised */
  int64_t groups;     /* >= 1, divides cols: each cols/groups columns have their own statistic */
  double eps;         /* >= 0 and finite; rounded to float32 once. No default: NaN until set */
  int64_t divisor;    /* what the sum of squares is divided by; 0 = cols/groups */
  rmsnorm_numerics numerics;
  int32_t weight_dtype;               /* f32, f16, bf16 (f64 when x is f64) */
  int32_t weight_shape;               /* rmsnorm_weight_shape */
  const void *weight;                 /* NULL = all ones, weight_offset is not looked at */
  rmsnorm_input_tensor x;             /* required */
  rmsnorm_input_tensor residual;      /* or absent */
  rmsnorm_input_tensor gate;          /* present exactly when numerics.gate is not NONE */
  rmsnorm_output_tensor y;            /* f32, f16, bf16; may be absent when quant.q is there */
  rmsnorm_output_tensor residual_out; /* or absent; needs residual. Receives x + residual, rounded once */
  void *rstd;                         /* NULL, or receives [rows, heads, groups] packed: f32 (f64 when x is f64) */
  const float *sumsq;                 /* NULL, or given sums of squares [rows, heads, groups] packed, see section 6 */
  rmsnorm_quant quant;
  const rmsnorm_parallel *parallel; /* NULL = OpenMP */
  int32_t threads;                  /* see section 4 */
  int32_t device;                   /* rmsnorm_device: where every pointer above points to, see section 4 */
  const char *impl;                 /* NULL = the library chooses (or RMSNORM_IMPL does); a name forces that one */
  const rmsnorm_launch *launch;     /* NULL = all zero. Not all zero on the CPU: RMSNORM_ERROR_COMBINATION */
} rmsnorm_forward_args;

#define RMSNORM_EPS_UNSET_BITS 0x7ff8000000000000ull
/* rmsnorm_forward_args_init - the values RMSNORM_FORWARD_ARGS_INIT stands for: struct_size set, heads = groups = 1,
 * eps = NaN (so that forgetting it is an error), everything else 0. */
static inline rmsnorm_forward_args rmsnorm_forward_args_init(void);
#define RMSNORM_FORWARD_ARGS_INIT rmsnorm_forward_args_init()

/* rmsnorm_forward - normalise every row of x by its root mean square, scale it, and hand it to the epilogue.
 *
 *   h[r,c]     = x[r,c] + residual[r,c]              residual given; otherwise h = x
 *   residual_out[r,c] = h[r,c]                       rounded once; with round_sum STORED it is this h that goes on
 *   u[r,c]     = h[r,c] * act(gate[r,c])             gate BEFORE; otherwise u = h
 *   rstd[r,g]  = 1 / sqrt( sum_{c in g} u[r,c]^2 / divisor + eps )
 *   xhat[r,c]  = round_xhat( u[r,c] * round_rstd(rstd[r,g]) )
 *   v[r,c]     = round_normed( xhat[r,c] * (weight_offset + weight[c]) )
 *   v[r,c]     = v[r,c] * act(gate[r,c])             gate AFTER
 *   y[r,c]     = v[r,c]                              rounded once, to the type of y
 *   q[r,c]     = v[r,c] / scale                      rounded to nearest even, saturated; NaN stays NaN, in int8: 0
 *
 *   with r over all (row, head) pairs and act = silu or sigmoid in float32.
 *
 * Shapes      x, residual, gate, y, residual_out, quant.q: [rows, heads, cols] with free outer strides (section 3).
 * Types       x, residual, weight, gate, y, residual_out: f32, f16, bf16, each its own. f64: see rmsnorm_dtype.
 * Aliasing    y and residual_out may each be exactly the same tensor (data, dtype, strides) as x, residual or gate.
 *             No other overlap of an output with anything: RMSNORM_ERROR_OVERLAP. Slices of one buffer whose rows lie
 *             beside each other (q and k of a packed projection) are apart; they need equal strides in bytes.
 * Numbers     float32 accumulation in the order of docs/numerics.md, which depends on cols/groups alone. Rows whose
 *             squares overflow or vanish in float32 take a second, scaled pass and are right too. A NaN makes its own
 *             row (group) NaN; an infinity makes its own element NaN and the rest of its row 0. eps == 0: a zero row
 *             gives zeros. docs/numerics.md has the whole table and the bounds.
 * Scales      ROW, BLOCK: scale = min(max(amax / largest, 2^-126), scale_max), amax the largest finite-clamped |v|, NaN
 *             skipped. A zero row so has the scale 2^-126 and zeros.
 * Execution   On the CPU the call returns when the work is done, and stream must be NULL (RMSNORM_ERROR_COMBINATION).
 *             On a device the call queues its work on stream and returns; section 4 says what that promises.
 *             rows == 0 is RMSNORM_OK, touches no tensor and asks for no implementation (impl, RMSNORM_IMPL and a
 *             device without one go unnoticed); sizes, types of x and values are checked. Nothing is allocated.
 * Threads     safe from many threads if their outputs do not overlap.
 * Returns     RMSNORM_OK, or a status of section 1 with nothing written (RMSNORM_ERROR_DEVICE: see there). What goes
 *             wrong on a device after the call has returned is reported by the device's own functions.
 * Moves       rows * heads * cols * (bytes of x + bytes of y), plus residual and residual_out where present.
 * Source      B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019; roundings: docs/numerics.md.
 */
RMSNORM_API rmsnorm_status rmsnorm_forward(const rmsnorm_forward_args *args, void *stream);

/* ------------------------------------------------------------------------------------------------------------------
 * 6. Split statistics, for rows whose columns are spread over several ranks. Each rank calls rmsnorm_stats on its own
 *    columns, the caller adds sumsq over the ranks (in a fixed order, if every rank is to have the same bits), and then
 *    calls rmsnorm_forward or rmsnorm_backward with `sumsq` and with `divisor` = the total width.
 *    The sums are plain float32: the second, scaled pass for rows whose squares overflow or vanish (their "rescue") is
 *    not made here. */
typedef struct rmsnorm_stats_args {
  size_t struct_size;
  int64_t rows, heads, cols, groups; /* as in forward */
  int32_t round_sum;                 /* as numerics.round_sum; STORED rounds to the type of sum_dtype */
  int32_t sum_dtype;                 /* STORED: the type residual_out will have in forward; NONE = promoted */
  int32_t gate_kind;                 /* rmsnorm_gate of a gate BEFORE the norm. One AFTER it does not matter: NONE */
  int32_t reserved;
  rmsnorm_input_tensor x;        /* required */
  rmsnorm_input_tensor residual; /* or absent */
  rmsnorm_input_tensor gate;     /* present exactly when gate_kind is not NONE */
  float *sumsq;                  /* required: receives [rows, heads, groups] packed; overlaps no input */
  const rmsnorm_parallel *parallel;
  int32_t threads;
  int32_t device;
  const char *impl;
  const rmsnorm_launch *launch;
} rmsnorm_stats_args;

static inline rmsnorm_stats_args rmsnorm_stats_args_init(void);
#define RMSNORM_STATS_ARGS_INIT rmsnorm_stats_args_init()

/* rmsnorm_stats - the sum of squares of every row (every group of a row).
 *
 *   sumsq[r,g] = sum_{c in g} u[r,c]^2      u as in rmsnorm_forward, the order of summation the same
 *
 * With one rank, forward given these sums returns the bits of forward without them (rows that need no rescue).
 * x may not be f64 (RMSNORM_ERROR_COMBINATION). Aliasing: none. Errors, threads, execution: as rmsnorm_forward. */
RMSNORM_API rmsnorm_status rmsnorm_stats(const rmsnorm_stats_args *args, void *stream);

/* ------------------------------------------------------------------------------------------------------------------
 * 7. Backward. */
typedef struct rmsnorm_backward_args {
  size_t struct_size;
  int64_t rows, heads, cols, groups; /* as in forward */
  double eps;
  int64_t divisor;
  rmsnorm_numerics numerics; /* the forward's; weight_offset, round_sum and the gate matter, see below */
  int32_t weight_dtype;
  int32_t weight_shape;
  const void *weight;
  rmsnorm_input_tensor x;             /* x, or the saved sum residual_out (then residual absent) */
  rmsnorm_input_tensor residual;      /* to recompute the sum instead of saving it */
  rmsnorm_input_tensor gate;          /* present exactly when numerics.gate is not NONE */
  rmsnorm_input_tensor dy;            /* required: gradient of y */
  rmsnorm_input_tensor dresidual_out; /* or absent: gradient that arrives through the returned sum */
  const void *rstd;                   /* NULL = recomputed, to the same bits; f32 (f64 when x is f64) as returned */
  const float *sumsq;                 /* NULL, or given sums, as in forward; a usable rstd goes first, see below */
  const float *dot;                   /* NULL, or given row dots [rows, heads, groups] packed, summed over ranks */
  int32_t sum_dtype;                  /* round_sum STORED with residual: the type residual_out had; NONE = promoted */
  int32_t dweight_dtype;              /* f32, f16, bf16 (f64 when x is f64) */
  rmsnorm_output_tensor dx;           /* every output may be absent, but not all of them */
  rmsnorm_output_tensor dresidual;    /* the same values as dx, in its own type */
  rmsnorm_output_tensor dgate;
  void *dweight;   /* shape of weight (weight_shape), packed; needs weight */
  float *dot_out;  /* NULL, or receives the row dots [rows, heads, groups] packed */
  void *workspace; /* rmsnorm_backward_workspace_bytes bytes, 64-byte aligned; NULL when 0 */
  size_t workspace_bytes;
  const rmsnorm_parallel *parallel;
  int32_t threads;
  int32_t device;
  const char *impl;
  const rmsnorm_launch *launch;
} rmsnorm_backward_args;

static inline rmsnorm_backward_args rmsnorm_backward_args_init(void);
#define RMSNORM_BACKWARD_ARGS_INIT rmsnorm_backward_args_init()

/* rmsnorm_backward - the gradients of rmsnorm_forward.
 *
 *   With u = h (or h * act(gate) for a gate BEFORE), xhat = u * rstd, w = weight_offset + weight,
 *   and g = dy (or dy * act(gate) for a gate AFTER):
 *
 *   dot[r]       = sum_c (g[r,c] * w[c]) * xhat[r,c]         (the row dot)
 *   du[r,c]      = rstd[r] * ( g[r,c] * w[c] - xhat[r,c] * dot[r] / divisor )
 *   dx, dresidual = du + dresidual_out                       (gate BEFORE: du * act(gate) + dresidual_out)
 *   dweight[c]   = sum_r g[r,c] * xhat[r,c]
 *   dgate[r,c]   = dy * xhat * w * act'(gate)                (gate AFTER)
 *                = du * h * act'(gate)                       (gate BEFORE)
 *
 * This is the exact derivative of the formula, computed in float32, each output rounded once: the rounding points of
 * the forward (round_rstd, round_xhat, round_normed) are passed through as if they were not there; round_sum is
 * honoured, because it decides which h the forward saw. With round_sum NONE and a narrow residual_out pass x and
 * residual, not the saved sum, or the gradient is that of a slightly different h.
 * Sharded rows need dot summed over the ranks too: call once with dot_out alone, add over ranks, call again with dot.
 *
 * The statistic of a row comes from rstd where that is given and in the range of ordinary rows (docs/numerics.md,
 * section 4) and round_rstd is NONE; otherwise from sumsq where that is given; otherwise from x.
 *
 * Any subset of the outputs, but not none (RMSNORM_ERROR_NULL); each has the bits it has when all are asked for. Absent
 * outputs are never touched.
 * rows == 0: RMSNORM_OK, no tensor and no implementation is looked at, and dweight (when asked for) is set to zeros; on
 * a device those are queued like all work, which needs its driver (RMSNORM_ERROR_UNSUPPORTED, RMSNORM_ERROR_DEVICE).
 * dweight's bits depend on its length and on the number of rows that contribute to it only (those of one head when
 * each head has its own weight, else those of all): no atomics, fixed chunks.
 * dweight without weight: RMSNORM_ERROR_COMBINATION. dgate without gate likewise.
 *
 * Aliasing    dx, dresidual and dgate may each be exactly the same tensor as x, residual, dy, dresidual_out or gate.
 *             Everything else, dweight, dot_out and the workspace included, overlaps nothing.
 * Zero rows with eps == 0: rstd counts as 0, so dx = dresidual_out, dweight gets 0.
 * Not finite  A NaN in a row of x makes that row's dx NaN, and so does an infinity (its x-hat is inf * 0, and dot takes
 *             it to the whole row). dweight is NaN wherever a contributing row's x-hat or g is.
 * Moves       rows * heads * cols * (bytes of dy + x + dx), plus whatever else is present.
 * Source      differentiating the formula; there is no mean term (that is LayerNorm's). */
RMSNORM_API rmsnorm_status rmsnorm_backward(const rmsnorm_backward_args *args, void *stream);

/* rmsnorm_backward_workspace_bytes - how much workspace rmsnorm_backward wants for these arguments: 0 without dweight.
 * Pointers are not followed and need not be set, except that those of the wanted outputs must not be NULL. Types and
 * strides have to be right: an optional input (weight, residual, dresidual_out) whose pointer is NULL counts as present
 * when its type is set, and as absent when that is NONE.
 * The amount depends on the sizes, the wanted outputs, the implementation and the number of threads, which with threads
 * == 0 is OpenMP's at that moment: ask where the call will be made. On a device it depends on the sizes and the wanted
 * outputs alone, and no context needs to be current. Writes *bytes and returns RMSNORM_OK, or the status
 * the call itself would return. */
RMSNORM_API rmsnorm_status rmsnorm_backward_workspace_bytes(const rmsnorm_backward_args *args, size_t *bytes);

/* ------------------------------------------------------------------------------------------------------------------
 * 8. Presets: the numerics of the model families, by name ("llama", "gemma", "torch", "t5", ...).
 *    eps is never part of one: it belongs to the checkpoint. */

/* rmsnorm_preset - fill *numerics with the preset of that name; RMSNORM_ERROR_ENUM when there is none. The type of y is
 * not part of it: docs/numerics.md, section 7, says which type each family returns. */
RMSNORM_API rmsnorm_status rmsnorm_preset(const char *name, rmsnorm_numerics *numerics);
/* rmsnorm_preset_name - the name of preset i, NULL past the last. rmsnorm_preset_families - who uses it, one line. */
RMSNORM_API const char *rmsnorm_preset_name(int i);
RMSNORM_API const char *rmsnorm_preset_families(int i);

/* ------------------------------------------------------------------------------------------------------------------
 * 9. Explanations. Implementations stand in one ordered table, those of devices before those of the CPU, fastest first,
 *    "portable" last; the first one of the tensors' device that accepts the problem runs. args->impl, or the
 * environment variable RMSNORM_IMPL (read once, at the first call), forces one: if that does not fit, or serves another
 * device, the call is refused, never rerouted. */
typedef enum rmsnorm_op { RMSNORM_OP_FORWARD = 0, RMSNORM_OP_STATS = 1, RMSNORM_OP_BACKWARD = 2 } rmsnorm_op;

/* rmsnorm_impl_name - the name of implementation i, NULL past the last.
 * rmsnorm_impl_why_not - NULL when this machine can run implementation i, otherwise why it can not (static text; also
 * for an i past the last). Of an implementation for a device it looks for the driver.
 * rmsnorm_impl_device - the rmsnorm_device whose tensors implementation i takes, -1 past the last. */
RMSNORM_API const char *rmsnorm_impl_name(int i);
RMSNORM_API const char *rmsnorm_impl_why_not(int i);
RMSNORM_API int rmsnorm_impl_device(int i);

/* rmsnorm_impl_for - the name of the implementation that would run these arguments (a pointer to the struct of op).
 * Here and in rmsnorm_explain no context needs to be current; without one on a device, the call itself would be
 * refused. */
RMSNORM_API rmsnorm_status rmsnorm_impl_for(int op, const void *args, const char **name);

/* rmsnorm_explain - write, one line an implementation, which would run and why each other would not, into text[bytes]
 * (always 0-terminated; RMSNORM_ERROR_BUFFER when it did not fit, with as much as did). When none takes the problem,
 * the lines say why and the status is that of the call. Invalid arguments: their status, and the reason as the text. */
RMSNORM_API rmsnorm_status rmsnorm_explain(int op, const void *args, char *text, size_t bytes);

/* rmsnorm_cpu_features - the instruction sets found at run time that the library knows how to use, for instance
 * "avx2 fma f16c"; "" when there are none. Static text. */
RMSNORM_API const char *rmsnorm_cpu_features(void);

/* ------------------------------------------------------------------------------------------------------------------
 * Initialisers. */
static inline double rmsnorm_eps_unset(void) {
  union {
    uint64_t bits;
    double value;
  } u;
  u.bits = RMSNORM_EPS_UNSET_BITS;
  return u.value;
}
static inline rmsnorm_forward_args rmsnorm_forward_args_init(void) {
  rmsnorm_forward_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = sizeof a, a.heads = 1, a.groups = 1, a.eps = rmsnorm_eps_unset();
  return a;
}
static inline rmsnorm_stats_args rmsnorm_stats_args_init(void) {
  rmsnorm_stats_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = sizeof a, a.heads = 1, a.groups = 1;
  return a;
}
static inline rmsnorm_backward_args rmsnorm_backward_args_init(void) {
  rmsnorm_backward_args a;
  memset(&a, 0, sizeof a);
  a.struct_size = sizeof a, a.heads = 1, a.groups = 1, a.eps = rmsnorm_eps_unset();
  return a;
}

#ifdef __cplusplus
}
#endif
#endif /* RMSNORM_H */
