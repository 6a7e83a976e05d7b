// SPDX-License-Identifier: Apache-2.0
// Text, pictures and statistics of the command.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "output.hpp"
#include "picture.hpp"
#include "png.hpp"
#include "statistics.hpp"

namespace keysieve::cli {
namespace {

TEST(Output, NumbersForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(scaled(1234, "B"), "1.23 kB");
  EXPECT_EQ(scaled(12, "B"), "12 B");
  EXPECT_EQ(duration(0.5), "500 us");
  EXPECT_EQ(duration(12.344), "12.34 ms");
  EXPECT_EQ(duration(123456), "123.5 s");
}

TEST(Output, TablesCountCharactersAndNotBytes) {
  EXPECT_EQ(table({{"é", "1"}, {"bb", "22"}}), "é    1\nbb  22\n");
  EXPECT_EQ(fields({{"a", "x"}, {"bcd", "y"}}), "a    x\nbcd  y\n");
}

TEST(Output, JsonHasNoInfinity) {
  EXPECT_EQ(json_number(1.5), Json(1.5));
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), Json("inf"));
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), Json("-inf"));
  EXPECT_EQ(json_number(std::nan("")), Json("nan"));
}

TEST(Png, Base64) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("\xff\xfe\xfd\xfc"), "//79/A==");
}

TEST(Png, IsStoredPixelByPixel) {
  const std::string png = make_png(3, 2, {1, 2, 3, 4, 5, 6}, {{0, 0, 0, 0}, {255, 255, 255, 255}});
  EXPECT_EQ(png.substr(1, 3), "PNG");
  const size_t data = png.find("IDAT") + 4;
  // zlib header, last stored block of 6 bytes, then a filter byte and two bytes of pixels a row
  const std::string expected("\x78\x01\x01\x06\x00\xF9\xFF\x00\x12\x30\x00\x45\x60", 13);
  EXPECT_EQ(png.substr(data, expected.size()), expected);
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
}

Selection diagonal_selection(int64_t rows, int64_t topk, int64_t num_keys) {
  Selection selection;
  selection.num_rows = rows;
  selection.topk = topk;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      selection.row_indices.push_back(static_cast<int32_t>((t + k * 7) % num_keys));
    }
  }
  return selection;
}

TEST(Picture, StaysSmallAndEscapesItsTitle) {
  const Selection selection = diagonal_selection(4096, 32, 131072);
  PictureInput input;
  input.title = "a<b>&\"c\"\n";
  input.num_keys = 131072;
  input.selection = &selection;
  input.ranges.assign(4096, {0, 131072});
  const std::string svg = draw_picture(input);
  EXPECT_LT(svg.size(), 600'000U);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c&quot; "), std::string::npos);
  EXPECT_NE(svg.find("a cell is 8 queries x 128 keys"), std::string::npos);
}

TEST(Picture, TakesEmptySelections) {
  const Selection selection;
  PictureInput input;
  input.selection = &selection;
  EXPECT_NE(draw_picture(input).find("</svg>"), std::string::npos);
  const Selection padding = [] {
    Selection rows;
    rows.num_rows = 2;
    rows.topk = 3;
    rows.row_indices.assign(6, -1);
    return rows;
  }();
  input.selection = &padding;
  input.num_keys = 5;
  input.ranges.assign(2, {5, 5});
  EXPECT_NE(draw_picture(input).find("</svg>"), std::string::npos);
}

TEST(Statistics, MedianQuantilesAndPairedRatio) {
  EXPECT_EQ(bench::quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(bench::quantile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_EQ(bench::quantile({1, 2}, 1.0), 2);
  EXPECT_EQ(bench::quantile({}, 0.5), 0);
  const bench::Summary summary = bench::summarise({2, 4, 6});
  EXPECT_EQ(summary.median, 4);
  EXPECT_EQ(summary.min, 2);
  EXPECT_EQ(summary.max, 6);
  EXPECT_DOUBLE_EQ(summary.cv, 0.5);
  const bench::Ratio ratio = bench::paired_ratio({2, 4, 6}, {1, 2, 3});
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.low, 2);
  EXPECT_EQ(ratio.high, 2);
}

}  // namespace
}  // namespace keysieve::cli
