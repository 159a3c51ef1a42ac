#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

/* A closed standard descriptor would be given to the next file that is opened. */
bool transport_fill_standard_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) {
            return false;
        }
    }
    return true;
}

static int move_away(int fd) {
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static bool replace_standard_descriptors(void) {
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0) {
        return false;
    }
    bool done = dup2(nothing, 0) == 0 && dup2(2, 1) == 1;
    close(nothing);
    return done;
}

bool transport_open(struct transport *transport, const struct wake *wake) {
    transport->in = -1;
    transport->out = -1;
    transport->is_sealed = false;
    transport->wake = wake;
    transport->before_frame = NULL;
    transport->before_frame_context = NULL;
    atomic_init(&transport->error, 0);
    pthread_mutex_init(&transport->lock, NULL);
    transport->in = move_away(0);
    transport->out = move_away(1);
    return transport->in >= 0 && transport->out >= 0 && replace_standard_descriptors();
}

void transport_close(struct transport *transport) {
    close(transport->in);
    close(transport->out);
    pthread_mutex_destroy(&transport->lock);
}

/* Passes over what was written. */
static void advance(struct iovec *parts, int n_parts, size_t n_written) {
    for (int i = 0; i < n_parts; i++) {
        size_t n_here = n_written < parts[i].iov_len ? n_written : parts[i].iov_len;
        parts[i].iov_base = (char *)parts[i].iov_base + n_here;
        parts[i].iov_len -= n_here;
        n_written -= n_here;
    }
}

/* The host may have left the descriptor non-blocking. */
static bool may_try_again(int fd) {
    if (errno == EINTR) {
        return true;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return false;
    }
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    return poll(&room, 1, -1) >= 0 || errno == EINTR;
}

static bool write_all(int fd, struct iovec *parts, int n_parts) {
    size_t left = 0;
    for (int i = 0; i < n_parts; i++) {
        left += parts[i].iov_len;
    }
    while (left > 0) {
        ssize_t n_written = writev(fd, parts, n_parts);
        if (n_written >= 0) {
            advance(parts, n_parts, (size_t)n_written);
            left -= (size_t)n_written;
        } else if (!may_try_again(fd)) {
            return false;
        }
    }
    return true;
}

static bool write_frame(struct transport *transport, const struct encoder *encoder) {
    if (transport->is_sealed || atomic_load(&transport->error) != 0) {
        return false;
    }
    if (transport->before_frame != NULL) {
        transport->before_frame(transport->before_frame_context, transport->out, encoder);
    }
    /* writev only reads through these, so casting const away is safe. */
    struct iovec parts[2] = {
        {encoder->data, encoder->size},
        {(void *)(uintptr_t)encoder->tail, encoder->tail_size},
    };
    if (write_all(transport->out, parts, encoder->tail_size > 0 ? 2 : 1)) {
        return true;
    }
    /* Half a frame may be out: the stream is lost for good. */
    atomic_store(&transport->error, errno);
    wake_ring(transport->wake);
    return false;
}

bool transport_send(struct transport *transport, const struct encoder *encoder) {
    pthread_mutex_lock(&transport->lock);
    bool done = write_frame(transport, encoder);
    pthread_mutex_unlock(&transport->lock);
    return done;
}

bool transport_send_last(struct transport *transport, const struct encoder *encoder) {
    pthread_mutex_lock(&transport->lock);
    bool done = write_frame(transport, encoder);
    transport->is_sealed = true;
    pthread_mutex_unlock(&transport->lock);
    return done;
}

ptrdiff_t transport_read(const struct transport *transport, void *bytes, size_t size) {
    for (;;) {
        ssize_t n_bytes = read(transport->in, bytes, size);
        if (n_bytes >= 0 || errno != EINTR) {
            return n_bytes;
        }
    }
}
