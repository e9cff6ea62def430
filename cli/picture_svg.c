/* picture_svg.c - the picture as plain SVG: colour tells how far, opacity how many.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "picture_shades.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 640, LEFT = 70, RIGHT = 20, TOP = 56, BOTTOM = 64, LEAST = 4, MOST = 24, STEPS = 5 };

/* Text from outside: what XML gives a meaning, and control characters, are taken out of it. */
static void put_text(FILE *out, const char *text) {
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '<')
      fputs("&lt;", out);
    else if (c == '>')
      fputs("&gt;", out);
    else if (c == '&')
      fputs("&amp;", out);
    else
      fputc(c < 0x20 || c == 0x7f ? '?' : c, out);
  }
}

/* Paleness in steps, so that cells that look the same make one path, and neighbours one rectangle of it. */
static int pale(const rn_cell *cell) {
  const double share = (double)cell->differ / (double)cell->elements;
  return (int)ceil(STEPS * sqrt(share));
}

static bool looks(const rn_picture *p, int r, int c, int shade, int step) {
  const rn_cell *cell = &p->cells[r * p->cell_cols + c];
  return rn_shade_of(cell) == shade && pale(cell) == step;
}

static void put_cells(FILE *out, const rn_picture *p, int shade, int step) {
  bool any = false;
  for (int r = 0; r < p->cell_rows; r++)
    for (int c = 0, end; c < p->cell_cols; c = end) {
      for (end = c; end < p->cell_cols && looks(p, r, end, shade, step); end++) {
      }
      if (end == c) {
        end++;
        continue;
      }
      if (!any)
        fprintf(out, "<path fill='%s' fill-opacity='%.2f' d='", rn_shades[shade].colour,
                0.3 + 0.7 * step / (double)STEPS);
      any = true;
      fprintf(out, "M%d %dh%dv1h-%dz", c, r, end - c, end - c);
    }
  if (any) fprintf(out, "'/>\n");
}

static void put_axes(FILE *out, const rn_picture *p, int height) {
  fprintf(out, "<g font-size='11' fill='#444'>\n<text x='%d' y='%d'>0</text>\n", LEFT, TOP - 6);
  fprintf(out, "<text x='%d' y='%d' text-anchor='middle'>columns</text>\n", LEFT + WIDTH / 2, TOP - 6);
  fprintf(out, "<text x='%d' y='%d' text-anchor='end'>%" PRId64 "</text>\n", LEFT + WIDTH, TOP - 6, p->cols - 1);
  fprintf(out, "<text x='%d' y='%d' text-anchor='end'>0</text>\n", LEFT - 6, TOP + 10);
  if (p->rows > 1)
    fprintf(out, "<text x='%d' y='%d' text-anchor='end'>%" PRId64 "</text>\n", LEFT - 6, TOP + height, p->rows - 1);
  if (height > 40) fprintf(out, "<text x='%d' y='%d' text-anchor='end'>rows</text>\n", LEFT - 6, TOP + height / 2 + 4);
  fprintf(out, "</g>\n");
}

static void put_legend(FILE *out, const rn_picture *p, int y) {
  int x = LEFT;
  fprintf(out, "<g font-size='11' fill='#444'>\n");
  for (int i = 0; i < RN_SHADES; i++) {
    fprintf(out, "<rect x='%d' y='%d' width='12' height='12' fill='%s'/><text x='%d' y='%d'>%s</text>\n", x, y,
            rn_shades[i].colour, x + 16, y + 10, rn_shades[i].name);
    x += 34 + 7 * (int)strlen(rn_shades[i].name);
  }
  fprintf(out,
          "<text x='%d' y='%d'>worst element of each cell, in ulp of %s; the paler, the fewer differ</text>\n</g>\n",
          LEFT, y + 28, rmsnorm_dtype_name(p->dtype));
}

bool rn_picture_svg(FILE *out, const rn_picture *p, const char *title) {
  double side = p->cell_rows > 0 ? (double)WIDTH / 2 / p->cell_rows : MOST;
  side = side < LEAST ? LEAST : side > MOST ? MOST : side;
  const double wide = p->cell_cols > 0 ? (double)WIDTH / p->cell_cols : 0;
  const int height = (int)ceil(side * p->cell_rows);
  fprintf(out, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif'>\n",
          LEFT + WIDTH + RIGHT, TOP + height + BOTTOM);
  fprintf(out, "<rect width='100%%' height='100%%' fill='white'/>\n<text x='%d' y='24' font-size='15'>", LEFT);
  put_text(out, title);
  fprintf(out, "</text>\n<rect x='%d' y='%d' width='%d' height='%d' fill='%s'/>\n", LEFT, TOP, WIDTH, height,
          rn_shades[0].colour);
  fprintf(out, "<g transform='translate(%d %d) scale(%.4f %.4f)' shape-rendering='crispEdges'>\n", LEFT, TOP, wide,
          side);
  for (int shade = 1; shade < RN_SHADES; shade++)
    for (int step = 1; step <= STEPS; step++) put_cells(out, p, shade, step);
  fprintf(out, "</g>\n");
  put_axes(out, p, height);
  put_legend(out, p, TOP + height + 16);
  fprintf(out, "</svg>\n");
  return !ferror(out);
}

bool rn_picture_svg_file(const char *path, const rn_tensor *a, const rn_tensor *b, const char *title, FILE *err) {
  rn_picture p;
  if (!rn_picture_make(&p, a, b, RN_PICTURE_SVG_ROWS, RN_PICTURE_SVG_COLS, err)) return false;
  FILE *out = fopen(path, "w");
  bool good = out != NULL && rn_picture_svg(out, &p, title);
  if (out != NULL) good = fclose(out) == 0 && good;
  if (!good) fprintf(err, "%s: can not be written: %s\n", path, strerror(errno));
  rn_picture_free(&p);
  return good;
}
