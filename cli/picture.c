/* picture.c - the cells of a picture, and the picture on a terminal.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"
#include "measure_parts.h"
#include "message.h"
#include "picture_shades.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const rn_shade rn_shades[] = {
    {0, '.', "equal", "\033[2m", "#eef1f4"},
    {1, '-', "1 ulp", "\033[36m", "#7fc8d8"},
    {4, '+', "to 4", "\033[32m", "#8cc36c"},
    {32, 'x', "to 32", "\033[33m", "#f0c048"},
    {1024, '*', "to 1024", "\033[31m", "#e8743b"},
    {UINT64_MAX - 1, '#', "more", "\033[1;31m", "#c01f2e"},
    {UINT64_MAX, '!', "NaN or Inf on one side", "\033[1;35m", "#8a2be2"},
};

int rn_shade_of(const rn_cell *cell) {
  int shade = 0;
  if (cell->nonfinite) return RN_SHADES - 1;
  while (cell->ulp > rn_shades[shade].most) shade++;
  return shade;
}

bool rn_picture_make(rn_picture *p, const rn_tensor *a, const rn_tensor *b, int cell_rows, int cell_cols, FILE *err) {
  rn_pair pair;
  memset(p, 0, sizeof *p);
  if (!rn_pair_open(&pair, a, b, err)) return false;
  p->dtype = pair.dtype, p->rows = pair.rows, p->cols = pair.cols;
  p->cell_rows = (int)(p->rows < cell_rows ? p->rows : cell_rows);
  p->cell_cols = (int)(p->cols < cell_cols ? p->cols : cell_cols);
  p->cells = calloc((size_t)p->cell_rows * (size_t)p->cell_cols + 1, sizeof *p->cells);
  if (p->cells == NULL) fprintf(err, "there is no memory for the picture\n");
  for (int64_t r = 0; r < p->rows && p->cells != NULL; r++) {
    rn_cell *line = p->cells + r * p->cell_rows / p->rows * p->cell_cols;
    rn_pair_row(&pair, r);
    for (int64_t c = 0; c < p->cols; c++) {
      rn_cell *cell = line + c * p->cell_cols / p->cols;
      const int64_t gap = pair.gap[c];
      cell->elements++;
      if (gap == 0) continue;
      cell->differ++;
      if (gap == RN_GAP_NONFINITE) {
        cell->nonfinite = true;
        continue;
      }
      const uint64_t ulp = (uint64_t)(gap < 0 ? -gap : gap);
      if (ulp > cell->ulp) cell->ulp = ulp;
    }
  }
  rn_pair_close(&pair);
  return p->cells != NULL;
}

void rn_picture_free(rn_picture *p) {
  free(p->cells);
  memset(p, 0, sizeof *p);
}

int64_t rn_picture_row(const rn_picture *p, int cell) {
  return (cell * p->rows + p->cell_rows - 1) / p->cell_rows;
}
int64_t rn_picture_col(const rn_picture *p, int cell) {
  return (cell * p->cols + p->cell_cols - 1) / p->cell_cols;
}

static void print_line(FILE *out, const rn_picture *p, int line, bool colour) {
  int last = -1;
  for (int c = 0; c < p->cell_cols; c++) {
    const int shade = rn_shade_of(&p->cells[line * p->cell_cols + c]);
    if (colour && shade != last) fprintf(out, "\033[0m%s", rn_shades[shade].escape);
    fputc(rn_shades[shade].mark, out);
    last = shade;
  }
  if (colour && last >= 0) fprintf(out, "\033[0m");
  fputc('\n', out);
}

void rn_picture_print(FILE *out, const rn_picture *p) {
  const bool colour = rn_color(out);
  bool used[RN_SHADES] = {false};
  char label[24];
  if (p->cell_rows == 0 || p->cell_cols == 0) return;
  const int width = snprintf(label, sizeof label, "%" PRId64, p->rows - 1);
  const int end = snprintf(label, sizeof label, "%" PRId64, p->cols - 1);
  fprintf(out, "%*s 0%*" PRId64 "  columns\n", width, "", p->cell_cols > end + 1 ? p->cell_cols - 1 : end + 1,
          p->cols - 1);
  for (int r = 0; r < p->cell_rows; r++) {
    fprintf(out, "%*" PRId64 " ", width, rn_picture_row(p, r));
    print_line(out, p, r, colour);
    for (int c = 0; c < p->cell_cols; c++) used[rn_shade_of(&p->cells[r * p->cell_cols + c])] = true;
  }
  fprintf(out, "%*s ", width, "");
  const char *comma = "";
  for (int i = 0; i < RN_SHADES; i++) {
    if (!used[i]) continue;
    fprintf(out, "%s%s%c%s %s", comma, colour ? rn_shades[i].escape : "", rn_shades[i].mark, colour ? "\033[0m" : "",
            rn_shades[i].name);
    comma = ", ";
  }
  fprintf(out, "; the worst of each cell, in ulp of %s\n", rmsnorm_dtype_name(p->dtype));
}
