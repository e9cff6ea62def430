/* options.h - the options of the subcommands that have nothing but options: a table, and one loop for all of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_OPTIONS_H
#define RN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rn_option {
  const char *name; /* without its dashes; NULL ends the table */
  /* Puts what the text says into *to; false when it does not fit. text is NULL for an option without a value. */
  bool (*take)(const char *text, void *to);
  void *to;
  const char *wants; /* what its value is, for messages: "--rows wants ..."; NULL = it has none */
} rn_option;

enum { RN_OPTIONS_MOST = 32 };

/* rn_options - -1: go on; otherwise the exit status: 0 after --help, 2 after a message. */
int rn_options(const char *command, int argc, char **argv, const rn_option *table, const char *help);

bool rn_take_flag(const char *text, void *to);    /* bool: true */
bool rn_take_text(const char *text, void *to);    /* const char * */
bool rn_take_seed(const char *text, void *to);    /* uint64_t, decimal or 0x... */
bool rn_take_count(const char *text, void *to);   /* int64_t from 1; K, M and G allowed */
bool rn_take_seconds(const char *text, void *to); /* double, > 0 */
bool rn_take_where(const char *text, void *to);   /* rn_where */

/* A list of numbers or words, separated by commas: each is taken by itself. */
enum { RN_LIST_MOST = 32 };
typedef struct rn_list {
  int64_t value[RN_LIST_MOST];
  int count;
} rn_list;
bool rn_take_list(const char *text, rn_list *list, bool (*take)(const char *word, void *to));
bool rn_list_has(const rn_list *list, int64_t value);

#endif /* RN_CLI_OPTIONS_H */
