/* message.h - how the command speaks: colour only where it is wanted, and every refusal in one form.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_MESSAGE_H
#define RN_CLI_MESSAGE_H

#include <stdbool.h>
#include <stdio.h>

/* rn_color_option - "auto", "always" or "never"; false for anything else. */
bool rn_color_option(const char *when);
/* rn_color - whether to colour this stream: --color decides, then NO_COLOR, then whether it is a terminal. */
bool rn_color(FILE *stream);

/* rn_trouble - "rmsnorm COMMAND: message" on stderr. Always returns 2, the exit status of trouble. The message says
 * what was expected, what was found and what to try next. */
int rn_trouble(const char *command, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#endif /* RN_CLI_MESSAGE_H */
