// libstdc++'s shared_ptr reads a variable of glibc 2.32 and later: whether the process has one thread. With a
// definition of our own, which says that it may have more, the library needs nothing of glibc that is later than 2.16.
#include <cstddef>  // defines __GLIBC__, where that is the C library

#if defined(__GLIBC__)
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
#endif
