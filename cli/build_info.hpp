// SPDX-License-Identifier: Apache-2.0
// What this binary was built from; the values come from cmake/KeysieveBuildInfo.cmake at every build.
#pragma once

namespace keysieve::cli {

struct BuildInfo {
  const char* commit;  // 40 hex digits; all 0 outside a git checkout
  bool dirty;          // tracked files differed from the commit
};

extern const BuildInfo kBuildInfo;

}  // namespace keysieve::cli
