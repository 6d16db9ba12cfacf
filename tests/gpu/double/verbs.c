/* A double of one function of libibverbs, ibv_reg_dmabuf_mr, for tests: see double.h. Devices in software take no dma-buf; the double
 * of libcuda has its "device" memory in the host's, so this one registers the same bytes as memory of the host. All else is the
 * real library's, down to the packets. Loaded by LD_PRELOAD; the program looks functions up by dlsym, which is answered here.
 * Nothing of this is shipped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void *lookup(void *handle, const char *name);
typedef void *reg_mr(void *domain, void *at, size_t bytes, int access);

/* IBV_ACCESS_OPTIONAL_RANGE: what a library that does not know it passes over. */
#define OPTIONAL 0x3ff00000
static void *library;

static lookup *real(void) {
    static lookup *found;
    if (!found) found = (lookup *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = (lookup *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return found;
}

static void *reg_dmabuf(void *domain, uint64_t offset, size_t bytes, uint64_t iova, int file, int access) {
    (void)offset;
    if (fcntl(file, F_GETFD) < 0) { errno = EBADF; return NULL; }
    reg_mr *reg = (reg_mr *)real()(library, "ibv_reg_mr");
    return reg(domain, (void *)(uintptr_t)iova, bytes, access & ~OPTIONAL);
}

void *dlsym(void *handle, const char *name) {
    if (!strcmp(name, "ibv_reg_dmabuf_mr")) {
        library = handle;
        return (void *)reg_dmabuf;
    }
    return real()(handle, name);
}
