/* Every limit of the worker, in one place. Each is checked before anything is allocated for it. */
#ifndef WORKER_BOUNDS_H
#define WORKER_BOUNDS_H

#include "shard_engine.h"

enum {
    PROTOCOL_MIN = 1, /* protocol versions that this worker speaks (docs/protocol.md, 3) */
    PROTOCOL_MAX = 1,
    LIMIT_DEPTH = 8,          /* levels of nesting in a body, the outer map being the first */
    LIMIT_KEYS = 64,          /* keys in one map */
    LIMIT_WAITING = 256,      /* requests that wait for the execution thread */
    LIMIT_WAITING_FRAMES = 4, /* their bodies together, in units of max_frame_bytes */
    LIMIT_LAST_WORD_S = 2,    /* seconds that the error about a broken stream may take to be read */
    LIMIT_ORPHAN_S = 30,      /* seconds that an engine may take to close when the host is gone */
    LIMIT_PATH = 4096,        /* bytes of a path, with its NUL */
    LIMIT_GRAMMAR = 64 * 1024,          /* bytes of a grammar */
    LIMIT_LOGIT_BIAS = 4096,            /* pairs in a logit bias */
    LIMIT_TOP = SHARD_MAX_TOP_LOGPROBS, /* candidates in a result */
    LIMIT_TOP_TEXT = 16 * 1024,         /* bytes of their texts together */
    FRAME_BYTES_DEFAULT = 64 * 1024 * 1024,
    FRAME_BYTES_LEAST = 64 * 1024, /* hello, health and every error fit in it */
    FRAME_BYTES_MOST = 1024 * 1024 * 1024
};

#endif /* WORKER_BOUNDS_H */
