#!/bin/sh
# Before a new llama.cpp is put to use: ./check.sh path/to/llama-server
# Exit code 0: as recorded. 1: something changed, it is on stdout. 2: it could not be checked.
set -eu
cd "$(dirname "$0")"
if [ $# -gt 0 ]; then
    offload check --llama-server "$1" --junit offload-junit.xml
else
    offload check --junit offload-junit.xml
fi
