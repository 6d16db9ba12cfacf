/* handoff.c - nanoseconds in which one cache line passes between the first two CPUs that this process may use: the
 * median of 21 short rounds; 0 where there is only one CPU. A few milliseconds in all.
 *
 * The CPUs of a virtual machine move about on the host: at one time they share a cache, at another they do not, and
 * every exchange between two processes then takes longer, whoever makes it. run-peers.sh writes this number down before
 * and after each run, so that runs of the same kind can be compared.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 21, PASSES = 1000 };

static double now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static int by_value(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static void bind_to(int cpu) { cpu_set_t one; CPU_ZERO(&one); CPU_SET(cpu, &one); sched_setaffinity(0, sizeof one, &one); }

int main(void) {
    cpu_set_t allowed;
    int cpus[2], found = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) { perror("sched_getaffinity"); return 1; }
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &allowed)) cpus[found++] = cpu;
    if (found < 2) { puts("0"); return 0; }
    atomic_int *turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turn == MAP_FAILED) { perror("mmap"); return 1; }
    pid_t other = fork();
    if (other < 0) { perror("fork"); return 1; }
    bind_to(cpus[other == 0]);
    double each[ROUNDS];
    for (int round = 0, pass = 0; round < ROUNDS; round++) {
        double begun = now_ns();
        for (int i = 0; i < PASSES; i++, pass++) {
            int mine = 2 * pass + (other == 0);
            while (atomic_load(turn) != mine) { }
            atomic_store(turn, mine + 1);
        }
        each[round] = (now_ns() - begun) / PASSES / 2;
    }
    if (other == 0) _exit(0);
    waitpid(other, NULL, 0);
    qsort(each, ROUNDS, sizeof *each, by_value);
    printf("%.0f\n", each[ROUNDS / 2]);
    return 0;
}
