/* message.c - see message.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "message.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum { AUTO, ALWAYS, NEVER } color = AUTO;

bool rn_color_option(const char *when) {
  if (strcmp(when, "auto") == 0)
    color = AUTO;
  else if (strcmp(when, "always") == 0)
    color = ALWAYS;
  else if (strcmp(when, "never") == 0)
    color = NEVER;
  else
    return false;
  return true;
}

bool rn_color(FILE *stream) {
  const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");
  if (color != AUTO) return color == ALWAYS;
  if (no != NULL && *no != 0) return false;
  return isatty(fileno(stream)) && (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

int rn_trouble(const char *command, const char *format, ...) {
  const bool bright = rn_color(stderr);
  va_list list;
  fprintf(stderr, "%srmsnorm%s%s:%s ", bright ? "\033[1;31m" : "", *command ? " " : "", command,
          bright ? "\033[0m" : "");
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fputc('\n', stderr);
  return 2;
}
