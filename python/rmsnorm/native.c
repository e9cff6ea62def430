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

static void read_output(PyObject *object, rmsnorm_output_tensor *tensor) {
  if (object == Py_None) return;
  *tensor = rmsnorm_output_heads(item_address(object, 0), (int)item(object, 1), item(object, 2), item(object, 3));
}

static void read_input(PyObject *object, rmsnorm_input_tensor *tensor) {
  if (object == Py_None) return;
  *tensor = rmsnorm_input_heads(item_address(object, 0), (int)item(object, 1), item(object, 2), item(object, 3));
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
  return object == Py_None ? NULL : PyBytes_AsString(object);
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
      (args)->weight = item_address((object), 0);                                                                      \
      (args)->weight_dtype = (int32_t)item((object), 1);                                                               \
      (args)->weight_shape = (int32_t)item((object), 2);                                                               \
    }                                                                                                                  \
  } while (0)

/* ---------------------------------------------------------------------------------------------------------------------
 * Forward. */
enum { F_X = COMMON, F_RESIDUAL, F_GATE, F_WEIGHT, F_Y, F_RESIDUAL_OUT, F_RSTD, F_QUANT, F_ARGUMENTS };

/* (granularity, block_cols, scale_op, scale_layout, e8m0_rounding, scale_max, scale, scale_out, scale_stride, q) */
static void read_quant(PyObject *object, rmsnorm_quant *quant) {
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
  read_output(q, &quant->q);
}

static int read_forward(PyObject *const *a, Py_ssize_t count, rmsnorm_forward_args *args, void **stream) {
  *args = RMSNORM_FORWARD_ARGS_INIT;
  if (!enough("forward", count, F_ARGUMENTS)) return 0;
  READ_COMMON(args, a);
  *stream = address_of(a[STREAM]);
  read_input(a[F_X], &args->x);
  read_input(a[F_RESIDUAL], &args->residual);
  read_input(a[F_GATE], &args->gate);
  READ_WEIGHT(args, a[F_WEIGHT]);
  read_output(a[F_Y], &args->y);
  read_output(a[F_RESIDUAL_OUT], &args->residual_out);
  args->rstd = address_of(a[F_RSTD]);
  read_quant(a[F_QUANT], &args->quant);
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
  read_input(a[B_X], &args.x);
  read_input(a[B_RESIDUAL], &args.residual);
  read_input(a[B_GATE], &args.gate);
  read_input(a[B_DY], &args.dy);
  read_input(a[B_DRESIDUAL_OUT], &args.dresidual_out);
  READ_WEIGHT(&args, a[B_WEIGHT]);
  args.rstd = address_of(a[B_RSTD]);
  args.sum_dtype = (int32_t)PyLong_AsLong(a[B_SUM_DTYPE]);
  read_output(a[B_DX], &args.dx);
  read_output(a[B_DRESIDUAL], &args.dresidual);
  read_output(a[B_DGATE], &args.dgate);
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
  const rmsnorm_status status = rmsnorm_preset(PyBytes_AsString(text), &numerics);
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

/* ------------------------------------------------------------------------------------------------------------------ */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"forward", FAST(forward), METH_FASTCALL,
     "forward(common..., x, residual, gate, weight, y, residual_out, rstd, quant)"},
    {"explain_forward", FAST(explain_forward), METH_FASTCALL, "the arguments of forward: who would run them"},
    {"backward", FAST(backward), METH_FASTCALL, "backward(common..., tensors..., allocate)"},
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
