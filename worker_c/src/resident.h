/* How much memory the process has in RAM. */
#ifndef WORKER_RESIDENT_H
#define WORKER_RESIDENT_H

#include <stdint.h>

/* Resident bytes as the kernel counts them; 0 when it does not say. */
uint64_t resident_bytes(void);

#endif /* WORKER_RESIDENT_H */
