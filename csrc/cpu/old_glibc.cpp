// Asks glibc for symbols that version 2.28 has, so that the binary loads there too
// (manylinux_2_28). The linker's --wrap=exp,log brings all calls here. exp and log of the older
// version are the same code behind a check of errno, so bits do not change.

#include <cstddef>  // __GLIBC__

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define RDK_OLDEST "GLIBC_2.2.5"
#else
#define RDK_OLDEST "GLIBC_2.17"
#endif

extern "C" {
double rdk_exp(double);
double rdk_log(double);
__asm__(".symver rdk_exp,exp@" RDK_OLDEST);
__asm__(".symver rdk_log,log@" RDK_OLDEST);
double __wrap_exp(double x) { return rdk_exp(x); }
double __wrap_log(double x) { return rdk_log(x); }

// libstdc++ counts references without atomic instructions while this is not 0.
char __libc_single_threaded = 0;
}
#endif
