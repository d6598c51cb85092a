#!/usr/bin/env bash
# Installs what is missing, builds and runs every test; a machine without a GPU skips what needs one.
#
# Usage: tests/run.sh [--fast] [--asan]
#        tests/run.sh --fuzz [SECONDS]
#   --fast  leave out the tests labelled slow: under a minute of testing
#   --asan  build with the address and undefined-behaviour sanitizers (preset asan instead of ci)
#   --fuzz  run each fuzzer of tests/fuzz for a minute, or for so many seconds, in place of the tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/install_dependencies.sh

preset=ci
selection=()
for argument in "$@"; do
  case $argument in
    --fuzz)
      install_dependencies "${build_packages[@]}" clang
      exec tests/fuzz/run.sh "${2:-60}" ;;
    --fast) selection=(--label-exclude slow) ;;
    --asan) preset=asan ;;
    *) sed -n 's/^# \?//; 2,9p' "tests/run.sh"; exit 2 ;;
  esac
done

install_dependencies "${build_packages[@]}" "${test_packages[@]}"
install_where_known "$page_test_package"
cmake --preset "$preset"
cmake --build --preset "$preset"

results=build/$preset/tests.xml
rm -f "$results"
ctest --preset "$preset" --parallel "$(nproc)" "${selection[@]}" --test-output-size-passed 10000000 --output-junit "$PWD/$results" || true
python3 -B tests/total.py "$results"
