# SPDX-License-Identifier: Apache-2.0
# What ./run and ./test share: installing packages, building a preset, saying what was skipped.
# Package names hold on Debian 12 and 13 and on Ubuntu 24.04.

BUILD_PACKAGES="g++ cmake ninja-build ccache libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev"
BENCH_PACKAGES="libopenblas-dev"
TEST_PACKAGES="libgtest-dev libbenchmark-dev libboost-context-dev clang libclang-rt-dev clang-format clang-tidy python3 python3-venv binutils"

SKIPPED=""

say() { printf '\n== %s\n' "$*"; }

skip() {
  printf 'SKIPPED: %s\n' "$*"
  SKIPPED="${SKIPPED}  - $*
"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    echo "keysieve: need root or sudo for: $*" >&2
    return 1
  fi
}

# install_packages NAME...: installs what is missing from the distribution's repositories.
install_packages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    skip "package installation: this is not a Debian or Ubuntu system; needed are: $*"
    return 0
  fi
  missing=""
  for package in "$@"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
      missing="$missing $package"
    fi
  done
  [ -z "$missing" ] && return 0
  say "Installing:$missing"
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# jobs: parallel compilations; the CUDA kernels need about 1.5 GiB each.
jobs() { nproc; }

# build PRESET [cmake arguments] -- [targets]
build() {
  preset=$1
  shift
  configure=""
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    configure="$configure $1"
    shift
  done
  [ "${1-}" = -- ] && shift
  # shellcheck disable=SC2086
  cmake --preset "$preset" $configure >"build-$preset.log" 2>&1 || { cat "build-$preset.log"; return 1; }
  grep -E '^-- keysieve: ' "build-$preset.log" | sed 's/^-- //' || true
  rm -f "build-$preset.log"
  cmake --build --preset "$preset" -j "$(jobs)" ${1+--target "$@"}
}
