/* commands.h - the subcommands of the `rmsnorm` command. Each takes its own argv (argv[0] is the subcommand's name) and
 * returns the exit status: 0 fine, 1 the answer is no (differences, limits missed), 2 trouble (usage, memory, files).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_COMMANDS_H
#define RN_COMMANDS_H

int rn_cmd_run(int argc, char **argv);
int rn_cmd_check(int argc, char **argv);
int rn_cmd_bench(int argc, char **argv);
int rn_cmd_bisect(int argc, char **argv);
int rn_cmd_diff(int argc, char **argv);
int rn_cmd_info(int argc, char **argv);

#endif /* RN_COMMANDS_H */
