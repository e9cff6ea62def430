/* picture_shades.h - how far an element may be off for each mark and colour, the same on the terminal and in SVG.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_PICTURE_SHADES_H
#define RN_CLI_PICTURE_SHADES_H

#include "picture.h"

typedef struct rn_shade {
  uint64_t most; /* the largest distance with this shade */
  char mark;
  const char *name;
  const char *escape; /* on a terminal */
  const char *colour; /* in SVG */
} rn_shade;

enum { RN_SHADES = 7 };
extern const rn_shade rn_shades[RN_SHADES];

int rn_shade_of(const rn_cell *cell);

/* The first row (column) of a cell; for the number of cells: the end. */
int64_t rn_picture_row(const rn_picture *p, int cell);
int64_t rn_picture_col(const rn_picture *p, int cell);

#endif /* RN_CLI_PICTURE_SHADES_H */
