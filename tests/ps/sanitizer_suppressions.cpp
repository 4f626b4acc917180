// The thread sanitizer sees what RocksDB's library copies and compares but not its atomics, and takes the one for
// races.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:librocksdb.so\n";
}
