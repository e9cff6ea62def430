/* json.c - see json.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdlib.h>
#include <string.h>

static bool fail(rn_json *json, const char *wrong) {
  if (json->wrong == NULL) json->wrong = wrong;
  return false;
}

char rn_json_peek(rn_json *json) {
  while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
    json->at++;
  return json->at < json->end ? *json->at : 0;
}

bool rn_json_take(rn_json *json, char c) {
  if (rn_json_peek(json) != c) return fail(json, "another punctuation mark was expected");
  json->at++;
  return true;
}

bool rn_json_more(rn_json *json, char close, bool *first) {
  if (json->wrong != NULL) return false;
  if (rn_json_peek(json) == close) {
    json->at++;
    return false;
  }
  if (*first) {
    *first = false;
    return true;
  }
  if (!rn_json_take(json, ',')) return false;
  if (rn_json_peek(json) == close) return fail(json, "a comma with nothing behind it");
  return true;
}

/* Four hexadecimal digits; -1 when they are not. */
static long hex4(const char *at, const char *end) {
  long value = 0;
  if (end - at < 4) return -1;
  for (int i = 0; i < 4; i++) {
    const char c = at[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static char *put_utf8(char *out, long code) {
  if (code < 0x80) {
    *out++ = (char)code;
  } else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  } else {
    *out++ = (char)(0xf0 | code >> 18);
    *out++ = (char)(0x80 | (code >> 12 & 63));
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  }
  return out;
}

/* The character behind a backslash; false when there is no such escape. */
static bool unescape(rn_json *json, char **out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (json->at == json->end) return false;
  const char c = *json->at++;
  const char *known = c ? strchr(from, c) : NULL;
  if (known != NULL) {
    *(*out)++ = to[known - from];
    return true;
  }
  if (c != 'u') return false;
  long code = hex4(json->at, json->end);
  if (code <= 0) return false; /* a zero would end a C string early: two names could then look alike */
  json->at += 4;
  if (code >= 0xd800 && code < 0xe000) { /* half of a pair */
    if (code >= 0xdc00 || json->end - json->at < 6 || json->at[0] != '\\' || json->at[1] != 'u') return false;
    const long low = hex4(json->at + 2, json->end);
    if (low < 0xdc00 || low >= 0xe000) return false;
    json->at += 6;
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  *out = put_utf8(*out, code);
  return true;
}

char *rn_json_string(rn_json *json) {
  if (!rn_json_take(json, '"')) return NULL;
  const char *close = json->at;
  while (close < json->end && *close != '"') close += *close == '\\' && json->end - close > 1 ? 2 : 1;
  if (close >= json->end) {
    fail(json, "a string without its end");
    return NULL;
  }
  char *text = malloc((size_t)(close - json->at) + 1); /* unescaping never makes a string longer */
  if (text == NULL) {
    fail(json, "out of memory");
    return NULL;
  }
  char *out = text;
  while (json->at < close) {
    const char c = *json->at++;
    if ((unsigned char)c < 0x20) {
      fail(json, "a control character in a string");
      break;
    }
    if (c != '\\') {
      *out++ = c;
    } else if (!unescape(json, &out)) {
      fail(json, "a backslash with something unknown behind it");
      break;
    }
  }
  *out = 0;
  if (json->wrong != NULL) {
    free(text);
    return NULL;
  }
  json->at = close + 1;
  return text;
}

bool rn_json_count(rn_json *json, int64_t *value) {
  const char first = rn_json_peek(json);
  if (first < '0' || first > '9') return fail(json, "a whole number of 0 or more was expected");
  *value = 0;
  const char *start = json->at;
  for (; json->at < json->end && *json->at >= '0' && *json->at <= '9'; json->at++) {
    const int digit = *json->at - '0';
    if (*value > (INT64_MAX - digit) / 10) return fail(json, "a number too large");
    *value = *value * 10 + digit;
  }
  if (first == '0' && json->at - start > 1) return fail(json, "a number with a leading zero");
  if (json->at < json->end && (*json->at == '.' || *json->at == 'e' || *json->at == 'E'))
    return fail(json, "a whole number was expected");
  return true;
}

bool rn_json_skip(rn_json *json, int depth) {
  const char c = rn_json_peek(json);
  if (c == '"') {
    char *text = rn_json_string(json);
    free(text);
    return text != NULL;
  }
  if (c == '{' || c == '[') {
    bool first = true;
    if (depth == 0) return fail(json, "nested too deeply");
    json->at++;
    while (rn_json_more(json, c == '{' ? '}' : ']', &first)) {
      if (c == '{') {
        char *key = rn_json_string(json);
        free(key);
        if (key == NULL || !rn_json_take(json, ':')) return false;
      }
      if (!rn_json_skip(json, depth - 1)) return false;
    }
    return json->wrong == NULL;
  }
  /* A number or one of the three words: the value is not looked at, only where it ends. */
  const char *start = json->at;
  while (json->at < json->end && *json->at != 0 &&
         strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *json->at) != NULL)
    json->at++;
  return json->at > start || fail(json, "a value was expected");
}

void rn_json_put(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      fprintf(out, "\\%c", c);
    else if (c < 0x20 || c == 0x7f)
      fprintf(out, "\\u%04x", c);
    else
      fputc(c, out);
  }
  fputc('"', out);
}
