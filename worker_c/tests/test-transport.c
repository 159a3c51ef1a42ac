/* The transport: nothing but frames reaches the protocol, and frames are whole whoever writes them.
 */
#include "check.h"
#include "encode.h"
#include "frame.h"
#include "transport.h"
#include "wake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The test stands in for the host: its own ends of the three standard descriptors, and what it must
 * put back to print its verdict. */
struct host {
    int to_worker, from_worker, errors;
    int saved[3];
    struct wake wake;
    struct transport transport;
};

static void replace(int end, int standard) {
    dup2(end, standard);
    close(end);
}

static void host_start(struct host *host) {
    int in[2];
    int out[2];
    int err[2];
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        host->saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 10);
    }
    if (pipe(in) != 0 || pipe(out) != 0 || pipe(err) != 0 || !wake_open(&host->wake)) {
        abort();
    }
    replace(in[0], 0);
    replace(out[1], 1);
    replace(err[1], 2);
    host->to_worker = in[1];
    host->from_worker = out[0];
    host->errors = err[0];
    bool is_open = transport_open(&host->transport, &host->wake);
    CHECK(is_open);
}

static void host_stop(struct host *host) {
    transport_close(&host->transport);
    wake_close(&host->wake);
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        replace(host->saved[i], i);
    }
    close(host->to_worker);
    close(host->from_worker);
    close(host->errors);
}

static void encode_ping(struct encoder *encoder, uint8_t *storage, size_t size) {
    encode_start_fixed(encoder, storage, size);
    encode_map(encoder, NULL, 1);
    encode_text(encoder, "type", "ping");
    encode_finish(encoder);
}

static bool read_whole(int fd, void *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t n_bytes = read(fd, (char *)bytes + done, size - done);
        if (n_bytes <= 0) {
            return false;
        }
        done += (size_t)n_bytes;
    }
    return true;
}

static void test_stdout_carries_frames_only(void) {
    struct host host;
    host_start(&host);
    uint8_t storage[64];
    struct encoder encoder;
    encode_ping(&encoder, storage, sizeof(storage));
    printf("a library prints\n");
    fflush(stdout);
    ssize_t n_direct = write(1, "and writes\n", 11);
    bool is_sent = transport_send(&host.transport, &encoder);
    uint8_t frame[64];
    ssize_t n_frame = read(host.from_worker, frame, sizeof(frame));
    char printed[64];
    ssize_t n_printed = read(host.errors, printed, sizeof(printed));
    int flags_in = fcntl(host.transport.in, F_GETFD);
    int flags_out = fcntl(host.transport.out, F_GETFD);
    char byte;
    ssize_t n_stdin = read(0, &byte, 1);
    host_stop(&host);

    check_subject("stdout");
    CHECK_INT(n_direct, 11);
    CHECK(is_sent);
    CHECK_BYTES("frame", frame, (size_t)n_frame, encoder.data, encoder.size);
    CHECK_BYTES("printed", printed, (size_t)n_printed, "a library prints\nand writes\n", 28);
    CHECK((flags_in & FD_CLOEXEC) != 0);
    CHECK((flags_out & FD_CLOEXEC) != 0);
    CHECK_INT(n_stdin, 0);
}

static void test_stdin_is_read_to_its_end(void) {
    struct host host;
    host_start(&host);
    char bytes[8] = "";
    ssize_t n_written = write(host.to_worker, "abc", 3);
    ptrdiff_t n_first = transport_read(&host.transport, bytes, 2);
    ptrdiff_t n_second = transport_read(&host.transport, bytes + 2, 2);
    close(host.to_worker);
    ptrdiff_t n_last = transport_read(&host.transport, bytes + 3, 1);
    host.to_worker = dup(0);
    host_stop(&host);

    check_subject("stdin");
    CHECK_INT(n_written, 3);
    CHECK_INT(n_first, 2);
    CHECK_INT(n_second, 1);
    CHECK_INT(n_last, 0);
    CHECK_TEXT(bytes, "abc");
}

static void test_host_that_is_gone(void) {
    struct host host;
    host_start(&host);
    uint8_t storage[64];
    struct encoder encoder;
    encode_ping(&encoder, storage, sizeof(storage));
    close(host.from_worker);
    bool is_first_sent = transport_send(&host.transport, &encoder);
    bool is_second_sent = transport_send(&host.transport, &encoder);
    int error = atomic_load(&host.transport.error);
    struct pollfd bell = {.fd = host.wake.heard, .events = POLLIN};
    int n_rung = poll(&bell, 1, 0);
    host.from_worker = dup(0);
    host_stop(&host);

    check_subject("broken pipe");
    CHECK(!is_first_sent);
    CHECK(!is_second_sent);
    CHECK_INT(error, EPIPE);
    CHECK_INT(n_rung, 1);
}

static void test_last_frame_is_the_last(void) {
    struct host host;
    host_start(&host);
    uint8_t storage[64];
    struct encoder encoder;
    encode_ping(&encoder, storage, sizeof(storage));
    bool is_last_sent = transport_send_last(&host.transport, &encoder);
    bool is_later_sent = transport_send(&host.transport, &encoder);
    uint8_t frame[128];
    ssize_t n_frame = read(host.from_worker, frame, sizeof(frame));
    host_stop(&host);

    check_subject("last frame");
    CHECK(is_last_sent);
    CHECK(!is_later_sent);
    CHECK_INT(n_frame, encoder.size);
}

/* ---- many writers ---- */

enum { N_WRITERS = 4, N_FRAMES = 50, N_VALUES = 20000 };

struct sender {
    struct transport *transport;
    uint8_t mark;
    pthread_t thread;
};

/* Frames larger than a pipe, each of one byte repeated. */
static void *send_frames(void *argument) {
    struct sender *sender = argument;
    uint8_t *values = malloc(N_VALUES);
    memset(values, sender->mark, N_VALUES);
    for (int i = 0; i < N_FRAMES; i++) {
        uint8_t storage[64];
        struct encoder encoder;
        encode_start_fixed(&encoder, storage, sizeof(storage));
        encode_map(&encoder, NULL, 1);
        encode_tail(&encoder, "rows", values, N_VALUES);
        encode_finish(&encoder);
        transport_send(sender->transport, &encoder);
    }
    free(values);
    return NULL;
}

static bool is_uniform(const uint8_t *values) {
    for (int i = 1; i < N_VALUES; i++) {
        if (values[i] != values[0]) {
            return false;
        }
    }
    return true;
}

static int count_whole_frames(int fd) {
    uint8_t *frame = malloc(N_VALUES + 64);
    int n_whole = 0;
    for (int i = 0; i < N_WRITERS * N_FRAMES; i++) {
        uint8_t header[FRAME_HEADER_SIZE];
        if (!read_whole(fd, header, sizeof(header))) {
            break;
        }
        uint32_t size = (uint32_t)header[4] | (uint32_t)header[5] << 8;
        if (size > N_VALUES + 64 || !read_whole(fd, frame, size)) {
            break;
        }
        n_whole += is_uniform(frame + size - N_VALUES);
    }
    free(frame);
    return n_whole;
}

static void test_frames_of_many_threads_are_whole(bool is_nonblocking) {
    struct host host;
    host_start(&host);
    if (is_nonblocking) {
        fcntl(host.transport.out, F_SETFL, O_NONBLOCK);
    }
    struct sender senders[N_WRITERS];
    for (int i = 0; i < N_WRITERS; i++) {
        senders[i].transport = &host.transport;
        senders[i].mark = (uint8_t)(i + 1);
        pthread_create(&senders[i].thread, NULL, send_frames, &senders[i]);
    }
    int n_whole = count_whole_frames(host.from_worker);
    for (int i = 0; i < N_WRITERS; i++) {
        pthread_join(senders[i].thread, NULL);
    }
    host_stop(&host);

    check_subject(is_nonblocking ? "many threads, non-blocking" : "many threads");
    CHECK_INT(n_whole, N_WRITERS * N_FRAMES);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    test_stdout_carries_frames_only();
    test_stdin_is_read_to_its_end();
    test_host_that_is_gone();
    test_last_frame_is_the_last();
    test_frames_of_many_threads_are_whole(false);
    test_frames_of_many_threads_are_whole(true);
    return check_verdict();
}
