/* A double of NCCL (libnccl.so.2) for tests: see double.h. Every operation is a set of transfers between pairs of ranks,
 * through a channel of one chunk per pair and direction in a shared file, done by the stream's thread until all are over or
 * the communicator is aborted. As with NCCL, ranks that call different things wait for ever. */
#define _GNU_SOURCE
#include "double.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK, CUDA, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS };
enum { MAX_RANKS = 16, CHUNK = 64 << 10, ID_BYTES = 128 };
#define MAGIC 0xcafebeefu

struct channel { atomic_uint full; uint32_t bytes; char data[CHUNK]; };
struct shared { atomic_int device[MAX_RANKS]; atomic_uint arrived, finalized; struct channel channels[MAX_RANKS][MAX_RANKS]; };
struct id { char path[ID_BYTES]; };
struct config { size_t size; unsigned magic, version; int blocking; };

struct comm {
    struct shared *shared;
    int rank, n;
    char path[ID_BYTES];
    atomic_int aborted, state, under_way, finalizing, connect_polls;
    int calls;
    pthread_t init;
};

struct call {
    const char *name;
    const char *from;
    char *to;
    size_t count;
    unsigned type, op;
    int peer;
    struct comm *comm;
    void *stream;
    struct call *next;
};

static __thread char last_error[256];
static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static unsigned fail(unsigned code, const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return code;
}

unsigned ncclGetVersion(int *version) { *version = double_setting("GPU_DOUBLE_NCCL", 22703); return OK; }

const char *ncclGetErrorString(unsigned code) {
    static const char *words[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error", "in progress"};
    return code < 8 ? words[code] : "unknown result code";
}
const char *ncclGetLastError(void *comm) { (void)comm; return last_error; }

unsigned ncclGetUniqueId(struct id *id) {
    static atomic_uint made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const char *folder = getenv("GPU_DOUBLE_DIR");
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "%s/gpu-double-%d-%u-%lx", folder ? folder : "/tmp", (int)getpid(),
        atomic_fetch_add(&made, 1), (long)now.tv_nsec);
    double_record("ncclGetUniqueId id=%s", id->path);
    return OK;
}

static int is_rank(const char *name, int rank, int call, int *code) {
    int r = -1, c = -1, k = 0;
    const char *text = getenv(name);
    int read = text ? sscanf(text, "%d:%d:%d", &r, &c, &k) : 0;
    *code = read == 3 ? k : c;
    return read >= 2 && r == rank && (call < 0 || c == call);
}

static void nap(void) { nanosleep(&(struct timespec){0, 50000}, NULL); }

static void *meet(void *arg) {
    struct comm *c = arg;
    atomic_store(&c->shared->device[c->rank], double_current_device() + 1);
    return NULL;
}

static void *wait_for_all(void *arg) {
    struct comm *c = arg;
    atomic_fetch_add(&c->shared->arrived, 1);
    while ((int)atomic_load(&c->shared->arrived) < c->n)
        if (atomic_load(&c->aborted)) return NULL; else nap();
    int mine = atomic_load(&c->shared->device[c->rank]), twice = 0;
    for (int r = 0; r < c->n; r++) twice += r != c->rank && atomic_load(&c->shared->device[r]) == mine;
    /* Whoever has mapped it needs the name no more. */
    unlink(c->path);
    atomic_store(&c->state, twice ? USAGE : OK);
    return NULL;
}

unsigned ncclCommInitRankConfig(struct comm **to, int n, struct id id, int rank, struct config *config) {
    int code;
    double_record("ncclCommInitRankConfig rank=%d of=%d blocking=%d device=%d", rank, n, config->blocking,
        double_current_device());
    if (config->magic != MAGIC || config->size < sizeof *config) return fail(ARGUMENT, "no configuration");
    if (config->blocking != 0) return fail(USAGE, "the double makes communicators without blocking only");
    if (n > MAX_RANKS) return fail(ARGUMENT, "the double has 16 ranks at most");
    if (double_setting("GPU_DOUBLE_DIES_IN_INIT", -1) == rank) raise(SIGKILL);
    if (is_rank("GPU_DOUBLE_INIT_ERROR", rank, -1, &code)) return fail(code, "as GPU_DOUBLE_INIT_ERROR says");
    int file = open(id.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared))) return fail(SYSTEM, "the shared file");
    struct comm *c = calloc(1, sizeof *c);
    c->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    c->rank = rank;
    c->n = n;
    memcpy(c->path, id.path, sizeof c->path);
    atomic_store(&c->state, IN_PROGRESS);
    atomic_store(&c->connect_polls, double_setting("GPU_DOUBLE_CONNECT_POLLS", 3));
    meet(c);
    pthread_create(&c->init, NULL, wait_for_all, c);
    *to = c;
    return IN_PROGRESS;
}

unsigned ncclCommGetAsyncError(struct comm *c, unsigned *state) {
    *state = atomic_load(&c->state);
    if (*state == USAGE) fail(USAGE, "Duplicate GPU detected");
    if (*state == OK && c->calls > 0 && atomic_load(&c->connect_polls) > 0) {
        atomic_fetch_sub(&c->connect_polls, 1);
        *state = IN_PROGRESS;
    }
    if (*state == OK && atomic_load(&c->finalizing)
        && ((int)atomic_load(&c->shared->finalized) < c->n || atomic_load(&c->under_way)))
        *state = IN_PROGRESS;
    return OK;
}

static void leave(struct comm *c) {
    atomic_store(&c->aborted, 1);
    pthread_join(c->init, NULL);
    while (atomic_load(&c->under_way)) nap();
    munmap(c->shared, sizeof *c->shared);
    free(c);
}

unsigned ncclCommFinalize(struct comm *c) {
    double_record("ncclCommFinalize comm=%p", (void *)c);
    atomic_store(&c->finalizing, 1);
    atomic_fetch_add(&c->shared->finalized, 1);
    return IN_PROGRESS;
}

unsigned ncclCommDestroy(struct comm *c) {
    double_record("ncclCommDestroy comm=%p", (void *)c);
    leave(c);
    return OK;
}

unsigned ncclCommAbort(struct comm *c) {
    double_record("ncclCommAbort comm=%p under_way=%d", (void *)c, atomic_load(&c->under_way));
    long slow = double_setting("GPU_DOUBLE_SLOW_ABORT", 0);
    nanosleep(&(struct timespec){slow / 1000, slow % 1000 * 1000000}, NULL);
    leave(c);
    double_record("ncclCommAbort is over comm=%p", (void *)c);
    return OK;
}

/* Reductions, in rank order. */

static float of_half(uint16_t h) { _Float16 f; memcpy(&f, &h, 2); return (float)f; }
static uint16_t to_half(float v) { _Float16 f = (_Float16)v; uint16_t h; memcpy(&h, &f, 2); return h; }
static float of_brain(uint16_t b) { uint32_t u = (uint32_t)b << 16; float f; memcpy(&f, &u, 4); return f; }
static uint16_t to_brain(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#define COMBINE(a, b) (op == 0 || op == 4 ? (a) + (b) : op == 1 ? (a) * (b) : op == 2 ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define REDUCE(T, OF, TO)                                                                                  \
    for (size_t i = 0; i < count; i++) {                                                                   \
        __typeof__(OF(((const T *)parts[0])[0]) + 0) sum = OF(((const T *)parts[0])[i]);                   \
        for (int r = 1; r < n; r++) sum = COMBINE(sum, OF(((const T *)parts[r])[i]));                      \
        if (op == 4) sum = sum / n;                                                                        \
        ((T *)to)[i] = TO(sum);                                                                            \
    }
#define SAME(x) (x)

static void reduce(char *to, char **parts, int n, size_t count, unsigned type, unsigned op) {
    switch (type) {
    case 0: REDUCE(int8_t, SAME, SAME) break;
    case 1: REDUCE(uint8_t, SAME, SAME) break;
    case 2: REDUCE(int32_t, SAME, SAME) break;
    case 3: REDUCE(uint32_t, SAME, SAME) break;
    case 4: REDUCE(int64_t, SAME, SAME) break;
    case 5: REDUCE(uint64_t, SAME, SAME) break;
    case 6: REDUCE(uint16_t, of_half, to_half) break;
    case 7: REDUCE(float, SAME, SAME) break;
    case 8: REDUCE(double, SAME, SAME) break;
    case 9: REDUCE(uint16_t, of_brain, to_brain) break;
    }
}

/* Transfers. */

struct transfer { int receives, peer; char *at; size_t bytes, done; };
struct job { struct comm *comm; struct call *calls; int hangs; };
struct set { struct transfer *all; int len; };

static void add(struct set *set, int receives, int peer, const char *at, size_t bytes) {
    if (!bytes) return;
    set->all = realloc(set->all, (set->len + 1) * sizeof *set->all);
    set->all[set->len++] = (struct transfer){receives, peer, (char *)at, bytes, 0};
}

static int step(struct comm *c, struct transfer *t) {
    struct channel *channel = t->receives ? &c->shared->channels[t->peer][c->rank] : &c->shared->channels[c->rank][t->peer];
    if (atomic_load_explicit(&channel->full, memory_order_acquire) != (unsigned)t->receives) return 0;
    if (t->receives) {
        size_t bytes = channel->bytes < t->bytes - t->done ? channel->bytes : t->bytes - t->done;
        memcpy(t->at + t->done, channel->data, bytes);
        t->done += bytes;
    } else {
        channel->bytes = t->bytes - t->done < CHUNK ? t->bytes - t->done : CHUNK;
        memcpy(channel->data, t->at + t->done, channel->bytes);
        t->done += channel->bytes;
    }
    atomic_store_explicit(&channel->full, !t->receives, memory_order_release);
    return 1;
}

/* Returns whether all were done. */
static int transfer(struct comm *c, struct set *set) {
    for (int idle = 0;;) {
        int open = 0, moved = 0;
        uint32_t busy[2] = {0, 0};
        for (int i = 0; i < set->len; i++) {
            struct transfer *t = &set->all[i];
            if (t->done == t->bytes) continue;
            open = 1;
            /* Transfers of one pair go one after the other. */
            if (busy[t->receives] >> t->peer & 1) continue;
            busy[t->receives] |= 1u << t->peer;
            moved |= step(c, t);
        }
        if (!open) return 1;
        if (atomic_load(&c->aborted)) return 0;
        idle = moved ? 0 : idle + 1;
        if (idle > 200) nap(); else if (idle > 20) sched_yield();
    }
}

static void plan(struct set *set, struct call *k, char **parts) {
    struct comm *c = k->comm;
    size_t bytes = k->count * sizes[k->type];
    int all_reduce = !strcmp(k->name, "ncclAllReduce"), scatter = !strcmp(k->name, "ncclReduceScatter");
    if (!strcmp(k->name, "ncclSend")) return add(set, 0, k->peer, k->from, bytes);
    if (!strcmp(k->name, "ncclRecv")) return add(set, 1, k->peer, k->to, bytes);
    for (int r = 0; r < c->n; r++) {
        if (r == c->rank) continue;
        if (all_reduce || scatter) {
            add(set, 0, r, k->from + (scatter ? r * bytes : 0), bytes);
            add(set, 1, r, parts[r] = malloc(bytes ? bytes : 1), bytes);
        } else if (!strcmp(k->name, "ncclAllGather")) {
            add(set, 0, r, k->from, bytes);
            add(set, 1, r, k->to + r * bytes, bytes);
        } else if (!strcmp(k->name, "ncclReduce")) {
            if (c->rank == k->peer) add(set, 1, r, parts[r] = malloc(bytes ? bytes : 1), bytes);
            else if (r == k->peer) add(set, 0, r, k->from, bytes);
        } else if (!strcmp(k->name, "ncclBroadcast")) {
            if (c->rank == k->peer) add(set, 0, r, k->from, bytes);
            else if (r == k->peer) add(set, 1, r, k->to, bytes);
        }
    }
}

static void finish(struct call *k, char **parts) {
    struct comm *c = k->comm;
    size_t bytes = k->count * sizes[k->type];
    int scatter = !strcmp(k->name, "ncclReduceScatter"), reduces = scatter || !strcmp(k->name, "ncclAllReduce")
        || (!strcmp(k->name, "ncclReduce") && c->rank == k->peer);
    if (reduces) {
        char *mine = malloc(bytes ? bytes : 1);
        memcpy(mine, k->from + (scatter ? c->rank * bytes : 0), bytes);
        parts[c->rank] = mine;
        reduce(k->to, parts, c->n, k->count, k->type, k->op);
    } else if (!strcmp(k->name, "ncclAllGather")) {
        memmove(k->to + c->rank * bytes, k->from, bytes);
    } else if (!strcmp(k->name, "ncclBroadcast") && c->rank == k->peer) {
        memmove(k->to, k->from, bytes);
    }
}

static void run(void *arg) {
    struct job *job = arg;
    struct comm *c = job->comm;
    while (job->hangs && !atomic_load(&c->aborted)) nap();
    int len = 0;
    for (struct call *k = job->calls; k; k = k->next) len++;
    char **parts = calloc(len * MAX_RANKS, sizeof *parts);
    struct set set = {0};
    int at = 0;
    for (struct call *k = job->calls; k; k = k->next) plan(&set, k, parts + MAX_RANKS * at++);
    int done = transfer(c, &set);
    at = 0;
    for (struct call *k = job->calls; k;) {
        if (done) finish(k, parts + MAX_RANKS * at);
        at++;
        struct call *next = k->next;
        free(k);
        k = next;
    }
    for (int i = 0; i < len * MAX_RANKS; i++) free(parts[i]);
    free(parts);
    free(set.all);
    atomic_fetch_sub(&c->under_way, 1);
    free(job);
}

/* Groups: calls of a thread between a start and the matching end are one job. */

static __thread int depth;
static __thread struct call *gathered, **gathered_last;

static unsigned submit(struct call *calls) {
    struct comm *c = calls->comm;
    int number = c->calls++, code, error = is_rank("GPU_DOUBLE_ASYNC_ERROR", c->rank, number, &code);
    struct job *job = malloc(sizeof *job);
    *job = (struct job){c, calls, error};
    if (error) atomic_store(&c->state, code);
    else job->hangs = is_rank("GPU_DOUBLE_HANG", c->rank, number, &code);
    atomic_fetch_add(&c->under_way, 1);
    double_enqueue(calls->stream, run, job);
    return atomic_load(&c->connect_polls) > 0 ? IN_PROGRESS : OK;
}

static unsigned call(const char *name, const void *from, void *to, size_t count, unsigned type, unsigned op, int peer,
    struct comm *c, void *stream) {
    double_record("%s comm=%p from=%p to=%p count=%zu type=%u op=%u peer=%d stream=%p", name, (void *)c, from, to, count,
        type, op, peer, stream);
    if (type >= 10 || op > 4) return fail(ARGUMENT, "no such type or reduction");
    if (atomic_load(&c->state) == IN_PROGRESS || (c->calls > 0 && atomic_load(&c->connect_polls) > 0)) {
        double_record("VIOLATION %s while the communicator is in progress", name);
        return fail(USAGE, "the communicator is in progress");
    }
    if (double_current_device() < 0) return fail(CUDA, "no context");
    struct call *k = malloc(sizeof *k);
    *k = (struct call){name, from, to, count, type, op, peer, c, stream, NULL};
    if (!depth) return submit(k);
    if (!gathered) gathered_last = &gathered;
    *gathered_last = k;
    gathered_last = &k->next;
    return OK;
}

unsigned ncclGroupStart(void) {
    double_record("ncclGroupStart");
    depth++;
    return OK;
}

unsigned ncclGroupEnd(void) {
    double_record("ncclGroupEnd");
    if (!depth) return fail(USAGE, "no group was begun");
    if (--depth || !gathered) return OK;
    struct call *calls = gathered;
    gathered = NULL;
    return submit(calls);
}

unsigned ncclAllReduce(const void *from, void *to, size_t count, unsigned type, unsigned op, struct comm *c, void *s) {
    return call("ncclAllReduce", from, to, count, type, op, -1, c, s);
}
unsigned ncclReduce(const void *from, void *to, size_t n, unsigned type, unsigned op, int root, struct comm *c, void *s) {
    return call("ncclReduce", from, to, n, type, op, root, c, s);
}
unsigned ncclBroadcast(const void *from, void *to, size_t count, unsigned type, int root, struct comm *c, void *s) {
    return call("ncclBroadcast", from, to, count, type, 0, root, c, s);
}
unsigned ncclReduceScatter(const void *from, void *to, size_t n, unsigned type, unsigned op, struct comm *c, void *s) {
    return call("ncclReduceScatter", from, to, n, type, op, -1, c, s);
}
unsigned ncclAllGather(const void *from, void *to, size_t count, unsigned type, struct comm *c, void *s) {
    return call("ncclAllGather", from, to, count, type, 0, -1, c, s);
}
unsigned ncclSend(const void *from, size_t count, unsigned type, int peer, struct comm *c, void *s) {
    return call("ncclSend", from, NULL, count, type, 0, peer, c, s);
}
unsigned ncclRecv(void *to, size_t count, unsigned type, int peer, struct comm *c, void *s) {
    return call("ncclRecv", NULL, to, count, type, 0, peer, c, s);
}
