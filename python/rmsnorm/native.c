/* native.c - the extension module rmsnorm._native: Python numbers into the argument structs, and the call.
 *
 * It knows no framework. A tensor arrives as None or as a tuple (address, dtype, row stride, head stride), the numerics
 * as the bytes of their struct, and whoever calls keeps the memory alive. Written by hand on the stable ABI, because a
 * call through ctypes costs more than many a norm of a decoding step; one binary serves every Python from 3.10 on.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <rmsnorm.h>

/* ---------------------------------------------------------------------------------------------------------------------
 * Errors: the library's own sentence, in the exception that Python has for the kind. */
static PyObject *raise_status(rmsnorm_status status) {
  PyObject *kind = PyExc_ValueError;
  if (status == RMSNORM_ERROR_UNSUPPORTED) kind = PyExc_NotImplementedError;
  if (status == RMSNORM_ERROR_DEVICE) kind = PyExc_RuntimeError;
  const char *sentence = rmsnorm_last_error();
  PyErr_SetString(kind, *sentence ? sentence : rmsnorm_status_string(status));
  return NULL;
}

static PyObject *done(rmsnorm_status status) {
  if (status != RMSNORM_OK) return raise_status(status);
  Py_RETURN_NONE;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Arguments. A failed conversion leaves Python's error indicator set, which is asked once, at the end. */
static void *address_of(PyObject *object) {
  return object == Py_None ? NULL : PyLong_AsVoidPtr(object);
}

static int64_t item(PyObject *tuple, Py_ssize_t i) {
  PyObject *value = PyTuple_GetItem(tuple, i); /* borrowed */
  return value == NULL ? -1 : PyLong_AsLongLong(value);
}

static void *item_address(PyObject *tuple, Py_ssize_t i) {
  PyObject *value = PyTuple_GetItem(tuple, i);
  return value == NULL ? NULL : address_of(value);
}

/* The address of a tensor that is given. For the library NULL is a tensor that is not there, and a weight or a residual
 * would be left out without a word; a framework has NULL where the memory was taken away (sharded, freed, lazy). */
static void *memory_of(const char *name, PyObject *tuple, int64_t rows) {
  void *address = item_address(tuple, 0);
  if (address == NULL && rows > 0 && PyErr_Occurred() == NULL)
    PyErr_Format(PyExc_ValueError, "%s: is given and has no memory", name);
  return address;
}

static void read_output(const char *name, PyObject *object, int64_t rows, rmsnorm_output_tensor *tensor) {
  if (object == Py_None) return;
  *tensor = rmsnorm_output_heads(memory_of(name, object, rows), (int)item(object, 1), item(object, 2), item(object, 3));
}

static void read_input(const char *name, PyObject *object, int64_t rows, rmsnorm_input_tensor *tensor) {
  if (object == Py_None) return;
  *tensor = rmsnorm_input_heads(memory_of(name, object, rows), (int)item(object, 1), item(object, 2), item(object, 3));
}

static void read_numerics(PyObject *object, rmsnorm_numerics *numerics) {
  char *bytes = NULL;
  Py_ssize_t count = 0;
  if (PyBytes_AsStringAndSize(object, &bytes, &count) != 0) return;
  if (count != (Py_ssize_t)sizeof *numerics)
    PyErr_SetString(PyExc_ValueError, "numerics: not the bytes of rmsnorm_numerics");
  else
    memcpy(numerics, bytes, sizeof *numerics);
}

/* The name of an implementation, or None. The bytes object is the caller's and outlives the call. */
static const char *read_impl(PyObject *object) {
  char *name = NULL;
  if (object != Py_None) PyBytes_AsStringAndSize(object, &name, NULL); /* which refuses a zero inside of the name */
  return name;
}

static int enough(const char *name, Py_ssize_t got, Py_ssize_t want) {
  if (got == want) return 1;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, want, got);
  return 0;
}

/* What every call has, in this order: the sizes, then who runs it. */
enum { ROWS, HEADS, COLS, GROUPS, EPS, DIVISOR, NUMERICS, DEVICE, STREAM, THREADS, IMPL, COMMON };

#define READ_COMMON(args, a)                                                                                           \
  do {                                                                                                                 \
    (args)->rows = PyLong_AsLongLong((a)[ROWS]);                                                                       \
    (args)->heads = PyLong_AsLongLong((a)[HEADS]);                                                                     \
    (args)->cols = PyLong_AsLongLong((a)[COLS]);                                                                       \
    (args)->groups = PyLong_AsLongLong((a)[GROUPS]);                                                                   \
    (args)->eps = PyFloat_AsDouble((a)[EPS]);                                                                          \
    (args)->divisor = PyLong_AsLongLong((a)[DIVISOR]);                                                                 \
    read_numerics((a)[NUMERICS], &(args)->numerics);                                                                   \
    (args)->device = (int32_t)PyLong_AsLong((a)[DEVICE]);                                                              \
    (args)->threads = (int32_t)PyLong_AsLong((a)[THREADS]);                                                            \
    (args)->impl = read_impl((a)[IMPL]);                                                                               \
  } while (0)

#define READ_WEIGHT(args, object)                                                                                      \
  do {                                                                                                                 \
    if ((object) != Py_None) {                                                                                         \
      (args)->weight = memory_of("weight", (object), (args)->rows);                                                    \
      (args)->weight_dtype = (int32_t)item((object), 1);                                                               \
      (args)->weight_shape = (int32_t)item((object), 2);                                                               \
    }                                                                                                                  \
  } while (0)

/* ---------------------------------------------------------------------------------------------------------------------
 * Forward. */
enum { F_X = COMMON, F_RESIDUAL, F_GATE, F_WEIGHT, F_Y, F_RESIDUAL_OUT, F_RSTD, F_QUANT, F_ARGUMENTS };

/* (granularity, block_cols, scale_op, scale_layout, e8m0_rounding, scale_max, scale, scale_out, scale_stride, q) */
static void read_quant(PyObject *object, int64_t rows, rmsnorm_quant *quant) {
  if (object == Py_None) return;
  quant->granularity = (int32_t)item(object, 0);
  quant->block_cols = (int32_t)item(object, 1);
  quant->scale_op = (int32_t)item(object, 2);
  quant->scale_layout = (int32_t)item(object, 3);
  quant->e8m0_rounding = (int32_t)item(object, 4);
  PyObject *scale_max = PyTuple_GetItem(object, 5), *q = PyTuple_GetItem(object, 9);
  if (scale_max == NULL || q == NULL) return;
  quant->scale_max = (float)PyFloat_AsDouble(scale_max);
  quant->scale = (const float *)item_address(object, 6);
  quant->scale_out = item_address(object, 7);
  quant->scale_stride = item(object, 8);
  read_output("q", q, rows, &quant->q);
}

static int read_forward(PyObject *const *a, Py_ssize_t count, rmsnorm_forward_args *args, void **stream) {
  *args = RMSNORM_FORWARD_ARGS_INIT;
  if (!enough("forward", count, F_ARGUMENTS)) return 0;
  READ_COMMON(args, a);
  *stream = address_of(a[STREAM]);
  read_input("x", a[F_X], args->rows, &args->x);
  read_input("residual", a[F_RESIDUAL], args->rows, &args->residual);
  read_input("gate", a[F_GATE], args->rows, &args->gate);
  READ_WEIGHT(args, a[F_WEIGHT]);
  read_output("out", a[F_Y], args->rows, &args->y);
  read_output("residual_out", a[F_RESIDUAL_OUT], args->rows, &args->residual_out);
  args->rstd = address_of(a[F_RSTD]);
  read_quant(a[F_QUANT], args->rows, &args->quant);
  return PyErr_Occurred() == NULL;
}

static PyObject *forward(PyObject *module, PyObject *const *a, Py_ssize_t count) {
  (void)module;
  rmsnorm_forward_args args;
  void *stream = NULL;
  if (!read_forward(a, count, &args, &stream)) return NULL;
  rmsnorm_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = rmsnorm_forward(&args, stream);
  Py_END_ALLOW_THREADS;
  return done(status);
}

/* Which implementation would run these arguments of forward, and why each other would not. */
static PyObject *explain_forward(PyObject *module, PyObject *const *a, Py_ssize_t count) {
  (void)module;
  rmsnorm_forward_args args;
  void *stream = NULL;
  if (!read_forward(a, count, &args, &stream)) return NULL;
  char text[8192];
  rmsnorm_explain(RMSNORM_OP_FORWARD, &args, text, sizeof text);
  return PyUnicode_FromString(text);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Backward. `allocate` is asked for the workspace: allocate(bytes) returns (address, owner), and owner is held until
 * the call returns, so that the memory is the framework's and known to its allocator. */
enum {
  B_X = COMMON,
  B_RESIDUAL,
  B_GATE,
  B_DY,
  B_DRESIDUAL_OUT,
  B_WEIGHT,
  B_RSTD,
  B_SUM_DTYPE,
  B_DX,
  B_DRESIDUAL,
  B_DGATE,
  B_DWEIGHT,
  B_DWEIGHT_DTYPE,
  B_ALLOCATE,
  B_ARGUMENTS
};

static PyObject *backward(PyObject *module, PyObject *const *a, Py_ssize_t count) {
  (void)module;
  rmsnorm_backward_args args = RMSNORM_BACKWARD_ARGS_INIT;
  if (!enough("backward", count, B_ARGUMENTS)) return NULL;
  READ_COMMON(&args, a);
  void *stream = address_of(a[STREAM]);
  read_input("x", a[B_X], args.rows, &args.x);
  read_input("residual", a[B_RESIDUAL], args.rows, &args.residual);
  read_input("gate", a[B_GATE], args.rows, &args.gate);
  read_input("dy", a[B_DY], args.rows, &args.dy);
  read_input("dresidual_out", a[B_DRESIDUAL_OUT], args.rows, &args.dresidual_out);
  READ_WEIGHT(&args, a[B_WEIGHT]);
  args.rstd = address_of(a[B_RSTD]);
  args.sum_dtype = (int32_t)PyLong_AsLong(a[B_SUM_DTYPE]);
  read_output("dx", a[B_DX], args.rows, &args.dx);
  read_output("dresidual", a[B_DRESIDUAL], args.rows, &args.dresidual);
  read_output("dgate", a[B_DGATE], args.rows, &args.dgate);
  args.dweight = address_of(a[B_DWEIGHT]);
  args.dweight_dtype = (int32_t)PyLong_AsLong(a[B_DWEIGHT_DTYPE]);
  if (PyErr_Occurred() != NULL) return NULL;

  size_t bytes = 0;
  rmsnorm_status status = rmsnorm_backward_workspace_bytes(&args, &bytes);
  if (status != RMSNORM_OK) return raise_status(status);
  PyObject *workspace = NULL;
  if (bytes > 0) {
    workspace = PyObject_CallFunction(a[B_ALLOCATE], "n", (Py_ssize_t)bytes);
    if (workspace == NULL) return NULL;
    args.workspace = item_address(workspace, 0);
    args.workspace_bytes = bytes;
    if (PyErr_Occurred() != NULL) {
      Py_DECREF(workspace);
      return NULL;
    }
  }
  Py_BEGIN_ALLOW_THREADS;
  status = rmsnorm_backward(&args, stream);
  Py_END_ALLOW_THREADS;
  Py_XDECREF(workspace);
  return done(status);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Facts about the library. */
static PyObject *preload(PyObject *module, PyObject *device) {
  (void)module;
  const int32_t number = (int32_t)PyLong_AsLong(device);
  if (PyErr_Occurred() != NULL) return NULL;
  rmsnorm_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = rmsnorm_preload(number);
  Py_END_ALLOW_THREADS;
  return done(status);
}

/* The bytes of the numerics of a preset. */
static PyObject *preset(PyObject *module, PyObject *name) {
  (void)module;
  PyObject *text = PyUnicode_AsUTF8String(name);
  if (text == NULL) return NULL;
  rmsnorm_numerics numerics;
  char *letters = NULL;
  if (PyBytes_AsStringAndSize(text, &letters, NULL) != 0) {
    Py_DECREF(text);
    return NULL;
  }
  const rmsnorm_status status = rmsnorm_preset(letters, &numerics);
  Py_DECREF(text);
  if (status != RMSNORM_OK) return raise_status(status);
  return PyBytes_FromStringAndSize((const char *)&numerics, sizeof numerics);
}

/* [(name, who uses it)] */
static PyObject *presets(PyObject *module, PyObject *nothing) {
  (void)module, (void)nothing;
  PyObject *list = PyList_New(0);
  for (int i = 0; list != NULL && rmsnorm_preset_name(i) != NULL; i++) {
    PyObject *row = Py_BuildValue("(ss)", rmsnorm_preset_name(i), rmsnorm_preset_families(i));
    if (row == NULL || PyList_Append(list, row) != 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

/* [(name, device, why this machine can not run it, or None)] */
static PyObject *impls(PyObject *module, PyObject *nothing) {
  (void)module, (void)nothing;
  PyObject *list = PyList_New(0);
  for (int i = 0; list != NULL && rmsnorm_impl_name(i) != NULL; i++) {
    PyObject *row = Py_BuildValue("(siz)", rmsnorm_impl_name(i), rmsnorm_impl_device(i), rmsnorm_impl_why_not(i));
    if (row == NULL || PyList_Append(list, row) != 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

static PyObject *version(PyObject *module, PyObject *nothing) {
  (void)module, (void)nothing;
  return PyUnicode_FromString(rmsnorm_version_string());
}

/* ---------------------------------------------------------------------------------------------------------------------
 * DLPack: what a capsule says of its tensor. The layout is that of the published header, versions 0 and 1; the capsule
 * is only looked at and stays its owner's. */
typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides; /* strides NULL: packed */
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_versioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_versioned *);
  uint64_t flags; /* bit 0: read only */
  dl_tensor tensor;
} dl_versioned;

static PyObject *numbers(const int64_t *values, int32_t count) {
  PyObject *tuple = PyTuple_New(count);
  for (int32_t i = 0; tuple != NULL && i < count; i++) {
    PyObject *value = PyLong_FromLongLong(values[i]);
    if (value == NULL || PyTuple_SetItem(tuple, i, value) != 0) Py_CLEAR(tuple);
  }
  return tuple;
}

/* (address, device type, device id, type code, bits, lanes, shape, strides or None, read only) */
static PyObject *dlpack(PyObject *module, PyObject *capsule) {
  (void)module;
  const dl_tensor *tensor = NULL;
  int read_only = 0;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const dl_versioned *managed = (const dl_versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->major != 1) {
      PyErr_Format(PyExc_ValueError, "DLPack version %u is not known here, 1 is", (unsigned)managed->major);
      return NULL;
    }
    tensor = &managed->tensor;
    read_only = (managed->flags & 1) != 0;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    tensor = (const dl_tensor *)PyCapsule_GetPointer(capsule, "dltensor");
  } else {
    PyErr_SetString(PyExc_TypeError, "not a DLPack capsule, or one that was used already");
    return NULL;
  }
  PyObject *shape = numbers(tensor->shape, tensor->rank);
  PyObject *strides = NULL;
  if (tensor->strides != NULL)
    strides = numbers(tensor->strides, tensor->rank);
  else
    strides = Py_BuildValue(""); /* None */
  PyObject *address = PyLong_FromVoidPtr(tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset);
  if (shape == NULL || strides == NULL || address == NULL) {
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(address);
    return NULL;
  }
  return Py_BuildValue("(NiiiiiNNO)", address, (int)tensor->device_type, (int)tensor->device_id, (int)tensor->code,
                       (int)tensor->bits, (int)tensor->lanes, shape, strides, read_only ? Py_True : Py_False);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * A short way for the everyday case: a framework that offers DLPack's exchange table (torch from 2.10 on) tells of its
 * tensors without a Python call for each fact. Packed tensors of one shape on one device, a weight [cols] or none;
 * everything else, and everything that is wrong, is left to the long way, which has the sentences. */
typedef struct exchange_table {
  uint32_t major, minor;
  const void *older;
  void *allocate, *managed_from, *managed_to;
  int (*look)(void *object, dl_tensor *tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} exchange_table;

static const exchange_table *exchange; /* of the one framework that has registered; NULL: none */

/* Register the exchange table in this capsule; false when it is of a version that is not known here. */
static PyObject *use_exchange(PyObject *module, PyObject *capsule) {
  (void)module;
  const exchange_table *table = (const exchange_table *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (table == NULL) return NULL;
  if (table->major != 1 || table->look == NULL || table->current_stream == NULL) Py_RETURN_FALSE;
  exchange = table;
  Py_RETURN_TRUE;
}

static int real_dtype(const dl_tensor *tensor) {
  if (tensor->lanes != 1) return RMSNORM_DTYPE_NONE;
  if (tensor->code == 4 && tensor->bits == 16) return RMSNORM_DTYPE_BF16;
  if (tensor->code != 2) return RMSNORM_DTYPE_NONE;
  switch (tensor->bits) {
  case 16:
    return RMSNORM_DTYPE_F16;
  case 32:
    return RMSNORM_DTYPE_F32;
  case 64:
    return RMSNORM_DTYPE_F64;
  default:
    return RMSNORM_DTYPE_NONE;
  }
}

static void *first_element(const dl_tensor *tensor) {
  return tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
}

/* Elements of a packed tensor, -1 when it is not packed. */
static int64_t packed_elements(const dl_tensor *tensor) {
  int64_t count = 1;
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    if (tensor->strides != NULL && tensor->shape[i] != 1 && tensor->strides[i] != count) return -1;
    count *= tensor->shape[i];
  }
  return count;
}

/* Look at an optional tensor that has to be packed, of x's device and of x's first `rank` sizes. */
static int look_beside(PyObject *object, const dl_tensor *x, int32_t rank, dl_tensor *tensor, int *dtype) {
  if (exchange->look(object, tensor) != 0) return 0;
  *dtype = real_dtype(tensor);
  if (*dtype == RMSNORM_DTYPE_NONE || first_element(tensor) == NULL || tensor->rank != rank ||
      tensor->device_type != x->device_type || tensor->device_id != x->device_id || packed_elements(tensor) < 0)
    return 0;
  for (int32_t i = 0; i < rank; i++)
    if (tensor->shape[i] != x->shape[i]) return 0;
  return 1;
}

/* short_forward(x, weight, residual, y, residual_out, rstd, eps, numerics, threads) -> whether it was done this way. */
static int read_short(PyObject *const *a, rmsnorm_forward_args *args, void **stream) {
  dl_tensor x, t;
  int dtype = RMSNORM_DTYPE_NONE;
  if (exchange == NULL || exchange->look(a[0], &x) != 0) return 0;
  const int x_dtype = real_dtype(&x);
  const int64_t elements = packed_elements(&x);
  if (x_dtype == RMSNORM_DTYPE_NONE || x.rank < 1 || elements <= 0 || first_element(&x) == NULL) return 0;
  const int64_t cols = x.shape[x.rank - 1];
  args->rows = elements / cols;
  args->cols = cols;
  args->x = rmsnorm_input(first_element(&x), x_dtype, cols);
  if (a[1] != Py_None) {
    if (exchange->look(a[1], &t) != 0) return 0;
    args->weight = first_element(&t);
    args->weight_dtype = real_dtype(&t);
    if (args->weight == NULL || args->weight_dtype == RMSNORM_DTYPE_NONE || t.rank != 1 || t.shape[0] != cols ||
        packed_elements(&t) < 0 || t.device_type != x.device_type || t.device_id != x.device_id)
      return 0;
  }
  if (a[2] != Py_None) {
    if (!look_beside(a[2], &x, x.rank, &t, &dtype)) return 0;
    args->residual = rmsnorm_input(first_element(&t), dtype, cols);
  }
  if (!look_beside(a[3], &x, x.rank, &t, &dtype)) return 0;
  args->y = rmsnorm_output(first_element(&t), dtype, cols);
  if (a[4] != Py_None) {
    if (!look_beside(a[4], &x, x.rank, &t, &dtype)) return 0;
    args->residual_out = rmsnorm_output(first_element(&t), dtype, cols);
  }
  if (a[5] != Py_None) {
    if (!look_beside(a[5], &x, x.rank - 1, &t, &dtype)) return 0;
    if (dtype != (x_dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32)) return 0;
    args->rstd = first_element(&t);
  }
  args->eps = PyFloat_AsDouble(a[6]);
  read_numerics(a[7], &args->numerics);
  args->threads = (int32_t)PyLong_AsLong(a[8]);
  if (PyErr_Occurred() != NULL || args->numerics.gate != RMSNORM_GATE_NONE) return 0;
  switch (x.device_type) {
  case 1: /* the CPU */
    return 1;
  case 2:
    args->device = RMSNORM_DEVICE_CUDA;
    break;
  case 10:
    args->device = RMSNORM_DEVICE_HIP;
    break;
  default:
    return 0;
  }
  return exchange->current_stream(x.device_type, x.device_id, stream) == 0;
}

static PyObject *short_forward(PyObject *module, PyObject *const *a, Py_ssize_t count) {
  (void)module;
  if (!enough("short_forward", count, 9)) return NULL;
  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  void *stream = NULL;
  if (!read_short(a, &args, &stream)) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  rmsnorm_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = rmsnorm_forward(&args, stream);
  Py_END_ALLOW_THREADS;
  if (status != RMSNORM_OK) return raise_status(status);
  Py_RETURN_TRUE;
}

/* ------------------------------------------------------------------------------------------------------------------ */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"forward", FAST(forward), METH_FASTCALL,
     "forward(common..., x, residual, gate, weight, y, residual_out, rstd, quant)"},
    {"explain_forward", FAST(explain_forward), METH_FASTCALL, "the arguments of forward: who would run them"},
    {"backward", FAST(backward), METH_FASTCALL, "backward(common..., tensors..., allocate)"},
    {"use_exchange", use_exchange, METH_O, "register a framework's DLPack exchange table"},
    {"short_forward", FAST(short_forward), METH_FASTCALL,
     "(x, weight, residual, y, residual_out, rstd, eps, numerics, threads) -> whether it was done"},
    {"preload", preload, METH_O, "preload(device): load all kernels in the current context"},
    {"preset", preset, METH_O, "preset(name): the bytes of its numerics"},
    {"presets", presets, METH_NOARGS, "[(name, who uses it)]"},
    {"impls", impls, METH_NOARGS, "[(name, device, why not here, or None)]"},
    {"version", version, METH_NOARGS, "the version of the library"},
    {"dlpack", dlpack, METH_O, "what a DLPack capsule says of its tensor"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The C library rmsnorm.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) {
  return PyModule_Create(&definition);
}
