#!/usr/bin/env bash
# Builds the fuzzers with clang and runs each on a corpus in the build folder, which grows from run to run.
#
# Usage: tests/fuzz/run.sh SECONDS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake --preset fuzz
cmake --build --preset fuzz
program=build/ci/bin/plimsoll
if [ -x $program ]; then
  tests/fuzz/make_corpus.py build/fuzz/corpus $program
else
  tests/fuzz/make_corpus.py build/fuzz/corpus
fi

failed=()
for fuzzer in build/fuzz/bin/*_fuzzer; do
  name=$(basename "$fuzzer" _fuzzer)
  mkdir -p "build/fuzz/corpus/$name"
  echo "$name"
  "$fuzzer" "build/fuzz/corpus/$name" -max_total_time="$1" -timeout=20 -rss_limit_mb=2560 -max_len=65536 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/$name-" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}; what they fail on lies in build/fuzz/"
  exit 1
fi
