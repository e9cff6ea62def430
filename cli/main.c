/* main.c - the command `rmsnorm`: find the subcommand and hand over to it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "message.h"
#include "rmsnorm.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *what;
} commands[] = {
    {"run", rn_cmd_run, "normalise a tensor from a file"},
    {"check", rn_cmd_check, "check every implementation on this machine"},
    {"bench", rn_cmd_bench, "time them beside a copy of the same bytes"},
    {"diff", rn_cmd_diff, "say why two norms differ"},
    {"bisect", rn_cmd_bisect, "find the first norm of a model that is at fault"},
    {"info", rn_cmd_info, "version, processor, implementations, presets"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *out) {
  fputs("Examples:\n"
        "  rmsnorm run x.npy --weight w.npy --eps 1e-5 --preset llama -o y.npy\n"
        "  rmsnorm check\n"
        "  rmsnorm diff theirs.npy --x x.npy --weight w.npy --eps 1e-5 --preset llama\n"
        "\n"
        "Usage: rmsnorm COMMAND [OPTION]...\n"
        "\n"
        "Root-mean-square normalisation, y = x * rsqrt(mean(x^2) + eps) * weight, with the same bits everywhere.\n"
        "\n"
        "Commands:\n",
        out);
  for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-7s %s\n", commands[i].name, commands[i].what);
  fputs("  help    this text; help COMMAND: that command's own\n"
        "\n"
        "Options everywhere:\n"
        "  --help              worked examples, then every option\n"
        "  --color WHEN        auto (a terminal, and NO_COLOR not set), always, never\n"
        "  --version           print the version\n"
        "\n"
        "Exit status: 0 fine, 1 the answer is no (something differs), 2 trouble (usage, files).\n",
        out);
}

static int run(const char *name, int argc, char **argv) {
  for (int i = 0; i < COMMANDS; i++)
    if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc, argv);
  return rn_trouble(
      "", "there is no command '%s'; expected run, check, bench, diff, bisect, info or help. Try: rmsnorm --help",
      name);
}

/* Take --color out of the arguments, wherever it stands, so that no subcommand has to know it. */
static bool take_color(int *argc, char **argv) {
  int kept = 1;
  bool good = true;
  for (int i = 1; i < *argc; i++) {
    if (strcmp(argv[i], "--") == 0) {
      while (i < *argc) argv[kept++] = argv[i++];
    } else if (strncmp(argv[i], "--color=", 8) == 0) {
      good = rn_color_option(argv[i] + 8) && good;
    } else if (strcmp(argv[i], "--color") == 0) {
      good = ++i < *argc && rn_color_option(argv[i]) && good;
    } else {
      argv[kept++] = argv[i];
    }
  }
  argv[kept] = NULL;
  *argc = kept;
  return good;
}

int main(int argc, char **argv) {
  if (argc < 1) return 2;
  if (!take_color(&argc, argv)) return rn_trouble("", "--color wants auto, always or never");
  const char *name = argc > 1 ? argv[1] : "";
  int status = 0;
  if (argc < 2) {
    help(stderr);
    return 2;
  }
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
    printf("rmsnorm %s\n", rmsnorm_version_string());
  } else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (strcmp(name, "help") == 0 && argc == 2)) {
    help(stdout);
  } else if (strcmp(name, "help") == 0) {
    char option[] = "--help";
    char *arguments[] = {argv[2], option, NULL};
    status = run(argv[2], 2, arguments);
  } else {
    status = run(name, argc - 1, argv + 1);
  }
  /* A full disk behind stdout must not look like success. */
  if (fflush(stdout) != 0 || ferror(stdout)) {
    rn_trouble("", "the output could not be written");
    return 2;
  }
  return status;
}
