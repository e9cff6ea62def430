/* options.c - see options.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "gpu.h"
#include "message.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rn_options(const char *command, int argc, char **argv, const rn_option *table, const char *help) {
  enum { FIRST = 256 };
  struct option options[RN_OPTIONS_MOST + 2];
  int count = 0;
  memset(options, 0, sizeof options);
  for (; count < RN_OPTIONS_MOST && table[count].name; count++) {
    options[count].name = table[count].name;
    options[count].has_arg = table[count].wants ? required_argument : no_argument;
    options[count].val = FIRST + count;
  }
  options[count].name = "help", options[count].val = 'h';
  opterr = 0, optind = 1;
  for (int found; (found = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
    if (found == 'h') {
      fputs(help, stdout);
      return 0;
    }
    if (found == ':') return rn_trouble(command, "%s wants a value. Try: rmsnorm %s --help", argv[optind - 1], command);
    if (found < FIRST)
      return rn_trouble(command, "unknown option %s. Try: rmsnorm %s --help", argv[optind - 1], command);
    const rn_option *o = &table[found - FIRST];
    if (!o->take(o->wants ? optarg : NULL, o->to))
      return rn_trouble(command, "--%s wants %s, found '%s'. Try: rmsnorm %s --help", o->name, o->wants, optarg,
                        command);
  }
  if (optind < argc)
    return rn_trouble(command, "'%s' was not expected; options only. Try: rmsnorm %s --help", argv[optind], command);
  return -1;
}

bool rn_take_flag(const char *text, void *to) {
  (void)text;
  return *(bool *)to = true;
}

bool rn_take_text(const char *text, void *to) {
  *(const char **)to = text;
  return true;
}

bool rn_take_seed(const char *text, void *to) {
  char *end;
  errno = 0;
  *(uint64_t *)to = strtoull(text, &end, 0);
  return !errno && !*end && end != text && *text != '-';
}

bool rn_take_count(const char *text, void *to) {
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 10);
  int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  if (shift) end++;
  if (errno || *end || end == text || v < 1 || v > INT64_MAX >> (shift + 1)) return false;
  *(int64_t *)to = (int64_t)v << shift;
  return true;
}

bool rn_take_seconds(const char *text, void *to) {
  char *end;
  double *seconds = to;
  *seconds = strtod(text, &end);
  return end != text && !*end && *seconds > 0 && *seconds < 3600;
}

bool rn_take_where(const char *text, void *to) {
  return rn_where_parse(text, to);
}

bool rn_take_list(const char *text, rn_list *list, bool (*take)(const char *, void *)) {
  char word[64];
  list->count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), at);
    if (list->count == RN_LIST_MOST || length >= sizeof word || !take(word, &list->value[list->count])) return false;
    list->count++;
    at += length;
    if (!*at) return true;
  }
}

bool rn_list_has(const rn_list *list, int64_t value) {
  for (int i = 0; i < list->count; i++)
    if (list->value[i] == value) return true;
  return false;
}
