/* test_bisect.c - `rmsnorm bisect` on dumps of a small model that is made here, with mistakes
 * planted in one norm, which has to be found at that norm and at no other.
 *
 * Right outputs come from the formula in long double (the judge of reference.h with the roundings of llama), not from
 * the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bisect.h"
#include "commands.h"
#include "reference.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state;
static char root[] = P_tmpdir "/test_bisect.XXXXXX";

static uint64_t next(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state * UINT64_C(0x2545f4914f6cdd1d);
}
static double uniform(void) {
  return (double)(next() >> 11) * 0x1p-53;
}
static double normal(void) {
  return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

/* ------------------------------------------------------------------------------------------------------------------
 * A model and its dumps. */

enum { LAYERS = 12, NORMS = 2 * LAYERS + 1, ROWS = 12, COLS = 96 };
#define EPS 1e-5

typedef struct sample {
  int dtype;
  rn_tensor x[NORMS], y[NORMS], weight[NORMS];
  char name[NORMS][64];
} sample;

static void name_of(int n, char text[64]) {
  if (n == 2 * LAYERS)
    strcpy(text, "norm");
  else
    snprintf(text, 64, "layers.%d.%s", n / 2, n % 2 ? "post_attention_layernorm" : "input_layernorm");
}

static rn_tensor tensor(int dtype, int rank, int64_t rows, int64_t cols) {
  rn_tensor t;
  assert_true(rn_tensor_new(&t, dtype, rank, rank == 1 ? &(int64_t){cols} : (int64_t[]){rows, cols}));
  return t;
}

/* How a mistake changes the norm of one row. */
typedef struct mistake {
  double eps;
  int64_t counted;   /* columns that the statistic sees */
  bool gemma_rounds; /* not before the weight */
  bool exact;        /* the statistic in long double, where float32 is the rule elsewhere: no mistake */
} mistake;
#define RIGHT ((mistake){EPS, COLS, false, true})

static void normalise(const rn_tensor *x, const rn_tensor *weight, mistake m, rn_tensor *y) {
  for (int64_t r = 0; r < ROWS; r++) {
    long double sum = 0;
    for (int64_t c = 0; c < m.counted; c++) {
      const long double v = rn_ref_load(x->dtype, x->data, r * COLS + c);
      sum += v * v;
    }
    /* Another order of summation: the last bit of rstd. */
    const float rstd = (float)(1 / sqrtl(sum / COLS + (long double)m.eps)) * (m.exact ? 1 : 1 + 0x1p-23f);
    for (int64_t c = 0; c < COLS; c++) {
      double v = (float)rn_ref_load(x->dtype, x->data, r * COLS + c) * rstd;
      if (!m.gemma_rounds) v = rn_ref_round(x->dtype, v);
      rn_ref_store(y->dtype, y->data, r * COLS + c, (float)v * (float)rn_ref_load(weight->dtype, weight->data, c));
    }
  }
}

static void make_sample(sample *s, int dtype) {
  s->dtype = dtype;
  for (int n = 0; n < NORMS; n++) {
    name_of(n, s->name[n]);
    s->x[n] = tensor(dtype, 2, ROWS, COLS), s->y[n] = tensor(dtype, 2, ROWS, COLS);
    s->weight[n] = tensor(dtype, 1, 1, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i++) rn_ref_store(dtype, s->x[n].data, i, 0.1 * normal());
    for (int64_t i = 0; i < COLS; i++) rn_ref_store(dtype, s->weight[n].data, i, 0.5 + uniform());
    normalise(&s->x[n], &s->weight[n], RIGHT, &s->y[n]);
  }
}

static void copy_sample(sample *to, const sample *from) {
  to->dtype = from->dtype;
  for (int n = 0; n < NORMS; n++) {
    strcpy(to->name[n], from->name[n]);
    rn_tensor *ours[] = {&to->x[n], &to->y[n], &to->weight[n]};
    const rn_tensor *theirs[] = {&from->x[n], &from->y[n], &from->weight[n]};
    for (int k = 0; k < 3; k++) {
      assert_true(rn_tensor_new(ours[k], theirs[k]->dtype, theirs[k]->rank, theirs[k]->shape));
      memcpy(ours[k]->data, theirs[k]->data, (size_t)theirs[k]->count * (size_t)theirs[k]->item_bytes);
    }
  }
}

static void free_sample(sample *s) {
  for (int n = 0; n < NORMS; n++) rn_tensor_free(&s->x[n]), rn_tensor_free(&s->y[n]), rn_tensor_free(&s->weight[n]);
}

static void move_one(rn_tensor *t) {
  rn_ref_store(t->dtype, t->data, 5, 2 + rn_ref_load(t->dtype, t->data, 5));
}

/* What was a little off when it came in, and is normalised rightly. */
static void drift(sample *s, int n) {
  for (int64_t i = 0; i < ROWS * COLS; i++)
    rn_ref_store(s->dtype, s->x[n].data, i, rn_ref_load(s->dtype, s->x[n].data, i) * (1 + 0.02 * normal()));
  normalise(&s->x[n], &s->weight[n], RIGHT, &s->y[n]);
}

static char *path_of(const char *name) {
  static char text[4][256];
  static int turn;
  char *path = text[turn++ % 4];
  snprintf(path, sizeof text[0], "%s/%s", root, name);
  return path;
}

static void clean(const char *name) {
  char command[300];
  snprintf(command, sizeof command, "rm -rf '%s'", path_of(name));
  assert_int_equal(system(command), 0);
  assert_true(mkdir(path_of(name), 0777) == 0);
}

static void write_file(const char *name, const rn_named_tensor *tensors, int count) {
  FILE *quiet = fopen("/dev/null", "w");
  assert_non_null(quiet);
  assert_true(rn_file_write(path_of(name), tensors, count, quiet));
  fclose(quiet);
}

static void put_file(const char *name, const void *data, size_t bytes) {
  FILE *out = fopen(path_of(name), "wb");
  assert_non_null(out);
  assert_true(fwrite(data, 1, bytes, out) == bytes);
  fclose(out);
}

/* All in one file, called as in a checkpoint of transformers. */
static void dump(const char *folder, const sample *s, bool with_x) {
  static char names[2 * NORMS][96];
  rn_named_tensor list[2 * NORMS];
  char file[200];
  int count = 0;
  clean(folder);
  for (int n = NORMS - 1; n >= 0; n--) {
    snprintf(names[count], sizeof names[0], "model.%s.output", s->name[n]);
    list[count].name = names[count], list[count++].tensor = &s->y[n];
    if (!with_x) continue;
    snprintf(names[count], sizeof names[0], "model.%s.input", s->name[n]);
    list[count].name = names[count], list[count++].tensor = &s->x[n];
  }
  snprintf(file, sizeof file, "%s/dump.safetensors", folder);
  write_file(file, list, count);
}

/* A file for each, with names as in GGUF. */
static void dump_npy(const char *folder, const sample *s) {
  clean(folder);
  for (int n = 0; n < NORMS; n++) {
    char name[64], file[200];
    if (n == 2 * LAYERS)
      strcpy(name, "output_norm");
    else
      snprintf(name, sizeof name, "blk.%d.%s", n / 2, n % 2 ? "ffn_norm" : "attn_norm");
    snprintf(file, sizeof file, "%s/%s.x.npy", folder, name);
    write_file(file, &(rn_named_tensor){NULL, &s->x[n]}, 1);
    snprintf(file, sizeof file, "%s/%s.y.npy", folder, name);
    write_file(file, &(rn_named_tensor){NULL, &s->y[n]}, 1);
  }
}

static void write_model(const sample *s) {
  static char names[NORMS][96];
  rn_named_tensor list[NORMS];
  for (int n = 0; n < NORMS; n++) {
    snprintf(names[n], sizeof names[0], "model.%s.weight", s->name[n]);
    list[n].name = names[n], list[n].tensor = &s->weight[n];
  }
  write_file("model.safetensors", list, NORMS);
}

/* ------------------------------------------------------------------------------------------------------------------
 * The command, in a process of its own. */

static char *output; /* of the last run */

static char *read_text(const char *name) {
  FILE *in = fopen(path_of(name), "rb");
  assert_non_null(in);
  char *text = calloc(1, 1 << 20);
  assert_non_null(text);
  assert_true(fread(text, 1, (1 << 20) - 1, in) < (1 << 20) - 1);
  fclose(in);
  return text;
}

static int run(const char *const *arguments) {
  char *argv[24];
  int argc = 0;
  for (; arguments[argc] != NULL; argc++) {
    assert_true(argc < 23);
    argv[argc] = strdup(arguments[argc]);
  }
  argv[argc] = NULL;
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (freopen(path_of("out"), "w", stdout) == NULL || freopen(path_of("err"), "w", stderr) == NULL) _exit(99);
    const int status = rn_cmd_bisect(argc, argv);
    fflush(NULL);
    _exit(status);
  }
  int status;
  assert_true(waitpid(child, &status, 0) == child);
  for (int i = 0; i < argc; i++) free(argv[i]);
  free(output);
  output = read_text("out");
  if (!WIFEXITED(status)) fail_msg("the command was killed by signal %d", WTERMSIG(status));
  return WEXITSTATUS(status);
}

static int bisect(const char *a, const char *b, const char *option, const char *value) {
  const char *const arguments[] = {"bisect",   "--json",   "--model",  path_of("model.safetensors"),
                                   "--dump-a", path_of(a), "--dump-b", path_of(b),
                                   option,     value,      NULL};
  return run(arguments);
}

static void expect(const char *what) {
  if (strstr(output, what) == NULL) fail_msg("no %s in %s", what, output);
}
static void expect_found(const char *name) {
  char text[128];
  snprintf(text, sizeof text, "\"found\":\"%s\"", name);
  expect(text);
}
static void expect_finding(const char *name, const char *finding) {
  char text[160];
  snprintf(text, sizeof text, "{\"name\":\"%s\",\"finding\":\"%s\"", name, finding);
  expect(text);
}

static const int types[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16};
static sample right, port;

static void begin(int dtype) {
  make_sample(&right, dtype);
  copy_sample(&port, &right);
  write_model(&right);
  dump("b", &right, true);
}
static void end(void) {
  free_sample(&right), free_sample(&port);
}

static void test_equal(void **unused) {
  (void)unused;
  for (int t = 0; t < 3; t++) {
    begin(types[t]);
    dump("a", &port, true);
    assert_int_equal(bisect("a", "b", NULL, NULL), 0);
    expect("\"found\":null,\"entered\":null,\"trouble\":false");
    for (int n = 0; n < NORMS; n++) expect_finding(right.name[n], "equal");
    end();
  }
}

/* Each mistake, in a norm of its own: that norm is found, and those before it are not blamed. */
static void test_mistakes(void **unused) {
  (void)unused;
  static const struct {
    int norm;
    mistake mistake;
    const char *hypothesis;
    bool narrow_only;
  } known[] = {
      {7, {1e-3, COLS, false, true}, "eps", false},
      {24, {EPS, 64, false, true}, NULL, false},
      {0, {EPS, COLS, true, true}, NULL, true},
      {20, {EPS, COLS, true, true}, NULL, true},
  };
  for (int t = 0; t < 3; t++)
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
      const int n = known[k].norm;
      if (known[k].narrow_only && types[t] == RMSNORM_DTYPE_F32) continue;
      begin(types[t]);
      normalise(&port.x[n], &port.weight[n], known[k].mistake, &port.y[n]);
      if (n + 3 < NORMS) drift(&port, n + 3); /* what comes later is not looked at */
      dump("a", &port, true);
      assert_int_equal(bisect("a", "b", NULL, NULL), 1);
      expect_found(right.name[n]);
      expect_finding(right.name[n], "fault");
      expect("\"measure\":{");
      if (known[k].hypothesis != NULL) expect(known[k].hypothesis);
      for (int i = 0; i < n; i++) expect_finding(right.name[i], "equal");
      end();
    }
}

static void test_other_weight(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  normalise(&port.x[6], &port.weight[8], RIGHT, &port.y[6]);
  dump("a", &port, true);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_found("layers.3.input_layernorm");
  expect_finding("layers.3.input_layernorm", "fault");
  expect("layers.4.input_layernorm"); /* whose weight it was */
  end();
}

/* Noise has no explanation, and is a fault all the same. */
static void test_noise(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_F32);
  for (int64_t i = 0; i < ROWS * COLS; i++)
    rn_ref_store(port.dtype, port.y[9].data, i, rn_ref_load(port.dtype, port.y[9].data, i) * (1 + 0.01 * normal()));
  dump("a", &port, true);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_found(right.name[9]);
  expect_finding(right.name[9], "unexplained");
  end();
}

/* Layer 2 comes before layer 10. */
static void test_first(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  for (int n = 4; n <= 20; n += 16)
    normalise(&port.x[n], &port.weight[n], (mistake){1e-3, COLS, false, true}, &port.y[n]);
  dump("a", &port, true);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_found("layers.2.input_layernorm");
  end();
}

/* Inputs that have drifted: the norms are right, and it is said where the drift came in. */
static void test_drift(void **unused) {
  (void)unused;
  for (int t = 0; t < 3; t++) {
    begin(types[t]);
    for (int n = 5; n < NORMS; n++) drift(&port, n);
    dump("a", &port, true);
    assert_int_equal(bisect("a", "b", NULL, NULL), 1);
    expect("\"found\":null");
    expect("\"entered\":\"layers.2.post_attention_layernorm\"");
    for (int n = 0; n < NORMS; n++) expect_finding(right.name[n], n < 5 ? "equal" : "inputs");
    /* And a mistake among them is found. */
    normalise(&port.x[11], &port.weight[11], (mistake){1e-3, COLS, false, true}, &port.y[11]);
    dump("a", &port, true);
    assert_int_equal(bisect("a", "b", NULL, NULL), 1);
    expect_found(right.name[11]);
    expect("\"entered\":\"layers.2.post_attention_layernorm\"");
    end();
  }
}

/* Another order of summation is no mistake, nor is the drift that comes of it. (In narrow types it hardly ever shows,
 * and a drift behind outputs that are equal would have come from somewhere else.) */
static void test_benign(void **unused) {
  (void)unused;
  for (int t = 0; t < 3; t++) {
    begin(types[t]);
    for (int n = 3; n < NORMS; n++) {
      if (n > 3 && types[t] == RMSNORM_DTYPE_F32) drift(&port, n);
      normalise(&port.x[n], &port.weight[n], (mistake){EPS, COLS, false, n % 3 > 0}, &port.y[n]);
    }
    dump("a", &port, true);
    assert_int_equal(bisect("a", "b", NULL, NULL), 0);
    expect("\"found\":null,\"entered\":null");
    if (types[t] == RMSNORM_DTYPE_F32) expect_finding(right.name[3], "benign");
    end();
  }
}

/* Files of other kinds with other names, and types that a .npy file does not tell. */
static void test_names_and_types(void **unused) {
  (void)unused;
  for (int t = 0; t < 3; t++) {
    begin(types[t]);
    normalise(&port.x[13], &port.weight[13], (mistake){1e-3, COLS, false, true}, &port.y[13]);
    dump_npy("a", &port);
    if (types[t] == RMSNORM_DTYPE_BF16) {
      assert_int_equal(bisect("a", "b", NULL, NULL), 2);
      free(output), output = read_text("err");
      expect("Try: --dtype bf16");
    }
    assert_int_equal(bisect("a", "b", "--dtype", "bf16"), 1);
    expect_found(right.name[13]);
    end();
  }
  /* bf16 values in f32 files: the bits are equal. */
  begin(RMSNORM_DTYPE_BF16);
  for (int n = 0; n < NORMS; n++) {
    rn_tensor *both[] = {&port.x[n], &port.y[n]};
    for (int k = 0; k < 2; k++) {
      rn_tensor wide = tensor(RMSNORM_DTYPE_F32, 2, ROWS, COLS);
      for (int64_t i = 0; i < wide.count; i++)
        rn_ref_store(wide.dtype, wide.data, i, rn_ref_load(both[k]->dtype, both[k]->data, i));
      rn_tensor_free(both[k]);
      *both[k] = wide;
    }
  }
  dump_npy("a", &port);
  assert_int_equal(bisect("a", "b", NULL, NULL), 0);
  end();
}

/* The reference can be wrong as well: a norm of b that does not what its other norms do. */
static void test_reference(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_F32);
  sample wrong;
  copy_sample(&wrong, &right);
  normalise(&port.x[5], &port.weight[5], (mistake){EPS, COLS, false, false}, &port.y[5]); /* here its ways are learnt */
  normalise(&wrong.x[9], &wrong.weight[9], (mistake){1e-3, COLS, false, true}, &wrong.y[9]);
  dump("a", &port, true), dump("b", &wrong, true);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_finding(right.name[5], "benign");
  expect_found(right.name[9]);
  expect("\"side\":\"b\"");
  /* Or in all of its norms, as the model's own eps shows. */
  for (int n = 0; n < NORMS; n++)
    normalise(&wrong.x[n], &wrong.weight[n], (mistake){1e-3, COLS, false, true}, &wrong.y[n]);
  dump("a", &right, true), dump("b", &wrong, true);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect("\"side\":\"a\""); /* nothing is known but that b is right */
  assert_int_equal(bisect("a", "b", "--eps", "1e-5"), 1);
  expect_found(right.name[0]);
  expect("\"side\":\"b\"");
  /* And a mistake that both sides make is not held against the one whose input has drifted. */
  sample drifted;
  copy_sample(&drifted, &wrong);
  drift(&drifted, 5);
  normalise(&drifted.x[5], &drifted.weight[5], (mistake){1e-3, COLS, false, true}, &drifted.y[5]);
  dump("a", &drifted, true);
  assert_int_equal(bisect("a", "b", "--eps", "1e-5"), 1);
  expect("\"found\":null");
  expect_finding(right.name[5], "inputs");
  free_sample(&drifted);
  dump("a", &right, true);
  put_file("config.json", "{\"rms_norm_eps\": 1e-05}", 23);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect("\"side\":\"b\"");
  assert_int_equal(unlink(path_of("config.json")), 0);
  free_sample(&wrong);
  end();
}

/* Without inputs on one side those of the other serve; without any, it is said that nothing can be judged. */
static void test_without_inputs(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  normalise(&port.x[2], &port.weight[2], (mistake){1e-3, COLS, false, true}, &port.y[2]);
  dump("a", &port, false);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_finding(right.name[2], "fault");
  expect("\"input_of_other\":\"");
  dump("a", &port, true), dump("b", &right, false);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_finding(right.name[2], "fault");
  dump("a", &port, false);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_finding(right.name[2], "blind");
  expect_found(right.name[2]);
  end();
}

/* ------------------------------------------------------------------------------------------------------------------
 * Folders as they come. */

static void test_junk(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  dump("a", &port, true);
  put_file("a/README.txt", "not a tensor", 12);
  put_file("a/.hidden.npy", "", 0);
  assert_true(mkdir(path_of("a/deep.npy"), 0777) == 0);
  assert_true(symlink(path_of("a"), path_of("a/circle")) == 0);
  assert_int_equal(bisect("a", "b", NULL, NULL), 0);
  /* What has the right ending and can not be read is trouble, though a mistake beside it is still found. */
  put_file("a/empty.npy", "", 0);
  assert_int_equal(bisect("a", "b", NULL, NULL), 2);
  expect("\"trouble\":true");
  dump("a", &port, true);
  put_file("a/torn.safetensors", "\x40\0\0\0\0\0\0\0{\"x\":", 13);
  assert_int_equal(bisect("a", "b", NULL, NULL), 2);
  normalise(&port.x[2], &port.weight[2], (mistake){1e-3, COLS, false, true}, &port.y[2]);
  dump("a", &port, true);
  put_file("a/empty.npy", "", 0);
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_found(right.name[2]);
  end();
}

static void test_folders(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  clean("a");
  assert_int_equal(bisect("a", "b", NULL, NULL), 2); /* nothing in it */
  assert_int_equal(bisect("nowhere", "b", NULL, NULL), 2);
  put_file("a/note.txt", "x", 1);
  assert_int_equal(bisect("a/note.txt", "b", NULL, NULL), 2);
  /* Nothing that fits. */
  write_file("a/other.npy", &(rn_named_tensor){NULL, &port.x[0]}, 1);
  assert_int_equal(bisect("a", "b", NULL, NULL), 2);
  free(output), output = read_text("err");
  expect("Try: --y PATTERN");
  /* Layers that one side lacks are named, and the rest is walked. */
  dump_npy("a", &port);
  for (int n = 0; n < 10; n += 2) {
    char file[64];
    snprintf(file, sizeof file, "a/blk.%d.attn_norm.y.npy", n / 2);
    assert_int_equal(unlink(path_of(file)), 0);
  }
  assert_int_equal(bisect("a", "b", "--dtype", "bf16"), 0);
  expect_finding("layers.4.input_layernorm", "one-sided");
  expect_finding("layers.5.input_layernorm", "equal");
  /* Shapes that do not fit. */
  rn_tensor less = tensor(RMSNORM_DTYPE_BF16, 2, ROWS - 1, COLS);
  write_file("a/blk.3.ffn_norm.y.npy", &(rn_named_tensor){NULL, &less}, 1);
  assert_int_equal(bisect("a", "b", "--dtype", "bf16"), 2);
  expect_finding("layers.3.post_attention_layernorm", "trouble");
  dump_npy("a", &port);
  write_file("a/blk.3.ffn_norm.x.npy", &(rn_named_tensor){NULL, &less}, 1);
  assert_int_equal(bisect("a", "b", "--dtype", "bf16"), 2);
  /* And where no other side shows it. */
  dump("b", &right, false);
  move_one(&port.y[7]);
  write_file("a/blk.3.ffn_norm.y.npy", &(rn_named_tensor){NULL, &port.y[7]}, 1);
  assert_int_equal(bisect("a", "b", "--dtype", "bf16"), 2);
  expect_finding("layers.3.post_attention_layernorm", "trouble");
  dump("b", &right, true);
  rn_tensor_free(&less);
  /* Own patterns. */
  const char *const arguments[] = {"bisect", "--json",        "--dump-a", path_of("b"),     "--dump-b", path_of("b"),
                                   "--x",    "model.*.input", "--y",      "model.*.output", NULL};
  assert_int_equal(run(arguments), 0);
  const char *const wrong[] = {"bisect", "--dump-a", path_of("b"), "--dump-b", path_of("b"), "--x", "input", NULL};
  assert_int_equal(run(wrong), 2);
  const char *const half[] = {"bisect", "--dump-a", path_of("b"), NULL};
  assert_int_equal(run(half), 2);
  end();
}

/* Several files of a folder with the same names inside; the layer is in the name of the file. */
static void test_file_each(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_BF16);
  normalise(&port.x[20], &port.weight[20], (mistake){1e-3, COLS, false, true}, &port.y[20]);
  for (int side = 0; side < 2; side++) {
    sample *s = side ? &right : &port;
    clean(side ? "b" : "a");
    for (int l = 0; l < LAYERS; l++) {
      char file[64];
      snprintf(file, sizeof file, "%s/layers.%d.safetensors", side ? "b" : "a", l);
      const rn_named_tensor list[] = {{"input_layernorm.x", &s->x[2 * l]},
                                      {"input_layernorm.y", &s->y[2 * l]},
                                      {"post_attention_layernorm.x", &s->x[2 * l + 1]},
                                      {"post_attention_layernorm.y", &s->y[2 * l + 1]}};
      write_file(file, list, 4);
    }
  }
  assert_int_equal(bisect("a", "b", NULL, NULL), 1);
  expect_found("layers.10.input_layernorm");
  expect("model.layers.10.input_layernorm.weight"); /* it has found its weight */
  end();
}

/* eps out of config.json. */
static void test_config(void **unused) {
  (void)unused;
  static const char config[] =
      "{\"a\": [1, {\"rms_norm_eps\": 0.5}], \"text_config\": {\"rms_norm_eps\": 1e-05}, \"z\": 1}";
  static const char *const broken[] = {
      "", "{", "[", "{\"rms_norm_eps\"", "{\"rms_norm_eps\": ", "{\"rms_norm_eps\": }", "\"\\"};
  rn_checkpoint model;
  begin(RMSNORM_DTYPE_BF16);
  put_file("config.json", config, sizeof config - 1);
  assert_true(rn_checkpoint_open(&model, path_of("model.safetensors"), "*.weight", stderr));
  assert_true(model.eps == 1e-5);
  assert_non_null(rn_checkpoint_weight(&model, "layers.3.input_layernorm"));
  assert_non_null(rn_checkpoint_weight(&model, "layer_3_input_layernorm"));
  assert_null(rn_checkpoint_weight(&model, "layers.33.input_layernorm"));
  rn_checkpoint_close(&model);
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    put_file("config.json", broken[i], strlen(broken[i]));
    assert_true(rn_checkpoint_open(&model, path_of("model.safetensors"), "*.weight", stderr));
    assert_true(model.eps < 0);
    rn_checkpoint_close(&model);
  }
  assert_int_equal(unlink(path_of("config.json")), 0);
  end();
}

/* Damaged files: an answer or a message, never a crash. */
static void test_damage(void **unused) {
  (void)unused;
  begin(RMSNORM_DTYPE_F16);
  dump("a", &port, true);
  FILE *in = fopen(path_of("a/dump.safetensors"), "rb");
  assert_non_null(in);
  static unsigned char file[1 << 18];
  const size_t bytes = fread(file, 1, sizeof file, in);
  fclose(in);
  assert_true(bytes > 4096 && bytes < sizeof file);
  for (int k = 0; k < 60; k++) {
    unsigned char *damaged = malloc(bytes);
    assert_non_null(damaged);
    memcpy(damaged, file, bytes);
    for (int i = 0; i < 1 + k % 4; i++) damaged[next() % 4096] = (unsigned char)next();
    put_file("a/dump.safetensors", damaged, k % 5 == 0 ? (size_t)(next() % bytes) : bytes);
    free(damaged);
    const int status = bisect("a", "b", NULL, NULL);
    if (status > 2) fail_msg("exit status %d", status);
  }
  end();
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_equal),        cmocka_unit_test(test_mistakes),
      cmocka_unit_test(test_other_weight), cmocka_unit_test(test_noise),
      cmocka_unit_test(test_first),        cmocka_unit_test(test_drift),
      cmocka_unit_test(test_benign),       cmocka_unit_test(test_names_and_types),
      cmocka_unit_test(test_reference),    cmocka_unit_test(test_without_inputs),
      cmocka_unit_test(test_junk),         cmocka_unit_test(test_folders),
      cmocka_unit_test(test_file_each),    cmocka_unit_test(test_config),
      cmocka_unit_test(test_damage),
  };
  state = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261130;
  if (state == 0) state = 1;
  print_message("seed %llu\n", (unsigned long long)state);
  if (mkdtemp(root) == NULL) return 2;
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[300];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  if (system(command) != 0) return 2;
  free(output);
  return failed;
}
