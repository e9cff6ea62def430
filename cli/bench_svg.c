/* bench_svg.c - the chart of a benchmark: fraction of the copy limit against cols, as plain SVG.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <math.h>

enum { WIDTH = 760, PANEL = 330, LEFT = 60, RIGHT = 170, TOP = 40, BOTTOM = 40 };

static const char *const colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                                      "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

static bool same_panel(const rn_bench_cell *a, const rn_bench_cell *b) {
  return a->set_bytes == b->set_bytes && a->threads == b->threads;
}
static bool same_line(const rn_bench_cell *a, const rn_bench_cell *b) {
  return a->op == b->op && a->dtype == b->dtype;
}

/* The first cell of its panel, or of its line within the panel. */
static bool is_first(const rn_bench_cell *cells, int i, bool line) {
  for (int k = 0; k < i; k++)
    if (same_panel(&cells[k], &cells[i]) && (!line || same_line(&cells[k], &cells[i]))) return false;
  return true;
}

static double fraction(const rn_bench_cell *c) {
  return c->least[rn_bench_best_copy(c)] / c->least[RN_BENCH_LIBRARY];
}

typedef struct scale {
  double low, high; /* log2 of cols */
  int top;
} scale;
static double x_of(const scale *s, double cols) {
  double span = s->high > s->low ? s->high - s->low : 1;
  return LEFT + (log2(cols) - s->low) / span * (WIDTH - LEFT - RIGHT);
}
static double y_of(const scale *s, double f) {
  double part = f > 1.2 ? 1 : f / 1.2;
  return s->top + PANEL - BOTTOM - part * (PANEL - TOP - BOTTOM);
}

static void panel(FILE *out, const rn_bench_cell *cells, int count, int first, const scale *s) {
  const rn_bench_cell *f = &cells[first];
  fprintf(out, "<text x='%d' y='%d' font-size='14'>fraction of the copy limit, %.6g KiB, %d thread%s</text>\n", LEFT,
          s->top + 24, (double)f->set_bytes / 1024, f->threads, f->threads == 1 ? "" : "s");
  for (int tick = 0; tick <= 6; tick++) {
    double y = y_of(s, 0.2 * tick);
    fprintf(out, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='%s'/>\n", LEFT, WIDTH - RIGHT, y, y,
            tick == 5 ? "#444" : "#ddd");
    fprintf(out, "<text x='%d' y='%.1f' font-size='11' text-anchor='end'>%.1f</text>\n", LEFT - 6, y + 4, 0.2 * tick);
  }
  for (int e = (int)ceil(s->low); e <= (int)floor(s->high); e++)
    fprintf(out, "<text x='%.1f' y='%d' font-size='11' text-anchor='middle'>%lld</text>\n", x_of(s, ldexp(1, e)),
            s->top + PANEL - BOTTOM + 18, 1ll << e);
  int lines = 0;
  for (int i = first; i < count; i++) {
    if (!same_panel(&cells[i], f) || !is_first(cells, i, true)) continue;
    const char *colour = colours[lines % COLOURS];
    fprintf(out, "<polyline fill='none' stroke='%s' stroke-width='2'%s points='", colour,
            lines >= COLOURS ? " stroke-dasharray='5 3'" : "");
    for (int k = i; k < count; k++)
      if (same_panel(&cells[k], f) && same_line(&cells[k], &cells[i]))
        fprintf(out, "%.1f,%.1f ", x_of(s, (double)cells[k].cols), y_of(s, fraction(&cells[k])));
    fprintf(out, "'/>\n");
    for (int k = i; k < count; k++)
      if (same_panel(&cells[k], f) && same_line(&cells[k], &cells[i]))
        fprintf(out, "<circle cx='%.1f' cy='%.1f' r='3' fill='%s'><title>%lld columns: %.3f</title></circle>\n",
                x_of(s, (double)cells[k].cols), y_of(s, fraction(&cells[k])), colour, (long long)cells[k].cols,
                fraction(&cells[k]));
    fprintf(out, "<text x='%d' y='%d' font-size='12' fill='%s'>%s %s</text>\n", WIDTH - RIGHT + 12,
            s->top + TOP + 12 + 16 * lines, colour, rn_bench_op_names[cells[i].op], rmsnorm_dtype_name(cells[i].dtype));
    lines++;
  }
}

bool rn_bench_svg(FILE *out, const rn_bench_cell *cells, int count) {
  scale s = {1e9, -1e9, 0};
  int panels = 0;
  for (int i = 0; i < count; i++) {
    double at = log2((double)cells[i].cols);
    if (at < s.low) s.low = at;
    if (at > s.high) s.high = at;
    panels += is_first(cells, i, false);
  }
  fprintf(out, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif'>\n", WIDTH,
          PANEL * panels);
  fprintf(out, "<rect width='100%%' height='100%%' fill='white'/>\n");
  for (int i = 0; i < count; i++)
    if (is_first(cells, i, false)) {
      panel(out, cells, count, i, &s);
      s.top += PANEL;
    }
  fprintf(out, "</svg>\n");
  return !ferror(out);
}
