/* picture.h - where in the row-by-column plane two arrays differ: a small picture for the terminal, and as SVG.
 *
 * The plane is cut into cells; a cell tells the largest distance in it and the share of its elements that differ.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_PICTURE_H
#define RN_CLI_PICTURE_H

#include "files.h"

typedef struct rn_cell {
  int64_t elements, differ;
  uint64_t ulp;   /* the largest distance */
  bool nonfinite; /* a NaN or an infinity on one side only */
} rn_cell;

typedef struct rn_picture {
  int dtype;          /* the type whose ulps are meant, see measure.h */
  int64_t rows, cols; /* of the plane */
  int cell_rows, cell_cols;
  rn_cell *cells; /* owned, [cell_rows][cell_cols] */
} rn_picture;

/* Sizes that fit: a terminal of 80 columns, a figure in a report. */
enum { RN_PICTURE_TEXT_ROWS = 16, RN_PICTURE_TEXT_COLS = 64, RN_PICTURE_SVG_ROWS = 64, RN_PICTURE_SVG_COLS = 128 };

/* rn_picture_make - at most cell_rows x cell_cols cells, fewer when the plane is smaller. False: a message went to err
 * (as of rn_measure), nothing needs to be freed. */
bool rn_picture_make(rn_picture *p, const rn_tensor *a, const rn_tensor *b, int cell_rows, int cell_cols, FILE *err);
void rn_picture_free(rn_picture *p);

/* rn_picture_print - for a terminal: in colour where rn_color(out) says so, otherwise in plain characters; with a
 * legend below. */
void rn_picture_print(FILE *out, const rn_picture *p);

/* rn_picture_svg - the whole SVG document; false when writing failed. rn_picture_svg_file - the same, of two tensors,
 * into the file `path`; a message goes to err when that fails. */
bool rn_picture_svg(FILE *out, const rn_picture *p, const char *title);
bool rn_picture_svg_file(const char *path, const rn_tensor *a, const rn_tensor *b, const char *title, FILE *err);

#endif /* RN_CLI_PICTURE_H */
