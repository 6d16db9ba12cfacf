/* Times NCCL alone on one GPU, for tests/gpu/real.sh: all_gather of one rank, out of place, given to a stream and waited for.
 * Prints "bytes,median_us" for each size given. The libraries are found at run time:  bare NCCL_FILE BYTES...  */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM = 20, TIMED = 500, ID_BYTES = 128, UINT8 = 1 };
struct id { char bytes[ID_BYTES]; };

static void *of(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "bare: no %s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

#define OK(call)                                                  \
    do {                                                          \
        int result = (call);                                      \
        if (result) {                                             \
            fprintf(stderr, "bare: %s: %d\n", #call, result);     \
            exit(1);                                              \
        }                                                         \
    } while (0)

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: bare NCCL_FILE BYTES...\n"), 2;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *nccl = dlopen(argv[1], RTLD_NOW);
    int (*init)(unsigned) = of(cuda, "cuInit"), (*retain)(void **, int) = of(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = of(cuda, "cuCtxSetCurrent"), (*make)(void **, unsigned) = of(cuda, "cuStreamCreate");
    int (*wait)(void *) = of(cuda, "cuStreamSynchronize"), (*alloc)(uint64_t *, size_t) = of(cuda, "cuMemAlloc_v2");
    int (*release)(uint64_t) = of(cuda, "cuMemFree_v2"), (*unique)(struct id *) = of(nccl, "ncclGetUniqueId");
    int (*join)(void **, int, struct id, int) = of(nccl, "ncclCommInitRank");
    int (*gather)(const void *, void *, size_t, int, void *, void *) = of(nccl, "ncclAllGather");
    void *context, *stream, *comm;
    struct id id;
    OK(init(0));
    OK(retain(&context, 0));
    OK(current(context));
    OK(make(&stream, 1));
    OK(unique(&id));
    OK(join(&comm, 1, id, 0));
    for (int at = 2; at < argc; at++) {
        size_t bytes = strtoull(argv[at], NULL, 10);
        uint64_t from, to;
        static double times[TIMED];
        OK(alloc(&from, bytes));
        OK(alloc(&to, bytes));
        for (int i = -WARM; i < TIMED; i++) {
            double begun = now_us();
            OK(gather((void *)from, (void *)to, bytes, UINT8, comm, stream));
            OK(wait(stream));
            if (i >= 0) times[i] = now_us() - begun;
        }
        qsort(times, TIMED, sizeof *times, by_size);
        printf("%zu,%.3f\n", bytes, times[TIMED / 2]);
        OK(release(from));
        OK(release(to));
    }
    return 0;
}
