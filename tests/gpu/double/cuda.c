/* A double of the CUDA driver (libcuda.so.1) for tests: see double.h. */
#define _GNU_SOURCE
#include "double.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_READY = 600 };
#define MAX_DEVICES 64

long double_setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

void double_record(const char *format, ...) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int file = -2;
    const char *folder = getenv("GPU_DOUBLE_RECORD");
    if (!folder) return;
    pthread_mutex_lock(&mutex);
    if (file == -2) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.calls", folder, (int)getpid());
        file = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    }
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    if (file >= 0 && write(file, line, length + 1) < 0) { /* The test finds it missing. */ }
    pthread_mutex_unlock(&mutex);
}

/* Streams. */

struct op { void (*run)(void *); void *arg; struct op *next; };
struct stream {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct op *first, **last;
    int pending, closing;
};

static void *work(void *arg) {
    struct stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->first && !s->closing) pthread_cond_wait(&s->changed, &s->mutex);
        struct op *op = s->first;
        if (!op) break;
        if (!(s->first = op->next)) s->last = &s->first;
        pthread_mutex_unlock(&s->mutex);
        op->run(op->arg);
        free(op);
        pthread_mutex_lock(&s->mutex);
        s->pending--;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    free(s);
    return NULL;
}

static struct stream *make_stream(void) {
    struct stream *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    pthread_t thread;
    pthread_create(&thread, NULL, work, s);
    pthread_detach(thread);
    return s;
}

static struct stream *the_default;
static void make_default(void) { the_default = make_stream(); }
static struct stream *stream_of(void *stream) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (stream) return stream;
    pthread_once(&once, make_default);
    return the_default;
}

void double_enqueue(void *stream, void (*run)(void *), void *arg) {
    struct stream *s = stream_of(stream);
    struct op *op = malloc(sizeof *op);
    *op = (struct op){run, arg, NULL};
    pthread_mutex_lock(&s->mutex);
    *s->last = op;
    s->last = &op->next;
    s->pending++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

unsigned cuStreamCreate(void **stream, unsigned flags) {
    *stream = make_stream();
    double_record("cuStreamCreate flags=%u stream=%p", flags, *stream);
    return OK;
}

unsigned cuStreamDestroy_v2(void *stream) {
    struct stream *s = stream;
    pthread_mutex_lock(&s->mutex);
    s->closing = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return OK;
}

unsigned cuStreamSynchronize(void *stream) {
    struct stream *s = stream_of(stream);
    pthread_mutex_lock(&s->mutex);
    while (s->pending) pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return OK;
}

/* Events: numbers that a stream comes past. They are not freed, as streams may still hold them. */

struct event { pthread_mutex_t mutex; pthread_cond_t changed; uint64_t recorded, done; };
struct point { struct event *event; uint64_t number; };

static void reach(void *arg) {
    struct point *p = arg;
    pthread_mutex_lock(&p->event->mutex);
    if (p->event->done < p->number) p->event->done = p->number;
    pthread_cond_broadcast(&p->event->changed);
    pthread_mutex_unlock(&p->event->mutex);
    free(p);
}

static void await(void *arg) {
    struct point *p = arg;
    pthread_mutex_lock(&p->event->mutex);
    while (p->event->done < p->number) pthread_cond_wait(&p->event->changed, &p->event->mutex);
    pthread_mutex_unlock(&p->event->mutex);
    free(p);
}

unsigned cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    struct event *e = calloc(1, sizeof *e);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    *event = e;
    return OK;
}

unsigned cuEventDestroy_v2(void *event) { (void)event; return OK; }

static struct point *point(struct event *e, uint64_t number) {
    struct point *p = malloc(sizeof *p);
    *p = (struct point){e, number};
    return p;
}

unsigned cuEventRecord(void *event, void *stream) {
    struct event *e = event;
    pthread_mutex_lock(&e->mutex);
    uint64_t number = ++e->recorded;
    pthread_mutex_unlock(&e->mutex);
    double_record("cuEventRecord event=%p stream=%p", event, stream);
    double_enqueue(stream, reach, point(e, number));
    return OK;
}

unsigned cuEventQuery(void *event) {
    struct event *e = event;
    pthread_mutex_lock(&e->mutex);
    unsigned result = e->done >= e->recorded ? OK : NOT_READY;
    pthread_mutex_unlock(&e->mutex);
    return result;
}

unsigned cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    struct event *e = event;
    pthread_mutex_lock(&e->mutex);
    uint64_t number = e->recorded;
    pthread_mutex_unlock(&e->mutex);
    double_record("cuStreamWaitEvent event=%p stream=%p", event, stream);
    double_enqueue(stream, await, point(e, number));
    return OK;
}

/* Devices and contexts: a context is its GPU's number plus one. */

static __thread uintptr_t current;
static unsigned entered(void) { return current ? OK : INVALID_CONTEXT; }
int double_current_device(void) { return (int)current - 1; }

unsigned cuInit(unsigned flags) { (void)flags; return double_setting("GPU_DOUBLE_CUINIT", 0); }
unsigned cuDriverGetVersion(int *v) { *v = double_setting("GPU_DOUBLE_DRIVER", 12080); return OK; }
unsigned cuDeviceGetCount(int *n) { *n = double_setting("GPU_DOUBLE_DEVICES", 8); return OK; }
unsigned cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
unsigned cuDeviceGetName(char *to, int room, int device) {
    snprintf(to, room, "Double %d", device);
    return OK;
}
unsigned cuDeviceGetPCIBusId(char *to, int room, int device) {
    snprintf(to, room, "0000:%02x:00.0", device + 1);
    return OK;
}
unsigned cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = double_setting("GPU_DOUBLE_MEMORY", 1L << 30);
    return OK;
}
unsigned cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    /* Compute capability 9.0, dma-buf; what cards have written is seen after cuFlushGPUDirectRDMAWrites, and not before. */
    *value = which == 75 ? 9 : which == 124 ? double_setting("GPU_DOUBLE_DMABUF", 1) : which == 117 ? 1 : 0;
    return OK;
}
unsigned cuDevicePrimaryCtxRetain(void **context, int device) {
    double_record("cuDevicePrimaryCtxRetain device=%d", device);
    *context = (void *)(uintptr_t)(device + 1);
    return OK;
}
unsigned cuDevicePrimaryCtxRelease_v2(int device) {
    double_record("cuDevicePrimaryCtxRelease device=%d", device);
    return OK;
}
unsigned cuCtxSetCurrent(void *context) { current = (uintptr_t)context; return OK; }

/* Memory: the host's, in granules that could be exported. */

#define GRANULE (64 << 10)
static long used;

unsigned cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    if (entered()) return INVALID_CONTEXT;
    if (!bytes) return INVALID_VALUE;
    size_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (bytes > (size_t)double_setting("GPU_DOUBLE_MEMORY", 1L << 30)) return OUT_OF_MEMORY;
    void *memory = aligned_alloc(GRANULE, rounded);
    if (!memory) return OUT_OF_MEMORY;
    __atomic_add_fetch(&used, 1, __ATOMIC_RELAXED);
    double_record("cuMemAlloc bytes=%zu at=%p", bytes, memory);
    *at = (uintptr_t)memory;
    return OK;
}
unsigned cuMemFree_v2(uint64_t at) {
    double_record("cuMemFree at=%p left=%ld", (void *)at, __atomic_sub_fetch(&used, 1, __ATOMIC_RELAXED));
    free((void *)at);
    return OK;
}
unsigned cuMemAllocHost_v2(void **at, size_t bytes) {
    if (entered()) return INVALID_CONTEXT;
    double_record("cuMemAllocHost bytes=%zu", bytes);
    return (*at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) ? OK : OUT_OF_MEMORY;
}
unsigned cuMemFreeHost(void *at) { free(at); return OK; }

struct copy { void *to; const void *from; size_t bytes; int value; };
static void do_copy(void *arg) {
    struct copy *c = arg;
    if (c->from) memmove(c->to, c->from, c->bytes); else memset(c->to, c->value, c->bytes);
    free(c);
}
static unsigned copy(const char *call, void *to, const void *from, size_t bytes, int value, void *stream) {
    if (entered()) return INVALID_CONTEXT;
    double_record("%s to=%p from=%p bytes=%zu stream=%p", call, to, from, bytes, stream);
    struct copy *c = malloc(sizeof *c);
    *c = (struct copy){to, from, bytes, value};
    double_enqueue(stream, do_copy, c);
    return OK;
}
unsigned cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
    return copy("cuMemcpyHtoDAsync", (void *)to, from, n, 0, s);
}
unsigned cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    return copy("cuMemcpyDtoHAsync", to, (void *)from, n, 0, s);
}
unsigned cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
    return copy("cuMemcpyDtoDAsync", (void *)to, (void *)from, n, 0, s);
}
unsigned cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *s) {
    return copy("cuMemsetD8Async", (void *)to, NULL, n, value, s);
}
unsigned cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t bytes, int type, unsigned long long flags) {
    double_record("cuMemGetHandleForAddressRange at=%p bytes=%zu type=%d flags=%llu", (void *)at, bytes, type, flags);
    if (at % GRANULE || bytes % GRANULE) return INVALID_VALUE;
    /* A file of that length: a double gives no access by it. */
    int file = memfd_create("gpu-double", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, bytes)) return OUT_OF_MEMORY;
    *(int *)handle = file;
    return OK;
}

unsigned cuFlushGPUDirectRDMAWrites(unsigned target, unsigned scope) {
    if (entered()) return INVALID_CONTEXT;
    double_record("cuFlushGPUDirectRDMAWrites target=%u scope=%u", target, scope);
    return OK;
}

unsigned cuGetErrorName(unsigned code, const char **text) {
    switch (code) {
    case OK: *text = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case 999: *text = "CUDA_ERROR_UNKNOWN"; break;
    default: *text = NULL; return INVALID_VALUE;
    }
    return OK;
}
unsigned cuGetErrorString(unsigned code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : code == 999 ? "unknown error" : NULL;
    return *text ? OK : INVALID_VALUE;
}
