#include "resident.h"

#if defined(__linux__)

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Read without stdio, which would allocate each time. */
uint64_t resident_bytes(void) {
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    char text[128];
    ssize_t n_bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n_bytes <= 0) {
        return 0;
    }
    text[n_bytes] = '\0';
    uint64_t pages = 0;
    return sscanf(text, "%*u %" SCNu64, &pages) == 1 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

#elif defined(__APPLE__)

#include <mach/mach.h>

uint64_t resident_bytes(void) {
    struct mach_task_basic_info info;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    kern_return_t result =
        task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &count);
    return result == KERN_SUCCESS ? info.resident_size : 0;
}

#else

#include <sys/resource.h>

/* The peak, where there is no better figure. */
uint64_t resident_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

#endif
