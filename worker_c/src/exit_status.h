/* Exit statuses (docs/protocol.md, section 6). */
#ifndef WORKER_EXIT_STATUS_H
#define WORKER_EXIT_STATUS_H

enum {
    STATUS_DONE = 0,         /* bye was sent, or the host is gone */
    STATUS_BAD_FRAME = 76,   /* the host broke the protocol */
    STATUS_WRONG_BUILD = 78, /* the library that was loaded is not the pinned one */
    STATUS_NO_PARENT = 79,   /* the parent is gone */
    STATUS_USAGE = 100,      /* wrong command line */
    STATUS_SYSTEM = 111      /* a system call failed; stderr says which */
};

#endif /* WORKER_EXIT_STATUS_H */
