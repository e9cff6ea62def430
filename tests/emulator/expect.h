/* expect.h - the few words that the tests of the emulator need.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_EXPECT_H
#define RN_EMULATED_EXPECT_H

#include <cstdio>
#include <cstring>

inline int failures;

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                                   \
      failures++;                                                                                                      \
    }                                                                                                                  \
  } while (0)

/* text (NULL: nothing went wrong) contains part; part NULL: nothing may have gone wrong. */
static inline void expect_text(const char *file, int line, const char *text, const char *part) {
  if (part ? text && strstr(text, part) : !text) return;
  printf("%s:%d: expected \"%s\", got \"%s\"\n", file, line, part ? part : "no fault", text ? text : "no fault");
  failures++;
}
#define EXPECT_TEXT(text, part) expect_text(__FILE__, __LINE__, text, part)

#endif /* RN_EMULATED_EXPECT_H */
