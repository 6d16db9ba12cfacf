/* What the doubles of libcuda and libnccl have in common. They stand in for NVIDIA's libraries in tests on machines without a
 * GPU: "device" memory is the host's, a stream is a thread that works off a queue, and NCCL's operations are moved between
 * processes through one shared file per unique id, reduced for real. Nothing of this is shipped.
 *
 * Environment:
 *   GPU_DOUBLE_RECORD       a folder: each process writes its calls there, a line each, in PID.calls
 *   GPU_DOUBLE_DEVICES      GPUs to be seen (8)
 *   GPU_DOUBLE_CUINIT       what cuInit answers (0)
 *   GPU_DOUBLE_DRIVER       what cuDriverGetVersion tells (12080)
 *   GPU_DOUBLE_DMABUF       whether memory is given out as dma-buf (1)
 *   GPU_DOUBLE_MEMORY       bytes of a GPU's memory (1 GiB)
 *   GPU_DOUBLE_NCCL         what ncclGetVersion tells (22703)
 *   GPU_DOUBLE_DIR          a folder for the shared files (/tmp)
 *   GPU_DOUBLE_INIT_ERROR   RANK:CODE: ncclCommInitRankConfig of this rank fails so
 *   GPU_DOUBLE_ASYNC_ERROR  RANK:CALL:CODE: in this rank's call, from 0, the background fails so, and the call hangs
 *   GPU_DOUBLE_HANG         RANK:CALL: this rank's call, from 0, never ends
 *   GPU_DOUBLE_DIES_IN_INIT RANK: this rank's process is killed (SIGKILL) in ncclCommInitRankConfig
 *   GPU_DOUBLE_SLOW_ABORT   how long ncclCommAbort takes, in ms (0)
 *   GPU_DOUBLE_CONNECT_POLLS  how often a communicator's first call answers "in progress" (3)
 */
#ifndef RINGWAY_GPU_DOUBLE_H
#define RINGWAY_GPU_DOUBLE_H

#include <stddef.h>

/* Writes a line of the record. */
void double_record(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A number out of the environment. */
long double_setting(const char *name, long otherwise);
/* Has `run(arg)` done by a stream's thread, behind what was given to it before. */
void double_enqueue(void *stream, void (*run)(void *), void *arg);
/* The number of the GPU whose context is the calling thread's; -1 for none. */
int double_current_device(void);

#endif
