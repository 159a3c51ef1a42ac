/* Time that never goes backwards. */
#ifndef WORKER_CLOCK_H
#define WORKER_CLOCK_H

#include <stdint.h>

/* Microseconds since some moment before the process started. */
uint64_t clock_now_us(void);

#endif /* WORKER_CLOCK_H */
