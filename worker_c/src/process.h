/* What the process says to its kernel before it does anything else. */
#ifndef WORKER_PROCESS_H
#define WORKER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* No core dump (4 GiB of weights take seconds to dump, in which nobody knows that the worker is
 * dead), no SIGPIPE (a host that is gone is an end like any other), no SIGXFSZ (a limit on file
 * sizes is an error of the write), and no debugger that ggml forks when it aborts. False with errno
 * set. */
bool process_prepare(void);

/* Asks to be killed when the thread that started this process ends, and looks whether the parent is
 * still `parent_pid`. False when it is not: it died before the request could reach the kernel. */
bool process_bind_to_parent(uint64_t parent_pid);

/* Starts a thread that ends the process at once, whatever its other threads are blocked in, when
 * the parent is no longer `parent_pid`. It is what is left where the kernel cannot be asked to kill
 * us, and a process forked by the host keeps the pipes open. False with errno set. */
bool process_watch_parent(uint64_t parent_pid);

/* Lets this thread, and those that it starts, have the processors after others. Where only whole
 * processes have a priority (which is anywhere but on Linux), nothing happens: the thread that
 * answers pings is not to wait. */
void process_give_way(int nice);

/* Ends the process with `status` in that time whatever its threads do: one may be writing to a pipe
 * that nobody reads, and then holds up every other that wants to write. */
void process_exit_after(unsigned seconds, int status);

#endif /* WORKER_PROCESS_H */
