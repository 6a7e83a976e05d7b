// SPDX-License-Identifier: Apache-2.0
#include "picture.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "output.hpp"
#include "png.hpp"

namespace keysieve::cli {
namespace {

constexpr int64_t kPlotWidth = 1024;  // pixels, and at most this many columns of cells
constexpr int64_t kMaxRows = 512;
constexpr int64_t kMinPlotHeight = 256;
constexpr int64_t kProfileHeight = 48;
constexpr int64_t kLeft = 76;
constexpr int64_t kTop = 72;
constexpr int64_t kGap = 10;  // between the profile and the plot
constexpr int64_t kRight = 24;
constexpr int64_t kBottom = 92;

constexpr uint8_t kNothingPicked = 0;
constexpr uint8_t kNoKeys = 1;
constexpr uint8_t kFirstShade = 2;
constexpr int kShades = 14;
constexpr Colour kAccent = {46, 134, 222, 255};
constexpr const char* kText = "#808891";  // reads on white and on near-black

/// Cells of equal size that cover a selection.
struct Grid {
  int64_t cell_keys = 1;
  int64_t cell_rows = 1;
  int64_t columns = 0;
  int64_t rows = 0;
  std::vector<int64_t> pairs;   // valid query-key pairs of a cell
  std::vector<int64_t> picked;  // of them picked
  double top_share = 0;         // highest picked / pairs

  [[nodiscard]] size_t cell(int64_t row, int64_t column) const { return static_cast<size_t>(row * columns + column); }
  [[nodiscard]] double share(size_t cell) const {
    return pairs[cell] == 0 ? 0.0 : static_cast<double>(picked[cell]) / static_cast<double>(pairs[cell]);
  }
};

Grid make_grid(const PictureInput& input) {
  const Selection& selection = *input.selection;
  Grid grid;
  grid.cell_keys = std::max<int64_t>((input.num_keys + kPlotWidth - 1) / kPlotWidth, 1);
  grid.cell_rows = std::max<int64_t>((selection.num_rows + kMaxRows - 1) / kMaxRows, 1);
  grid.columns = std::max<int64_t>((input.num_keys + grid.cell_keys - 1) / grid.cell_keys, 1);
  grid.rows = std::max<int64_t>((selection.num_rows + grid.cell_rows - 1) / grid.cell_rows, 1);
  grid.pairs.assign(static_cast<size_t>(grid.rows * grid.columns), 0);
  grid.picked = grid.pairs;
  for (int64_t t = 0; t < selection.num_rows; ++t) {
    const KeyRange range = input.ranges[static_cast<size_t>(t)];
    const int64_t row = t / grid.cell_rows;
    for (int64_t column = range.begin / grid.cell_keys; column * grid.cell_keys < range.end; ++column) {
      const int64_t first = std::max(range.begin, column * grid.cell_keys);
      const int64_t last = std::min(range.end, (column + 1) * grid.cell_keys);
      grid.pairs[grid.cell(row, column)] += std::max<int64_t>(last - first, 0);
    }
    for (int64_t k = 0; k < selection.topk; ++k) {
      const int64_t index = selection.row(t).indices[k];
      if (index >= 0 && index < range.width()) {
        ++grid.picked[grid.cell(row, (range.begin + index) / grid.cell_keys)];
      }
    }
  }
  for (size_t cell = 0; cell < grid.pairs.size(); ++cell) {
    grid.top_share = std::max(grid.top_share, grid.share(cell));
  }
  return grid;
}

/// Shade 0 .. kShades-1 of a share, by its square root: a few picks among many stay visible.
int shade_of(double share, double top_share) {
  return std::clamp(static_cast<int>(std::sqrt(share / top_share) * kShades), 0, kShades - 1);
}

Colour shade_colour(int shade) {
  Colour colour = kAccent;
  colour.alpha = static_cast<uint8_t>(28 + 227 * shade / (kShades - 1));
  return colour;
}

std::string raster(const Grid& grid) {
  std::vector<uint8_t> pixels(grid.pairs.size(), kNothingPicked);
  for (size_t cell = 0; cell < pixels.size(); ++cell) {
    if (grid.pairs[cell] == 0) {
      pixels[cell] = kNoKeys;
    } else if (grid.picked[cell] > 0) {
      pixels[cell] = static_cast<uint8_t>(kFirstShade + shade_of(grid.share(cell), grid.top_share));
    }
  }
  std::vector<Colour> palette = {{0, 0, 0, 0}, {128, 128, 128, 64}};
  for (int shade = 0; shade < kShades; ++shade) {
    palette.push_back(shade_colour(shade));
  }
  return base64(make_png(grid.columns, grid.rows, pixels, palette));
}

/// XML text: reserved characters escaped, control characters dropped.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) >= 0x20U ? std::string(1, c) : std::string(1, ' ');
    }
  }
  return out;
}

std::string label(double x, double y, const char* anchor, int size, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor,
                     size, escaped(text));
}

/// Between 4 and 8 steps of a power of two (a position) or one (a short axis).
int64_t tick_step(int64_t extent) {
  int64_t step = 1;
  while (extent / step > 8) {
    step *= 2;
  }
  return step;
}

std::string tick_text(int64_t value, int64_t step) {
  return step >= 1024 && value > 0 ? std::to_string(value / 1024) + "K" : std::to_string(value);
}

std::string axes(const PictureInput& input, double plot_top, double plot_height) {
  std::string out;
  const double bottom = plot_top + plot_height;
  const int64_t key_step = tick_step(input.num_keys);
  for (int64_t key = 0; key <= input.num_keys; key += key_step) {
    const double x = static_cast<double>(kLeft) +
                     static_cast<double>(kPlotWidth * key) / static_cast<double>(std::max<int64_t>(input.num_keys, 1));
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}v6\" stroke=\"{2}\"/>\n", x, bottom, kText);
    out += label(x, bottom + 20, "middle", 12, tick_text(key, key_step));
  }
  const int64_t num_rows = input.selection->num_rows;
  const int64_t row_step = tick_step(num_rows);
  for (int64_t row = 0; row <= num_rows; row += row_step) {
    const double y =
        plot_top + plot_height * static_cast<double>(row) / static_cast<double>(std::max<int64_t>(num_rows, 1));
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}h-6\" stroke=\"{2}\"/>\n", static_cast<double>(kLeft), y, kText);
    out += label(static_cast<double>(kLeft) - 10, y + 4, "end", 12, tick_text(row, row_step));
  }
  out += label(static_cast<double>(kLeft) + 0.5 * static_cast<double>(kPlotWidth), bottom + 38, "middle", 13,
               "key (1K = 1,024)");
  out += fmt::format(
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\" font-size=\"13\">query row</text>\n",
      plot_top + plot_height / 2);
  return out;
}

/// Area above the plot: share of the queries that pick keys of a column.
std::string profile(const Grid& grid) {
  std::vector<double> shares(static_cast<size_t>(grid.columns), 0.0);
  double top = 0;
  for (int64_t column = 0; column < grid.columns; ++column) {
    int64_t pairs = 0;
    int64_t picked = 0;
    for (int64_t row = 0; row < grid.rows; ++row) {
      pairs += grid.pairs[grid.cell(row, column)];
      picked += grid.picked[grid.cell(row, column)];
    }
    double& share = shares[static_cast<size_t>(column)];
    share = pairs == 0 ? 0.0 : static_cast<double>(picked) / static_cast<double>(pairs);
    top = std::max(top, share);
  }
  const double width = static_cast<double>(kPlotWidth) / static_cast<double>(grid.columns);
  const double base = static_cast<double>(kTop + kProfileHeight);
  std::string path = fmt::format("M{} {}", kLeft, base);
  for (int64_t column = 0; column < grid.columns && top > 0; ++column) {
    const double height = shares[static_cast<size_t>(column)] / top * static_cast<double>(kProfileHeight);
    path += fmt::format("V{:.1f}h{:.3f}", base - height, width);
  }
  return fmt::format("<path d=\"{}V{}Z\" fill=\"#2e86de\" fill-opacity=\"0.55\"/>\n", path, base) +
         label(static_cast<double>(kLeft) - 10, base - static_cast<double>(kProfileHeight) + 9, "end", 11,
               fmt::format("{:.3g} %", top * 100)) +
         label(static_cast<double>(kLeft) - 10, base, "end", 11, "0");
}

std::string legend(const Grid& grid, double y) {
  constexpr double kSwatch = 16;
  double x = static_cast<double>(kLeft);
  std::string out = label(x, y + 11, "start", 12, "share of a cell's pairs picked:");
  x += 190;
  out += label(x, y + 11, "start", 12, "0");
  x += 14;
  for (int shade = 0; shade < kShades; ++shade) {
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"14\" fill=\"#2e86de\" fill-opacity=\"{:.3f}\"/>\n", x, y,
        kSwatch, shade_colour(shade).alpha / 255.0);
    x += kSwatch;
  }
  out += label(x + 6, y + 11, "start", 12, fmt::format("{:.3g} % (shades by its square root)", grid.top_share * 100));
  x += 260;
  out += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"14\" fill=\"#808080\" fill-opacity=\"0.25\"/>\n", x, y,
      kSwatch);
  out += label(x + kSwatch + 6, y + 11, "start", 12, "no key of the row");
  return out;
}

}  // namespace

std::string draw_picture(const PictureInput& input) {
  const Grid grid = make_grid(input);
  const int64_t row_pixels = std::max<int64_t>((kMinPlotHeight + grid.rows - 1) / grid.rows, 1);
  const int64_t plot_height = std::max(grid.rows * std::min<int64_t>(row_pixels, 32), grid.rows >= 64 ? kMaxRows : 0);
  const int64_t plot_top = kTop + kProfileHeight + kGap;
  const int64_t width = kLeft + kPlotWidth + kRight;
  const int64_t height = plot_top + plot_height + kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"{0}\" "
      "height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"{2}\">\n",
      width, height, kText);
  svg += fmt::format("<title>{}</title>\n", escaped(input.title));
  svg += label(static_cast<double>(kLeft), 26, "start", 17, input.title);
  svg += label(static_cast<double>(kLeft), 48, "start", 13,
               fmt::format("{} of {} keys for each of {} queries; a cell is {} x {}; above: share of the queries that "
                           "pick a key",
                           grouped(input.selection->topk), grouped(input.num_keys), grouped(input.selection->num_rows),
                           grid.cell_rows == 1 ? std::string("1 query") : grouped(grid.cell_rows) + " queries",
                           grid.cell_keys == 1 ? std::string("1 key") : grouped(grid.cell_keys) + " keys"));
  svg += profile(grid);
  svg += fmt::format(
      "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
      "image-rendering=\"optimizeSpeed\" "
      "style=\"image-rendering:pixelated\" xlink:href=\"data:image/png;base64,{}\"/>\n",
      kLeft, plot_top, kPlotWidth, plot_height, raster(grid));
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", kLeft,
                     plot_top, kPlotWidth, plot_height, kText);
  svg += axes(input, static_cast<double>(plot_top), static_cast<double>(plot_height));
  svg += legend(grid, static_cast<double>(plot_top + plot_height + 58));
  return svg + "</svg>\n";
}

}  // namespace keysieve::cli
