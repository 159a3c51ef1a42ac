/* A worker without its parent. */
#include "check.h"
#include "exit_status.h"
#include "process.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20 * 1000 };

/* A process that watches its parent and does nothing else. It holds `held` open until it ends. */
static void live_as_worker(int held, pid_t parent) {
    if (!process_watch_parent((uint64_t)parent)) {
        _exit(STATUS_SYSTEM);
    }
    char byte = 1;
    if (write(held, &byte, 1) != 1) {
        _exit(STATUS_SYSTEM);
    }
    for (;;) {
        pause();
    }
}

static bool is_readable(int fd) {
    struct pollfd event = {.fd = fd, .events = POLLIN};
    return poll(&event, 1, DEADLINE_MS) == 1;
}

/* The kernel is not asked for a signal here, so only the thread can end the worker. */
static void test_process_ends_when_its_parent_is_gone(void) {
    check_subject("a parent that dies");
    int ends[2];
    if (pipe(ends) != 0) {
        abort();
    }
    pid_t parent = fork();
    if (parent == 0) {
        if (fork() == 0) {
            live_as_worker(ends[1], getppid());
        }
        close(ends[1]);
        for (;;) {
            pause();
        }
    }
    close(ends[1]);
    char byte;
    CHECK(is_readable(ends[0]));
    CHECK_INT(read(ends[0], &byte, 1), 1);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    CHECK(is_readable(ends[0]));
    CHECK_INT(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

static void test_process_that_never_had_that_parent_ends_at_once(void) {
    check_subject("another parent");
    pid_t worker = fork();
    if (worker == 0) {
        alarm(DEADLINE_MS / 1000);
        if (process_watch_parent(1)) {
            pause();
        }
        _exit(STATUS_SYSTEM);
    }
    int status = 0;
    CHECK_INT(waitpid(worker, &status, 0), worker);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), STATUS_NO_PARENT);
}

int main(void) {
    test_process_ends_when_its_parent_is_gone();
    test_process_that_never_had_that_parent_ends_at_once();
    return check_verdict();
}
