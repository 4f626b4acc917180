# Sourced by tools/test and tools/demo: times the phases of a run, and writes them to build/times/<tool>.json with what
# they depend on: the commit, the machine, and what the compiler cache knew.
#
#   phases_start              before anything else
#   phase NAME                a phase ends, this one begins
#   phases_finish TOOL MODE FAILED   adds the run to build/times/TOOL.json; FAILED: how many of its checks failed

phases_start() {
  mkdir -p build/times
  phase_lines=""
  phase_name=""
  phases_are_first=no # whether nothing was built here before
  [ -e build/release/CMakeCache.txt ] || phases_are_first=yes
  phases_load=$(cut -d' ' -f1 /proc/loadavg)
  export CCACHE_STATSLOG=$PWD/build/times/ccache.log # one entry for each file that this run compiles
  rm -f "$CCACHE_STATSLOG"
}

phase() {
  local now=$EPOCHREALTIME
  [ -z "$phase_name" ] || phase_lines+="$phase_begin"$'\t'"$now"$'\t'"$phase_name"$'\n'
  phase_name=$1
  phase_begin=$now
}

phases_finish() {
  phase ""
  printf '%s' "$phase_lines" | python3 tools/phase_times.py "build/times/$1.json" "$2" "$phases_are_first" "$phases_load" "$3"
}
