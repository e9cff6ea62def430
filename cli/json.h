/* json.h - as much JSON as the header of a safetensors file needs, and the escaping that our own output needs.
 *
 * Written here and not taken from a library: the command is cross-compiled for other processors in the tests and must
 * build where nothing but a C compiler is installed, and a bounded reader that never builds a tree is smaller than the
 * care a tree-building library wants (recursion, numbers as double, memory many times the header). It is fuzzed through
 * the safetensors reader.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_JSON_H
#define RN_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A place in a text. Every reader below returns false (NULL) on anything unexpected and leaves `wrong` saying what. */
typedef struct rn_json {
  const char *at, *end;
  const char *wrong;
} rn_json;

/* rn_json_peek - the next character that is not space, 0 at the end. */
char rn_json_peek(rn_json *json);
/* rn_json_take - that character, which has to be c. */
bool rn_json_take(rn_json *json, char c);
/* rn_json_more - inside { } or [ ]: true when another member follows (its comma taken), false at the closing bracket
 * (taken) or on an error (`wrong` set). `first` has to be true before the first member. */
bool rn_json_more(rn_json *json, char close, bool *first);
/* rn_json_string - a string, unescaped, as UTF-8; the caller frees it. Zero bytes are refused. */
char *rn_json_string(rn_json *json);
/* rn_json_count - a whole number from 0 to 2^63 - 1, without fraction or exponent. */
bool rn_json_count(rn_json *json, int64_t *value);
/* rn_json_skip - any value, nested at most `depth` deep. */
bool rn_json_skip(rn_json *json, int depth);

/* rn_json_put - text as a JSON string, with its quotes. */
void rn_json_put(FILE *out, const char *text);

#endif /* RN_CLI_JSON_H */
