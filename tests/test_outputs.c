/* test_outputs.c - the file writers, byte by byte, and the comparison of tensors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compare.h"
#include "files.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char counting[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                           16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                           32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                           48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* ------------------------------------------------------------------------------------------------------------------
 * Writing. */

static char folder[] = "/tmp/rmsnorm-files-XXXXXX";

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

static const char *in_folder(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void test_write_npy(void **state) {
  (void)state;
  static const struct {
    int dtype;
    const char *descr;
  } cases[] = {{RMSNORM_DTYPE_F32, "<f4"},      {RMSNORM_DTYPE_F16, "<f2"},  {RMSNORM_DTYPE_BF16, "|V2"},
               {RMSNORM_DTYPE_F64, "<f8"},      {RMSNORM_DTYPE_INT8, "|i1"}, {RMSNORM_DTYPE_FP8_E4M3, "|V1"},
               {RMSNORM_DTYPE_FP8_E5M2, "|V1"}, {RMSNORM_DTYPE_E8M0, "|V1"}};
  static const int64_t shapes[][3] = {{0}, {3}, {2, 3}, {2, 1, 3}};
  static const char *const texts[] = {"()", "(3,)", "(2, 3)", "(2, 1, 3)"};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int rank = 0; rank < 4; rank++) {
      rn_tensor t;
      char wanted[256], found[256], note[512] = "";
      assert_true(rn_tensor_new(&t, cases[i].dtype, rank, shapes[rank]));
      memcpy(t.data, counting, (size_t)t.count * (size_t)t.item_bytes);
      FILE *err = fmemopen(note, sizeof note - 1, "w");
      assert_true(rn_file_write(in_folder("t.npy"), &(rn_named_tensor){"t", &t}, 1, err));
      fclose(err);
      assert_int_equal(note[0] != 0, cases[i].descr[1] == 'V'); /* numpy has no such type: say so */
      FILE *file = fopen(in_folder("t.npy"), "rb");
      assert_non_null(file);
      const size_t n = fread(found, 1, sizeof found, file);
      fclose(file);
      /* magic, version 1.0, and the length that makes the data begin at a multiple of 64 */
      const size_t start = n - (size_t)t.count * (size_t)t.item_bytes;
      assert_int_equal(start % 64, 0);
      assert_memory_equal(found, "\x93NUMPY\1\0", 8);
      assert_int_equal((unsigned char)found[8] | (unsigned char)found[9] << 8, start - 10);
      snprintf(wanted, sizeof wanted, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", cases[i].descr,
               texts[rank]);
      assert_memory_equal(found + 10, wanted, strlen(wanted));
      for (size_t k = 10 + strlen(wanted); k < start; k++) assert_int_equal(found[k], k + 1 == start ? '\n' : ' ');
      assert_memory_equal(found + start, counting, n - start);
      unlink(in_folder("t.npy"));
      rn_tensor_free(&t);
    }
}

static void test_write_safetensors(void **state) {
  (void)state;
  rn_tensor a, b, back;
  assert_true(rn_tensor_new(&a, RMSNORM_DTYPE_FP8_E4M3, 2, (int64_t[]){1, 3}));
  assert_true(rn_tensor_new(&b, RMSNORM_DTYPE_BF16, 1, (int64_t[]){2}));
  memcpy(a.data, counting, 3), memcpy(b.data, counting + 3, 4);
  const char *path = in_folder("t.safetensors");
  assert_true(rn_file_write(path, (rn_named_tensor[]){{"q", &a}, {"a \"name\"", &b}}, 2, stderr));
  static const char header[] = "{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,3],\"data_offsets\":[0,3]},"
                               "\"a \\\"name\\\"\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[3,7]}}";
  unsigned char found[512];
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t n = fread(found, 1, sizeof found, file), padded = (sizeof header - 1 + 7) / 8 * 8;
  fclose(file);
  assert_int_equal(n, 8 + padded + 7);
  assert_int_equal(found[0], padded);
  assert_memory_equal(found + 8, header, sizeof header - 1);
  assert_memory_equal(found + 8 + padded, counting, 7);
  char spec[256];
  snprintf(spec, sizeof spec, "%s:a \"name\"", path);
  assert_true(rn_tensor_read(spec, 0, &back, NULL, stderr));
  assert_int_equal(back.dtype, RMSNORM_DTYPE_BF16);
  assert_memory_equal(back.data, counting + 3, 4);
  rn_tensor_free(&a), rn_tensor_free(&b), rn_tensor_free(&back);
  unlink(path);
}

static void test_write_refused(void **state) {
  (void)state;
  rn_tensor t;
  char note[512];
  static const struct {
    const char *name, *why;
    int count;
  } cases[] = {{"t.txt", "ends in .npy or .safetensors", 1},
               {"t.npy", "holds one array, 2 were to go", 2},
               {"no/such/t.npy", "can not be written: No such file", 1}};
  assert_true(rn_tensor_new(&t, RMSNORM_DTYPE_F32, 1, (int64_t[]){2}));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    memset(note, 0, sizeof note);
    FILE *err = fmemopen(note, sizeof note - 1, "w");
    assert_false(
        rn_file_write(in_folder(cases[i].name), (rn_named_tensor[]){{"t", &t}, {"u", &t}}, cases[i].count, err));
    fclose(err);
    if (strstr(note, cases[i].why) == NULL) fail_msg("expected '%s' in: %s", cases[i].why, note);
  }
  /* A target that can not be replaced: it stays as it was, and no temporary file is left beside it. */
  const char *path = in_folder("t.npy");
  assert_int_equal(mkdir(path, 0700), 0);
  FILE *err = fmemopen(note, sizeof note - 1, "w");
  assert_false(rn_file_write(path, &(rn_named_tensor){"t", &t}, 1, err));
  fclose(err);
  assert_int_equal(rmdir(path), 0);
  assert_int_equal(rmdir(folder), 0); /* works on an empty one only */
  assert_int_equal(mkdir(folder, 0700), 0);
  rn_tensor_free(&t);
}

static void test_specs(void **state) {
  (void)state;
  static const struct {
    const char *spec, *name;
    size_t length;
  } cases[] = {{"x.npy", NULL, 5},      {"a.safetensors:b", "b", 13}, {"a.safetensors:b:c", "b:c", 13},
               {"a:b.npy", NULL, 7},    {"a:b.gguf:c.d", "c.d", 8},   {"a.safetensors:", "", 13},
               {"plain:name", NULL, 10}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t length;
    const char *name = rn_spec_split(cases[i].spec, &length);
    assert_int_equal(length, cases[i].length);
    assert_int_equal(name == NULL, cases[i].name == NULL);
    if (name != NULL) assert_string_equal(name, cases[i].name);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * Comparison. */

static void expect_ulp(int dtype, uint64_t a, uint64_t b, int64_t differ, uint64_t ulp) {
  rn_tensor x, y;
  assert_true(rn_tensor_new(&x, dtype, 1, (int64_t[]){2}) && rn_tensor_new(&y, dtype, 1, (int64_t[]){2}));
  memcpy((char *)x.data + x.item_bytes, &a, (size_t)x.item_bytes);
  memcpy((char *)y.data + y.item_bytes, &b, (size_t)y.item_bytes);
  const rn_difference d = rn_compare(&x, &y);
  if (d.elements != 2 || d.differ != differ || d.ulp != ulp || d.worst != (differ ? 1 : -1))
    fail_msg("%s %#" PRIx64 " %#" PRIx64 ": %" PRId64 " differ, %" PRIu64 " ulp", rmsnorm_dtype_name(dtype), a, b,
             d.differ, d.ulp);
  rn_tensor_free(&x), rn_tensor_free(&y);
}

static void test_compare(void **state) {
  (void)state;
  expect_ulp(RMSNORM_DTYPE_F32, 0x3f800000, 0x3f800000, 0, 0);
  expect_ulp(RMSNORM_DTYPE_F32, 0x3f800000, 0x3f7fffff, 1, 1);
  expect_ulp(RMSNORM_DTYPE_F32, 0x80000001, 0x00000002, 1, 3); /* through zero */
  expect_ulp(RMSNORM_DTYPE_F32, 0x80000000, 0x00000000, 1, 0); /* -0 and +0: other bits, no distance */
  expect_ulp(RMSNORM_DTYPE_F32, 0x7fc00000, 0xffc00001, 0, 0); /* a NaN is a NaN */
  expect_ulp(RMSNORM_DTYPE_F32, 0x7f800000, 0x7f800001, 1, UINT64_MAX);
  expect_ulp(RMSNORM_DTYPE_BF16, 0x3f80, 0xbf80, 1, 2 * 0x3f80);
  expect_ulp(RMSNORM_DTYPE_F16, 0x7c00, 0x7bff, 1, 1);
  expect_ulp(RMSNORM_DTYPE_F64, 0x7fefffffffffffff, 0xffefffffffffffff, 1, 2 * UINT64_C(0x7fefffffffffffff));
  expect_ulp(RMSNORM_DTYPE_FP8_E4M3, 0x7e, 0x7f, 1, UINT64_MAX);
  expect_ulp(RMSNORM_DTYPE_FP8_E4M3, 0xff, 0x7f, 0, 0);
  expect_ulp(RMSNORM_DTYPE_FP8_E5M2, 0x7c, 0x7b, 1, 1);
  expect_ulp(RMSNORM_DTYPE_INT8, 0x80, 0x7f, 1, 255);
  expect_ulp(RMSNORM_DTYPE_E8M0, 0xfe, 0xff, 1, UINT64_MAX);
  expect_ulp(RMSNORM_DTYPE_E8M0, 0x80, 0x7f, 1, 1);
}

static void test_values(void **state) {
  (void)state;
  static const struct {
    int dtype;
    uint64_t bits;
    double value;
  } cases[] = {{RMSNORM_DTYPE_F32, 0xc0490fdb, (double)-3.14159274f},
               {RMSNORM_DTYPE_F32, 1, 0x1p-149},
               {RMSNORM_DTYPE_BF16, 0x3fc0, 1.5},
               {RMSNORM_DTYPE_BF16, 0x8000, -0.0},
               {RMSNORM_DTYPE_F16, 0xfbff, -65504},
               {RMSNORM_DTYPE_FP8_E4M3, 0x7e, 448},
               {RMSNORM_DTYPE_FP8_E4M3, 0x81, -0x1p-9},
               {RMSNORM_DTYPE_FP8_E5M2, 0x7b, 57344},
               {RMSNORM_DTYPE_INT8, 0x80, -128},
               {RMSNORM_DTYPE_E8M0, 0, 0x1p-127},
               {RMSNORM_DTYPE_F64, 0x3ff8000000000000, 1.5}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rn_tensor t;
    assert_true(rn_tensor_new(&t, cases[i].dtype, 0, NULL));
    memcpy(t.data, &cases[i].bits, (size_t)t.item_bytes);
    if (rn_value(&t, 0) != cases[i].value || signbit(rn_value(&t, 0)) != signbit(cases[i].value))
      fail_msg("case %zu: %.17g", i, rn_value(&t, 0));
    rn_tensor_free(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_write_npy), cmocka_unit_test(test_write_safetensors), cmocka_unit_test(test_write_refused),
      cmocka_unit_test(test_specs),     cmocka_unit_test(test_compare),           cmocka_unit_test(test_values),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
