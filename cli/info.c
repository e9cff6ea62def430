/* info.c - `rmsnorm info`: what this build is, what this machine can run, and what the presets mean.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "gpu.h"
#include "json.h"
#include "message.h"
#include "rmsnorm.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char *const roundings[] = {"none", "x", "weight", "promoted", "stored"};
static const char *const gates[] = {"none", "silu", "sigmoid"};

static void help(FILE *out) {
  fputs("Examples:\n"
        "  rmsnorm info                      what runs here, and why the rest does not\n"
        "  rmsnorm info --json               the same for a program\n"
        "\n"
        "Usage: rmsnorm info [--json]\n"
        "\n"
        "Version, processor features, GPUs, implementations (fastest first), defaults, and the presets with the model "
        "families\n"
        "that use them.\n"
        "\n"
        "Environment: RMSNORM_IMPL forces an implementation; RMSNORM_CUDA_DRIVER, RMSNORM_HIP_DRIVER, the library of a "
        "driver;\n"
        "NO_COLOR.\n",
        out);
}

/* What a document may not leave out, either. */
static const char not_run[] = "compiled and inspected, not run on AMD hardware";

static void print_device(const rn_device_facts *f) {
  printf("%s, ", f->name);
  if (*f->arch)
    printf("%s, %d compute units, ", f->arch, f->sms);
  else
    printf("compute capability %d.%d, %d multiprocessors, ", f->major, f->minor, f->sms);
  printf("%.1f GiB, L2 %.0f MiB, %s\n", (double)f->memory_bytes * 0x1p-30, (double)f->l2_bytes * 0x1p-20,
         rn_device_version(f));
}

static void print_devices(int kind, const char *label) {
  rn_device_choose(kind);
  const int count = rn_device_count();
  if (count == 0) printf("%-15s none: %s\n", label, rn_device_error());
  for (int i = 0; i < count; i++) {
    rn_device_facts f;
    printf("%s %-*d ", label, (int)(14 - strlen(label)), i);
    if (rn_device_facts_of(i, &f))
      print_device(&f);
    else
      printf("%s\n", rn_device_error());
  }
}

static void print_text(void) {
  const char *forced = getenv("RMSNORM_IMPL"), *on = rn_color(stdout) ? "\033[1m" : "", *off = *on ? "\033[0m" : "";
  const char *name;
  printf("%srmsnorm %s%s\n", on, rmsnorm_version_string(), off);
  if (rmsnorm_version() != RMSNORM_VERSION)
    printf("header          %d.%d.%d (the loaded library is another version)\n", RMSNORM_VERSION_MAJOR,
           RMSNORM_VERSION_MINOR, RMSNORM_VERSION_PATCH);
  printf("processor       %s\n", *rmsnorm_cpu_features() ? rmsnorm_cpu_features() : "no vector sets found");
  print_devices(RMSNORM_DEVICE_CUDA, "gpu");
  print_devices(RMSNORM_DEVICE_HIP, "amd gpu");
  printf("forced          %s\n", forced != NULL && *forced ? forced : "nothing (RMSNORM_IMPL is not set)");
  printf("\n%sImplementations, the first that takes a problem runs%s\n", on, off);
  for (int i = 0; (name = rmsnorm_impl_name(i)) != NULL; i++) {
    const char *why_not = rmsnorm_impl_why_not(i);
    printf("  %-12s  %s%s%s%s\n", name, why_not ? "no: " : "yes", why_not ? why_not : "",
           rmsnorm_impl_device(i) == RMSNORM_DEVICE_HIP ? "; " : "",
           rmsnorm_impl_device(i) == RMSNORM_DEVICE_HIP ? not_run : "");
  }
  printf("\n%sDefaults of `rmsnorm run`%s\n"
         "  eps           none: it belongs to the checkpoint and has to be given\n"
         "  preset        none: float32 throughout, one rounding at the end\n"
         "  output type   that of x\n"
         "  threads       as many as OpenMP gives\n",
         on, off);
  printf("\n%sPresets%s\n  %-16s  %6s %-8s %-8s %-8s %-8s %-14s %s\n", on, off, "name", "offset", "sum", "rstd", "xhat",
         "normed", "gate", "used by");
  for (int i = 0; (name = rmsnorm_preset_name(i)) != NULL; i++) {
    rmsnorm_numerics n;
    char gate[32];
    if (rmsnorm_preset(name, &n) != RMSNORM_OK) continue;
    snprintf(gate, sizeof gate, "%s%s", gates[n.gate], n.gate == 0 ? "" : n.gate_place == 0 ? " after" : " before");
    printf("  %-16s  %6g %-8s %-8s %-8s %-8s %-14s %s\n", name, (double)n.weight_offset, roundings[n.round_sum],
           roundings[n.round_rstd], roundings[n.round_xhat], roundings[n.round_normed], gate,
           rmsnorm_preset_families(i));
  }
}

static void put_key(const char *key, const char *text) {
  printf("\"%s\":", key);
  rn_json_put(stdout, text);
}

static void print_json_devices(int kind, const char *list, const char *none) {
  rn_device_choose(kind);
  const int count = rn_device_count();
  printf(",\"%s\":[", list);
  for (int i = 0; i < count; i++) {
    rn_device_facts f;
    const bool good = rn_device_facts_of(i, &f);
    printf("%s{", i ? "," : "");
    put_key("name", f.name);
    printf(",\"driver\":%d,\"capability\":[%d,%d],\"multiprocessors\":%d,\"memory_bytes\":%zu,\"l2_bytes\":%zu,",
           f.driver, f.major, f.minor, f.sms, f.memory_bytes, f.l2_bytes);
    put_key("arch", f.arch);
    putchar(',');
    put_key("error", good ? "" : rn_device_error());
    putchar('}');
  }
  printf("],");
  put_key(none, count ? "" : rn_device_error());
}

static void print_json(void) {
  const char *forced = getenv("RMSNORM_IMPL"), *name;
  printf("{\"format\":1,\"command\":\"info\",");
  put_key("version", rmsnorm_version_string());
  putchar(',');
  put_key("cpu_features", rmsnorm_cpu_features());
  putchar(',');
  put_key("forced", forced ? forced : "");
  print_json_devices(RMSNORM_DEVICE_CUDA, "gpus", "no_gpu");
  print_json_devices(RMSNORM_DEVICE_HIP, "amd_gpus", "no_amd_gpu");
  printf(",\"implementations\":[");
  for (int i = 0; (name = rmsnorm_impl_name(i)) != NULL; i++) {
    const char *why_not = rmsnorm_impl_why_not(i);
    printf("%s{", i ? "," : "");
    put_key("name", name);
    printf(",\"usable\":%s,", why_not ? "false" : "true");
    put_key("why_not", why_not ? why_not : "");
    putchar(',');
    put_key("note", rmsnorm_impl_device(i) == RMSNORM_DEVICE_HIP ? not_run : "");
    putchar('}');
  }
  printf("],\"presets\":[");
  for (int i = 0; (name = rmsnorm_preset_name(i)) != NULL; i++) {
    rmsnorm_numerics n;
    if (rmsnorm_preset(name, &n) != RMSNORM_OK) memset(&n, 0, sizeof n);
    printf("%s{", i ? "," : "");
    put_key("name", name);
    putchar(',');
    put_key("families", rmsnorm_preset_families(i));
    printf(",\"weight_offset\":%g,\"round_sum\":\"%s\",\"round_rstd\":\"%s\",\"round_xhat\":\"%s\",\"round_normed\":\"%"
           "s\","
           "\"gate\":\"%s\",\"gate_place\":\"%s\"}",
           (double)n.weight_offset, roundings[n.round_sum], roundings[n.round_rstd], roundings[n.round_xhat],
           roundings[n.round_normed], gates[n.gate], n.gate_place == RMSNORM_GATE_AFTER ? "after" : "before");
  }
  printf("]}\n");
}

int rn_cmd_info(int argc, char **argv) {
  static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {"json", no_argument, NULL, 'j'}, {0}};
  bool json = false;
  opterr = 0, optind = 1;
  for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    if (c == 'h') {
      help(stdout);
      return 0;
    }
    if (c != 'j') return rn_trouble("info", "unknown option %s. Try: rmsnorm info --help", argv[optind - 1]);
    json = true;
  }
  if (optind < argc) return rn_trouble("info", "takes no arguments, found '%s'", argv[optind]);
  if (json)
    print_json();
  else
    print_text();
  return 0;
}
