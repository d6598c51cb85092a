# shellcheck shell=bash
# Sourced by examples/quickstart.sh and tests/run.sh. install_dependencies installs what is missing through the
# system package manager of Debian 12 or Ubuntu 24.04 and later; where everything is there it does nothing.

# A line is one need: packages by preference, of which one is enough.
build_packages=(
  "g++" "cmake" "ninja-build" "ccache"
  "llvm-14-dev|llvm-dev" "libzstd-dev" # the second is asked for by LLVM's package files from 15 on
  "zlib1g-dev" "libncurses-dev"
  "libjpeg62-turbo-dev|libjpeg-turbo8-dev" "libpng-dev"
  "libprotobuf-dev" "protobuf-compiler"
  "libdnnl-dev" "libcli11-dev" "doctest-dev"
  "libopenmpi-dev|libmpich-dev"
)
test_packages=("python3" "python3-venv" "python3-numpy" "libonnx-testdata" "openmpi-bin|mpich")

# Tests that look at pages need it, and are skipped without it. Elsewhere than in Debian it may have no package.
page_test_package=chromium

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

any_installed() {
  local package
  for package in ${1//|/ }; do
    if is_installed "$package"; then return 0; fi
  done
  return 1
}

# The first of "a|b|c" that the package lists know; the first of all when they know none, for apt-get to complain about.
first_known() {
  local package
  for package in ${1//|/ }; do
    if apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]'; then
      echo "$package"
      return
    fi
  done
  echo "${1%%|*}"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "not root and no sudo here; as root, run: $*" >&2
    return 1
  fi
}

# install_dependencies NEED...
install_dependencies() {
  local missing=() names=() need
  if ! command -v apt-get >/dev/null; then
    echo "set-up: no apt-get here; needed are the equivalents of: $*"
    return 0
  fi
  for need in "$@"; do
    if ! any_installed "$need"; then missing+=("$need"); fi
  done
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "set-up: everything needed is installed"
    return 0
  fi

  echo "set-up: installing ${missing[*]%%|*} with apt-get"
  as_root apt-get update -qq
  for need in "${missing[@]}"; do names+=("$(first_known "$need")"); done
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Use-Pty=0 "${names[@]}" >/dev/null
}

# install_where_known PACKAGE: one that the package lists do not have is left out.
install_where_known() {
  if is_installed "$1"; then return 0; fi
  if command -v apt-get >/dev/null && apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; then
    install_dependencies "$1"
  else
    echo "set-up: no package $1 here; what needs it is skipped"
  fi
}
