// What libraries that were compiled with a new C library need of it and older ones lack, see old_glibc.py.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

extern "C" {

// libstdc++ may count references without atomic instructions if this says that there is one thread.
char __libc_single_threaded = 0;

// The struct is that of the kernel on 64-bit x86 and ARM.
int stat(const char* path, struct stat* result) {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, result, 0));
}
int fstat(int file, struct stat* result) { return static_cast<int>(syscall(SYS_fstat, file, result)); }
int fstat64(int file, struct stat64* result) { return static_cast<int>(syscall(SYS_fstat, file, result)); }

// 32 bits that nobody can guess.
unsigned arc4random() {
  unsigned bits;
  if (getentropy(&bits, sizeof bits) != 0) std::abort();
  return bits;
}
}
