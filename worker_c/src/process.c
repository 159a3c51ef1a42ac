#include "process.h"

#include "exit_status.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

bool process_prepare(void) {
    const struct rlimit no_core = {0, 0};
    /* A limit on file sizes is then an error of write(2), which the engine reports as a full disk.
     */
    const bool ignored = signal(SIGPIPE, SIG_IGN) != SIG_ERR && signal(SIGXFSZ, SIG_IGN) != SIG_ERR;
    return ignored && setrlimit(RLIMIT_CORE, &no_core) == 0 &&
           setenv("GGML_NO_BACKTRACE", "1", 1) == 0;
}

bool process_bind_to_parent(uint64_t parent_pid) {
#ifdef __linux__
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        return false;
    }
#endif
    /* Looked at after the request: a parent that died in between has given us another. Elsewhere
     * than on Linux the end of file on stdin says that the parent is gone. */
    return getppid() == (pid_t)parent_pid;
}

static pid_t watched_parent;

static void *watch_parent(void *unused) {
    const struct timespec interval = {0, 250 * 1000 * 1000};
    while (getppid() == watched_parent) {
        nanosleep(&interval, NULL);
    }
    _exit(STATUS_NO_PARENT);
    return unused;
}

bool process_watch_parent(uint64_t parent_pid) {
    pthread_t thread;
    watched_parent = (pid_t)parent_pid;
    errno = pthread_create(&thread, NULL, watch_parent, NULL);
    return errno == 0 && (errno = pthread_detach(thread)) == 0;
}

static volatile sig_atomic_t late_status;

static void exit_late(int number) {
    (void)number;
    _exit(late_status);
}

void process_give_way(int nice) {
#ifdef __linux__
    if (nice != 0) {
        setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nice);
    }
#else
    (void)nice;
#endif
}

void process_exit_after(unsigned seconds, int status) {
    late_status = status;
    signal(SIGALRM, exit_late);
    alarm(seconds);
}
