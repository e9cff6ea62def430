/* test_files.c - the file readers: valid files of every kind, hostile ones, every truncation, and random
 * damage. Files are made here, byte by byte, by code that shares nothing with the writers.
 *
 * Every file is put in front of a page that can not be read, so that a single byte too far is a crash even without a
 * sanitizer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------------------
 * A growing file. */

typedef struct bytes {
  unsigned char data[8192];
  size_t n;
} bytes;

static void put(bytes *b, const void *data, size_t n) {
  assert_true(b->n + n <= sizeof b->data);
  if (n > 0) memcpy(b->data + b->n, data, n);
  b->n += n;
}
static void put_text(bytes *b, const char *text) {
  put(b, text, strlen(text));
}
static void put_le(bytes *b, uint64_t value, int n) {
  for (int i = 0; i < n; i++) put(b, &(unsigned char){(unsigned char)(value >> (8 * i))}, 1);
}
static void put_count(bytes *b, int n) { /* n data bytes 0, 1, 2, ... */
  for (int i = 0; i < n; i++) put_le(b, (uint64_t)i, 1);
}

static bytes npy_text(int version, const char *header, int data_bytes) {
  bytes b = {.n = 0};
  put_text(&b, "\x93NUMPY");
  put_le(&b, (uint64_t)version, 1), put_le(&b, 0, 1);
  put_le(&b, strlen(header), version == 1 ? 2 : 4);
  put_text(&b, header);
  put_count(&b, data_bytes);
  return b;
}

static bytes npy(int version, const char *descr, const char *order, const char *shape, int data_bytes) {
  char header[256];
  snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape);
  return npy_text(version, header, data_bytes);
}

static bytes safetensors(const char *header, int data_bytes) {
  bytes b = {.n = 0};
  put_le(&b, strlen(header), 8);
  put_text(&b, header);
  put_count(&b, data_bytes);
  return b;
}

static void gguf_string(bytes *b, const char *text) {
  put_le(b, strlen(text), 8);
  put_text(b, text);
}

static void gguf_tensor(bytes *b, const char *name, int rank, const uint64_t *shape, uint32_t type, uint64_t offset) {
  gguf_string(b, name);
  put_le(b, (uint64_t)rank, 4);
  for (int i = 0; i < rank; i++) put_le(b, shape[i], 8);
  put_le(b, type, 4);
  put_le(b, offset, 8);
}

/* Metadata of every kind of value, a 1-D F32, a 2-D F16, a BF16 and a quantised tensor. */
static bytes gguf(int version, const char *architecture) {
  bytes b = {.n = 0};
  const float eps = 1e-5f;
  uint32_t eps_bits;
  memcpy(&eps_bits, &eps, 4);
  put_text(&b, "GGUF");
  put_le(&b, (uint64_t)version, 4), put_le(&b, 4, 8), put_le(&b, 6, 8);
  gguf_string(&b, "general.architecture"), put_le(&b, 8, 4), gguf_string(&b, architecture);
  gguf_string(&b, "some.flag"), put_le(&b, 7, 4), put_le(&b, 1, 1);
  gguf_string(&b, "some.words"), put_le(&b, 9, 4), put_le(&b, 8, 4), put_le(&b, 2, 8);
  gguf_string(&b, "one"), gguf_string(&b, "");
  gguf_string(&b, "some.numbers"), put_le(&b, 9, 4), put_le(&b, 5, 4), put_le(&b, 3, 8), put_count(&b, 12);
  gguf_string(&b, "x.attention.layer_norm_rms_epsilon"), put_le(&b, 6, 4), put_le(&b, eps_bits, 4);
  gguf_string(&b, "general.alignment"), put_le(&b, 4, 4), put_le(&b, 64, 4);
  gguf_tensor(&b, "norm.weight", 1, (uint64_t[]){3}, 0, 0);
  gguf_tensor(&b, "matrix", 2, (uint64_t[]){3, 2}, 1, 64);
  gguf_tensor(&b, "bf16", 1, (uint64_t[]){2}, 30, 128);
  gguf_tensor(&b, "quantised", 1, (uint64_t[]){32}, 3, 192);
  while (b.n % 64 != 0) put_le(&b, 0, 1);
  put_count(&b, 192 + 20);
  return b;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Reading one in front of a forbidden page. */

static struct {
  unsigned char *page;
  size_t room;
} guard;

static const unsigned char *guarded(const unsigned char *data, size_t n) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (guard.page == NULL) {
    guard.room = 4 * page;
    guard.page = mmap(NULL, guard.room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(guard.page != MAP_FAILED);
    assert_int_equal(mprotect(guard.page + guard.room, page, PROT_NONE), 0);
  }
  assert_true(n <= guard.room);
  unsigned char *at = guard.page + guard.room - n;
  if (n > 0) memcpy(at, data, n);
  return at;
}

static char message[4096]; /* of the last read */

static bool read_bytes(const unsigned char *data, size_t n, const char *name, int dtype, rn_tensor *t,
                       rn_model_facts *facts) {
  const unsigned char *file = guarded(data, n);
  rn_index index;
  memset(message, 0, sizeof message);
  FILE *err = fmemopen(message, sizeof message - 1, "w");
  memset(t, 0, sizeof *t);
  const bool good =
      rn_index_read(&index, "FILE", file, n, err) && rn_index_load(&index, "FILE", file, name, dtype, t, err);
  if (facts != NULL) *facts = index.facts;
  rn_index_free(&index);
  fclose(err);
  if (good != (message[0] == 0)) fail_msg("read %s, message '%s'", good ? "well" : "badly", message);
  return good;
}

static void expect_read(bytes b, const char *name, int dtype, int want_dtype, int rank, const int64_t *shape,
                        const void *data) {
  rn_tensor t;
  if (!read_bytes(b.data, b.n, name, dtype, &t, NULL)) fail_msg("%s", message);
  assert_int_equal(t.dtype, want_dtype);
  assert_int_equal(t.rank, rank);
  int64_t count = 1;
  for (int i = 0; i < rank; i++) assert_int_equal(t.shape[i], shape[i]), count *= shape[i];
  assert_int_equal(t.count, count);
  assert_int_equal((uintptr_t)t.data % 64, 0);
  assert_memory_equal(t.data, data, (size_t)count * (size_t)t.item_bytes);
  rn_tensor_free(&t);
}

static void expect_refused(bytes b, const char *name, const char *why) {
  rn_tensor t;
  if (read_bytes(b.data, b.n, name, RMSNORM_DTYPE_NONE, &t, NULL)) fail_msg("was read; expected: %s", why);
  if (strstr(message, why) == NULL) fail_msg("expected '%s' in: %s", why, message);
}

static const unsigned char counting[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                           16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                           32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                           48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* ------------------------------------------------------------------------------------------------------------------
 * Valid files. */

static void test_npy_types(void **state) {
  (void)state;
  static const struct {
    const char *descr;
    int dtype, found, size;
  } cases[] = {
      {"<f4", 0, RMSNORM_DTYPE_F32, 4},
      {"<f2", 0, RMSNORM_DTYPE_F16, 2},
      {"<f8", 0, RMSNORM_DTYPE_F64, 8},
      {"<f2", RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, 2}, /* the file knows better */

      {"|i1", 0, RMSNORM_DTYPE_INT8, 1},
      {"|V2", 0, RMSNORM_DTYPE_NONE, 2},
      {"|V2", RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_BF16, 2},
      {"<V2", RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F16, 2},
      {"|V1", RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E4M3, 1},
      {"<f1", RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_FP8_E5M2, 1},
      {"<u2", RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_BF16, 2},
      {"|u1", RMSNORM_DTYPE_E8M0, RMSNORM_DTYPE_E8M0, 1},
      {"|V2", RMSNORM_DTYPE_F32, RMSNORM_DTYPE_NONE, 2}, /* does not fit: stays opaque */
      {"bfloat16", 0, RMSNORM_DTYPE_BF16, 2},
      {"float8_e4m3fn", 0, RMSNORM_DTYPE_FP8_E4M3, 1},
      {"float8_e5m2", 0, RMSNORM_DTYPE_FP8_E5M2, 1},
      {"float32", 0, RMSNORM_DTYPE_F32, 4},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int version = 1; version <= 3; version++)
      expect_read(npy(version, cases[i].descr, "False", "(2, 3)", 6 * cases[i].size), NULL, cases[i].dtype,
                  cases[i].found, 2, (int64_t[]){2, 3}, counting);
}

static void test_npy_shapes(void **state) {
  (void)state;
  expect_read(npy(1, "<f4", "False", "()", 4), NULL, 0, RMSNORM_DTYPE_F32, 0, NULL, counting);
  expect_read(npy(1, "<f4", "False", "(3,)", 12), NULL, 0, RMSNORM_DTYPE_F32, 1, (int64_t[]){3}, counting);
  expect_read(npy(1, "<f4", "False", "(3L, 1L)", 12), NULL, 0, RMSNORM_DTYPE_F32, 2, (int64_t[]){3, 1}, counting);
  expect_read(npy(1, "<f4", "False", "(0, 5)", 0), NULL, 0, RMSNORM_DTYPE_F32, 2, (int64_t[]){0, 5}, counting);
  expect_read(npy(1, "|i1", "False", "(1, 1, 1, 2, 1, 1, 1, 3)", 6), NULL, 0, RMSNORM_DTYPE_INT8, 8,
              (int64_t[]){1, 1, 1, 2, 1, 1, 1, 3}, counting);
  /* keys in another order, double quotes, no spaces: a dictionary is a dictionary */
  expect_read(npy_text(1, "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f2\"}", 4), NULL, 0, RMSNORM_DTYPE_F16,
              1, (int64_t[]){2}, counting);
}

static void test_npy_order(void **state) {
  (void)state;
  /* Fortran: element (i, j, k) of [2, 3, 2] is the byte i + 2 j + 6 k. */
  expect_read(npy(1, "|i1", "True", "(2, 3, 2)", 12), NULL, 0, RMSNORM_DTYPE_INT8, 3, (int64_t[]){2, 3, 2},
              (unsigned char[]){0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11});
  expect_read(npy(1, ">f2", "False", "(2,)", 4), NULL, 0, RMSNORM_DTYPE_F16, 1, (int64_t[]){2},
              (unsigned char[]){1, 0, 3, 2});
  expect_read(npy(1, ">f8", "False", "(1,)", 8), NULL, 0, RMSNORM_DTYPE_F64, 1, (int64_t[]){1},
              (unsigned char[]){7, 6, 5, 4, 3, 2, 1, 0});
  expect_read(npy(1, ">f2", "True", "(2, 2)", 8), NULL, 0, RMSNORM_DTYPE_F16, 2, (int64_t[]){2, 2},
              (unsigned char[]){1, 0, 5, 4, 3, 2, 7, 6});
}

static void test_safetensors(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int dtype, found, size;
  } types[] = {{"F32", 0, RMSNORM_DTYPE_F32, 4},          {"F16", 0, RMSNORM_DTYPE_F16, 2},
               {"BF16", 0, RMSNORM_DTYPE_BF16, 2},        {"F64", 0, RMSNORM_DTYPE_F64, 8},
               {"F8_E4M3", 0, RMSNORM_DTYPE_FP8_E4M3, 1}, {"F8_E5M2", 0, RMSNORM_DTYPE_FP8_E5M2, 1},
               {"F8_E8M0", 0, RMSNORM_DTYPE_E8M0, 1},     {"I8", 0, RMSNORM_DTYPE_INT8, 1},
               {"U8", 0, RMSNORM_DTYPE_NONE, 1},          {"U8", RMSNORM_DTYPE_E8M0, RMSNORM_DTYPE_E8M0, 1}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char header[256];
    const int n = 3 * types[i].size;
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[1,3],\"data_offsets\":[0,%d]}}", types[i].name,
             n);
    expect_read(safetensors(header, n), "a", types[i].dtype, types[i].found, 2, (int64_t[]){1, 3}, counting);
    expect_read(safetensors(header, n), NULL, types[i].dtype, types[i].found, 2, (int64_t[]){1, 3}, counting);
  }
  /* Metadata of any depth that is allowed, escapes in a name, data that is not aligned, keys in another order. */
  const char *rich = "{ \"__metadata__\" : {\"a\":\"b\", \"n\":[1,-2.5e3,true,null]},\n"
                     "\"x\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                     "\"\\u00e9\\\"\\ud83d\\ude00\":{\"data_offsets\":[3,11],\"shape\":[2],\"dtype\":\"F32\"},"
                     "\"odd\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[11,13]}}  ";
  expect_read(safetensors(rich, 13), "\xc3\xa9\"\xf0\x9f\x98\x80", 0, RMSNORM_DTYPE_F32, 1, (int64_t[]){2},
              counting + 3);
  expect_refused(safetensors(rich, 13), "odd", "of type F4, which is not read here");
  expect_refused(safetensors(rich, 13), "y", "holds no tensor called y. There are:\n  x  I8 [3]\n");
  expect_refused(safetensors(rich, 13), NULL, "holds 3 tensors; say which");
  expect_refused(safetensors("{}", 0), "y", "it is empty");
}

static void test_gguf(void **state) {
  (void)state;
  assert_true(rn_gguf_offset_folded("gemma3") && rn_gguf_offset_folded("qwen3next"));
  assert_false(rn_gguf_offset_folded("llama") || rn_gguf_offset_folded("gemma3n") || rn_gguf_offset_folded("gemma4"));
  for (int version = 2; version <= 3; version++) {
    rn_tensor t;
    rn_model_facts facts;
    const bytes b = gguf(version, "gemma3");
    expect_read(b, "norm.weight", 0, RMSNORM_DTYPE_F32, 1, (int64_t[]){3}, counting);
    unsigned char later[12];
    for (int i = 0; i < 12; i++) later[i] = (unsigned char)(64 + i);
    expect_read(b, "matrix", 0, RMSNORM_DTYPE_F16, 2, (int64_t[]){2, 3}, later);
    for (int i = 0; i < 4; i++) later[i] = (unsigned char)(128 + i);
    expect_read(b, "bf16", 0, RMSNORM_DTYPE_BF16, 1, (int64_t[]){2}, later);
    expect_refused(b, "quantised", "of type Q4_1, which is not read here: expected F32, F16 or BF16");
    expect_refused(b, "none", "  quantised  Q4_1 [32]\n");
    assert_true(read_bytes(b.data, b.n, "bf16", 0, &t, &facts));
    assert_string_equal(facts.architecture, "gemma3");
    assert_true(facts.eps == (double)1e-5f);
    rn_tensor_free(&t);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * Hostile files. */

static void test_npy_hostile(void **state) {
  (void)state;
  expect_refused(npy(1, "<f4", "False", "(4,)", 12), NULL,
                 "truncated: its shape and type need 16 bytes of data, the file has 12");
  expect_refused(npy(1, "<f4", "False", "(4611686018427387904,)", 12), NULL, "larger than any memory");
  expect_refused(npy(1, "<f4", "False", "(4294967296, 4294967296)", 12), NULL, "larger than any memory");
  expect_refused(npy(1, "<f4", "False", "(0, 4611686018427387904, 9)", 12), NULL, "larger than any memory");
  expect_refused(npy(1, "<f4", "False", "(99999999999999999999,)", 12), NULL, "its shape is not a list");
  expect_refused(npy(1, "<f4", "False", "(-1,)", 12), NULL, "its shape is not a list");
  expect_refused(npy(1, "<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", 12), NULL,
                 "its shape is not a list of at most 8");
  expect_refused(npy(1, "<f4", "Maybe", "(3,)", 12), NULL, "neither True nor False");
  expect_refused(npy(1, "<i4", "False", "(3,)", 12), NULL, "the array is of type <i4, which is not read here");
  expect_refused(npy(1, "<c8", "False", "(3,)", 24), NULL, "the array is of type <c8");
  expect_refused(npy(1, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "False", "(3,)", 24), NULL, "not a short string");
  expect_refused(npy(4, "<f4", "False", "(3,)", 12), NULL, "version 4; expected 1, 2 or 3");
  expect_refused(npy(0, "<f4", "False", "(3,)", 12), NULL, "version 0");
  expect_refused(npy_text(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", 12), NULL,
                 "structured");
  expect_refused(npy_text(1, "{'descr': '<f4', 'shape': (3,)}", 12), NULL, "lacks descr, fortran_order or shape");
  expect_refused(npy_text(1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", 12), NULL,
                 "twice");
  expect_refused(npy_text(1, "{'x': 1}", 12), NULL, "does not belong there");
  expect_refused(npy_text(1, "(1, 2)", 12), NULL, "not a dictionary");
  bytes b = npy(1, "<f4", "False", "(3,)", 12);
  b.data[8] = 0xff, b.data[9] = 0xff;
  expect_refused(b, NULL, "truncated: its header needs 65545 bytes");
  b = npy(2, "<f4", "False", "(3,)", 12);
  memset(b.data + 8, 0xff, 4);
  expect_refused(b, NULL, "truncated: its header needs 4294967307 bytes");
}

static void test_safetensors_hostile(void **state) {
  (void)state;
  static const struct {
    const char *header, *why;
  } cases[] = {
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}", "beyond the end of the file"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,9223372036854775807]}}",
       "beyond the end of the file"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,18446744073709551615]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,0]}}", "ends before it begins"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[-4,8]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12,13]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", "do not fill its data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", "do not fill"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", "do not fill"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,3],\"data_offsets\":[0,12]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3.0],\"data_offsets\":[0,12]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[03],\"data_offsets\":[0,12]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3,],\"data_offsets\":[0,12]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":32,\"shape\":[3],\"data_offsets\":[0,12]}}", "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F3222222222222222222222222222\",\"shape\":[3],\"data_offsets\":[0,12]}}",
       "of a wrong form"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "one of them twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"strides\":[3],\"data_offsets\":[0,12]}}", "a key other than"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,12]}}", "lacks a proper"},
      {"{\"a\":[1]}", "is not described by an object"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},\"a\":{\"dtype\":\"I8\",\"shape\":[3],"
       "\"data_offsets\":[0,3]}}",
       "two tensors called a"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}", "broken JSON"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}}", "something behind the closing }"},
      {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
       "a backslash with something unknown"},
      {"{\"a\\ud800\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
       "a backslash with something unknown"},
      {"{\"__metadata__\":[[[[[[1]]]]]],\"a\":{}}", "nested too deeply"},
      {"{\"__metadata__\":", "broken JSON"},
      {"{\"a", "a string without its end"},
      {"{\"a\\", "a string without its end"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    expect_refused(safetensors(cases[i].header, 12), "a", cases[i].why);
  bytes b = safetensors("{}", 0);
  memset(b.data, 0xff, 8);
  expect_refused(b, "a", "its header claims 18446744073709551615 bytes");
  b = safetensors("{}", 0);
  b.data[0] = 3;
  expect_refused(b, "a", "more than the file has");
  /* a name that would move the cursor of a terminal is shown without its escape */
  b = safetensors("{\"\\u001b[2J\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
  expect_refused(b, "a", "  ?[2J  I8 [3]");
  assert_null(strchr(message, 27));
}

static void test_gguf_hostile(void **state) {
  (void)state;
  const bytes good = gguf(3, "llama");
  bytes b = good;
  b.data[4] = 1;
  expect_refused(b, "bf16", "version 1; expected 2 or 3");
  b = good;
  b.data[4] = 0, b.data[7] = 3;
  expect_refused(b, "bf16", "big-endian");
  for (int at = 8; at < 24; at += 8) { /* absurd counts of tensors and of pairs */
    b = good;
    memset(b.data + at, 0xff, 8);
    expect_refused(b, "bf16", "can not be read");
  }
  b = good;
  memset(b.data + 24, 0xff, 8); /* the length of the first key */
  expect_refused(b, "bf16", "it is truncated, or a count in its header is wrong");

  bytes head = {.n = 0};
  put_text(&head, "GGUF");
  put_le(&head, 3, 4), put_le(&head, 1, 8), put_le(&head, 0, 8);
  const struct {
    int rank;
    uint64_t shape[5];
    uint32_t type;
    uint64_t offset;
    const char *why;
  } cases[] = {
      {5, {1, 1, 1, 1, 1}, 0, 0, "more than 4 dimensions"},
      {1, {UINT64_MAX}, 0, 0, "a dimension of a tensor is too large"},
      {2, {UINT64_C(1) << 40, UINT64_C(1) << 40}, 0, 0, "larger than any memory"},
      {1, {9}, 0, 0, "beyond the end of the file"},
      {1, {2}, 0, UINT64_MAX - 31, "beyond the end of the file"},
      {1, {2}, 0, 1, "not aligned as the file says"},
      {1, {2}, 77, 0, "of type number 77, which is not read here"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    b = head;
    gguf_tensor(&b, "t", cases[i].rank, cases[i].shape, cases[i].type, cases[i].offset);
    while (b.n % 32 != 0) put_le(&b, 0, 1);
    put_count(&b, 32);
    expect_refused(b, "t", cases[i].why);
  }
  bytes pairs = {.n = 0};
  put_text(&pairs, "GGUF");
  put_le(&pairs, 3, 4), put_le(&pairs, 0, 8), put_le(&pairs, 1, 8);
  gguf_string(&pairs, "general.alignment"), put_le(&pairs, 4, 4);
  b = pairs;
  put_le(&b, 0, 4);
  expect_refused(b, "t", "alignment is not a power of two");
  b = pairs;
  b.n -= 4;
  put_le(&b, 9, 4), put_le(&b, 9, 4), put_le(&b, 1, 8), put_le(&b, 0, 8);
  expect_refused(b, "t", "a list in its metadata has a type");
  b.n -= 20;
  put_le(&b, 10, 4), put_le(&b, UINT64_C(1) << 61, 8), put_le(&b, 0, 8); /* count * size wraps to 0 */
  expect_refused(b, "t", "truncated");
  b.n -= 24;
  put_le(&b, 99, 4), put_le(&b, 0, 8);
  expect_refused(b, "t", "a value in its metadata has a type");
}

static void test_not_a_file_of_ours(void **state) {
  (void)state;
  bytes b = {.n = 0};
  expect_refused(b, NULL, "found only 0 bytes");
  put_text(&b, "PK\3\4 and so on");
  expect_refused(b, NULL, "a zip archive");
  b.n = 0;
  put_text(&b, "This is plain text.");
  expect_refused(b, NULL, "expected a .npy, .safetensors or GGUF file, found 19 bytes that begin like none of them");
}

/* ------------------------------------------------------------------------------------------------------------------
 * Every truncation, and random damage. */

enum { SAMPLES = 6 };

static bytes sample(int i, const char **name) {
  static const char *const names[SAMPLES] = {NULL, NULL, NULL, "b", "norm.weight", "matrix"};
  *name = names[i];
  switch (i) {
  case 0:
    return npy(1, "<f4", "False", "(2, 3)", 24);
  case 1:
    return npy(2, ">f8", "True", "(2, 3)", 48);
  case 2:
    return npy(3, "|V2", "False", "(1, 3, 2)", 12);
  case 3:
    return safetensors(
        "{\"__metadata__\":{\"k\":\"v\\n\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]}}",
        20);
  case 4:
    return gguf(2, "llama");
  default:
    return gguf(3, "gemma");
  }
}

static void test_truncations(void **state) {
  (void)state;
  for (int i = 0; i < SAMPLES; i++) {
    const char *name;
    const bytes b = sample(i, &name);
    rn_tensor t;
    assert_true(read_bytes(b.data, b.n, name, RMSNORM_DTYPE_BF16, &t, NULL));
    rn_tensor_free(&t);
    /* A GGUF file may end with a quantised tensor, whose size is not known here: it may be cut. Nothing else may. */
    const size_t need = i >= 4 ? b.n - 20 : b.n;
    for (size_t n = 0; n < need; n++)
      if (read_bytes(b.data, n, name, RMSNORM_DTYPE_BF16, &t, NULL))
        fail_msg("sample %d was read with %zu of %zu bytes", i, n, b.n);
  }
}

static uint64_t next_random(uint64_t *seed) { /* splitmix64 */
  uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static void damage(bytes *b, uint64_t *seed) {
  for (int times = 1 + (int)(next_random(seed) % 4); times > 0 && b->n > 0; times--) {
    const size_t at = next_random(seed) % b->n;
    switch (next_random(seed) % 6) {
    case 0:
      b->data[at] ^= (unsigned char)(1u << next_random(seed) % 8);
      break;
    case 1:
      b->data[at] = (unsigned char)next_random(seed);
      break;
    case 2:
      b->n = at;
      break;
    case 3: /* a count of eight bytes becomes absurd */
      for (size_t k = at; k < at + 8 && k < b->n; k++) b->data[k] = next_random(seed) % 2 ? 0xff : 0x7f;
      break;
    case 4: /* some bytes appear twice */
      if (b->n + 16 < sizeof b->data) {
        memmove(b->data + at + 16, b->data + at, b->n - at);
        b->n += 16;
      }
      break;
    default: /* a digit, a bracket or a quote somewhere else */
      b->data[at] = (unsigned char)"0123456789\"'{}[](),:"[next_random(seed) % 20];
    }
  }
}

static void test_damage(void **state) {
  (void)state;
  const char *given = getenv("RMSNORM_TEST_SEED");
  uint64_t seed = given ? strtoull(given, NULL, 0) : 20260801;
  print_message("RMSNORM_TEST_SEED=%" PRIu64 "\n", seed);
  long good = 0, bad = 0;
  for (int round = 0; round < 20000; round++) {
    const char *name;
    bytes b = sample(round % SAMPLES, &name);
    const uint64_t here = seed;
    damage(&b, &seed);
    const unsigned char *file = guarded(b.data, b.n);
    rn_index index;
    rn_tensor t;
    memset(message, 0, sizeof message);
    FILE *err = fmemopen(message, sizeof message - 1, "w");
    const bool read = rn_index_read(&index, "FILE", file, b.n, err);
    for (size_t i = 0; read && i < index.count; i++) {
      const rn_entry *e = &index.entries[i];
      if (e->offset > b.n || e->bytes > b.n - e->offset) fail_msg("seed %" PRIu64 ": an entry leaves the file", here);
      if (!rn_index_load(&index, "FILE", file, e->name, RMSNORM_DTYPE_BF16, &t, err)) continue;
      if ((uint64_t)t.count * (uint64_t)t.item_bytes > b.n)
        fail_msg("seed %" PRIu64 ": a tensor larger than its file", here);
      int64_t count = 1;
      for (int d = 0; d < t.rank; d++) count *= t.shape[d];
      if (count != t.count) fail_msg("seed %" PRIu64 ": shape and count disagree", here);
      rn_tensor_free(&t);
    }
    *(read ? &good : &bad) += 1;
    rn_index_free(&index);
    fclose(err);
    if (!read && message[0] == 0) fail_msg("seed %" PRIu64 ": refused without a message", here);
  }
  print_message("%ld damaged files still read, %ld refused\n", good, bad);
  assert_true(good > 1000 && bad > 1000); /* otherwise the damage is too small or too large to tell */
}

/* --corpus DIRECTORY: the samples as files, for the fuzzer to start from. */
static int write_corpus(const char *directory) {
  for (int i = 0; i < SAMPLES; i++) {
    const char *name;
    char path[512];
    const bytes b = sample(i, &name);
    snprintf(path, sizeof path, "%s/sample-%d", directory, i);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(b.data, 1, b.n, file) != b.n || fclose(file) != 0) return 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_npy_types),
      cmocka_unit_test(test_npy_shapes),
      cmocka_unit_test(test_npy_order),
      cmocka_unit_test(test_safetensors),
      cmocka_unit_test(test_gguf),
      cmocka_unit_test(test_npy_hostile),
      cmocka_unit_test(test_safetensors_hostile),
      cmocka_unit_test(test_gguf_hostile),
      cmocka_unit_test(test_not_a_file_of_ours),
      cmocka_unit_test(test_truncations),
      cmocka_unit_test(test_damage),
  };
  if (argc == 3 && strcmp(argv[1], "--corpus") == 0) return write_corpus(argv[2]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
