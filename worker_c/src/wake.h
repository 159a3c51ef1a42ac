/* A bell that any thread rings and that poll hears. */
#ifndef WORKER_WAKE_H
#define WORKER_WAKE_H

#include <stdbool.h>

struct wake {
    int heard; /* readable after a ring */
    int rung;
};

bool wake_open(struct wake *wake);
void wake_ring(const struct wake *wake);
void wake_clear(const struct wake *wake);
void wake_close(struct wake *wake);

#endif /* WORKER_WAKE_H */
