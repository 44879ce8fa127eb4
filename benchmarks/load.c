/* A closed-loop load generator: one thread, epoll, every answer checked.
 *
 *   load [-H 'NAME: VALUE']... HOST PORT PATH MODE CONCURRENCY SECONDS BODY-FILE...         MODE is json or sse
 *
 * Each connection sends a body, reads the whole answer and sends the next; with several files it cycles over them in order.
 * Nothing new is sent after SECONDS, but what is in flight is waited for, so that requests, CPU and errors belong together
 * and nobody's connections are cut. Where the body's model is "sse-N-MS" the answer must hold N stamped chunks; with MS > 0
 * the starts are spread over SECONDS, so that the streams are out of step as real ones are.
 * Every "%%%%SALTSALT%%%%" in a body is replaced by 16 characters that no earlier request has had: a series of files that grow by
 * one message then stays new, however often it is cycled over. One JSON object on stdout. Not a general HTTP client. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SALT = 16, PIECES = 1000, HEAD_CAP = 4096, IN_CAP = 256 * 1024, EVENTS = 512, CONNECT_ERRORS_MAX = 50 };
static const char SALT_MARK[] = "%%%%SALTSALT%%%%";

struct body { /* the request cut into pieces; an odd piece is a salt, filled in per request */
    struct iovec piece[PIECES];
    int pieces;
    size_t total;
    long chunks, pause_ms; /* what its model asks of the upstream */
};

struct conn {
    int fd;
    unsigned long requests; /* chooses the body */
    const struct body *body;
    char salt[SALT + 1];
    size_t sent;
    uint64_t start_at, began; /* start_at: when to send next, 0 at once */
    bool busy, writes, answered; /* answered: a byte of this answer has been read */
    /* the answer's head */
    char head[16 * 1024];
    size_t head_len;
    bool in_body, chunked, close_after;
    int status;
    /* its body: `left` bytes of this chunk (or of all) */
    size_t left;
    int chunk_state; /* 0 size line, 1 data, 2 line end after data */
    int digits;      /* of the size line so far */
    /* its content */
    char line[8 * 1024];
    size_t line_len;
    bool data_seen, finished, done;
    long stamps;
};

struct series { uint64_t *at; size_t n, cap; };

static struct body *bodies;
static int body_count, poller, in_flight;
static bool sse;
static struct sockaddr_in address;
static struct series latency, ttfb, delay;
static unsigned long served, reconnects, bad_status, incomplete, broken, connect_errors, salt_serial, salt_seed;
static uint64_t bytes_in, started, deadline, last_answer;
static char first_error[200];
static char more_headers[2048]; /* each with its line end */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note(struct series *s, uint64_t value) {
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 4096;
        s->at = realloc(s->at, s->cap * sizeof *s->at);
        if (!s->at)
            exit(1);
    }
    s->at[s->n++] = value;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The q-quantile in microseconds; the series must be sorted. */
static double quantile(const struct series *s, double q) {
    return s->n ? (double)s->at[(size_t)(q * (double)(s->n - 1) + 0.5)] / 1e3 : 0.0;
}

static void remember_error(const char *text, size_t len) {
    if (first_error[0])
        return;
    for (size_t i = 0; i < len && i < sizeof first_error - 1; i++)
        first_error[i] = text[i] < ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\' ? '\'' : text[i];
}

static bool open_conn(struct conn *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) {
        remember_error(strerror(errno), strlen(strerror(errno)));
        close(c->fd);
        c->fd = -1;
        connect_errors++;
        return false;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
    c->writes = false;
    return true;
}

static void close_conn(struct conn *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->busy)
        in_flight--;
    c->busy = false;
}

static void lose(struct conn *c, const char *why) {
    broken++;
    remember_error(why, strlen(why));
    close_conn(c);
}

static void send_more(struct conn *c) {
    while (c->sent < c->body->total) {
        struct iovec rest[PIECES];
        int n = 0;
        size_t at = 0;
        for (int i = 0; i < c->body->pieces; i++) {
            struct iovec piece = c->body->piece[i];
            if (i % 2)
                piece.iov_base = c->salt;
            size_t skip = c->sent > at ? c->sent - at : 0;
            at += piece.iov_len;
            if (skip >= piece.iov_len)
                continue;
            rest[n].iov_base = (char *)piece.iov_base + skip;
            rest[n++].iov_len = piece.iov_len - skip;
        }
        struct msghdr message = {.msg_iov = rest, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN) {
            lose(c, "connection reset while sending");
            return;
        }
        if (sent < 0)
            break;
        c->sent += (size_t)sent;
    }
    bool writes = c->sent < c->body->total;
    if (writes != c->writes) {
        c->writes = writes;
        struct epoll_event e = {.events = EPOLLIN | (writes ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
    }
}

static void begin(struct conn *c, uint64_t now) {
    c->body = &bodies[c->requests++ % (unsigned long)body_count];
    snprintf(c->salt, sizeof c->salt, "%07lx-%08lx", salt_seed & 0xfffffff, salt_serial++ & 0xffffffff);
    c->sent = c->head_len = c->line_len = 0;
    c->in_body = c->answered = c->data_seen = c->finished = c->done = false;
    c->stamps = 0;
    c->began = now;
    c->busy = true;
    in_flight++;
    send_more(c);
}

/* One line of the stream, without its end. */
static void read_line(struct conn *c, const char *line, size_t len, uint64_t now) {
    if (len < 6 || memcmp(line, "data: ", 6) != 0)
        return;
    if (len == 12 && memcmp(line + 6, "[DONE]", 6) == 0) {
        c->done = c->finished;
        return;
    }
    if (!c->data_seen)
        note(&ttfb, now - c->began);
    c->data_seen = true;
    const char *stamp = memmem(line, len, "~T", 2);
    if (stamp && stamp + 18 <= line + len) {
        uint64_t written = strtoull(stamp + 2, NULL, 10);
        note(&delay, now > written ? now - written : 0);
        c->stamps++;
    } else if (memmem(line, len, "\"error\":", 8)) {
        remember_error(line, len);
    } else if (memmem(line, len, "\"finish_reason\":\"", 17) || memmem(line, len, "\"finish_reason\": \"", 18)) {
        c->finished = true;
    }
}

static void read_content(struct conn *c, const char *bytes, size_t len, uint64_t now) {
    if (!sse || c->status != 200) { /* only an edge is needed: of JSON the end, of an error the beginning */
        size_t keep = sizeof c->line - 1;
        if (c->status != 200)
            remember_error(bytes, len);
        if (len >= keep) {
            memcpy(c->line, bytes + len - keep, keep);
            c->line_len = keep;
            return;
        }
        if (c->line_len + len > keep) {
            memmove(c->line, c->line + c->line_len + len - keep, keep - len);
            c->line_len = keep - len;
        }
        memcpy(c->line + c->line_len, bytes, len);
        c->line_len += len;
        return;
    }
    while (len) {
        const char *eol = memchr(bytes, '\n', len);
        size_t part = eol ? (size_t)(eol - bytes) : len, room = sizeof c->line - c->line_len;
        size_t take = part < room ? part : room;
        if (eol && !c->line_len) {
            read_line(c, bytes, part, now);
        } else {
            memcpy(c->line + c->line_len, bytes, take);
            c->line_len += take;
            if (eol)
                read_line(c, c->line, c->line_len, now);
        }
        if (!eol)
            return;
        c->line_len = 0;
        len -= part + 1;
        bytes = eol + 1;
    }
}

/* The answer is whole as HTTP; is it whole as an answer? */
static void finish(struct conn *c, uint64_t now) {
    c->busy = false;
    in_flight--;
    last_answer = now;
    if (c->status != 200) {
        bad_status++;
    } else if (sse ? !c->done || (c->body->chunks && c->stamps != c->body->chunks)
                   : !memmem(c->line, c->line_len, "\"finish_reason\"", 15) || c->line[c->line_len - 1] != '}') {
        incomplete++;
        remember_error("answer without its end", 22);
    } else {
        served++;
        note(&latency, now - c->began);
    }
    if (c->close_after) {
        close_conn(c);
        reconnects++;
    }
}

static bool head_complete(struct conn *c) {
    char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!end)
        return false;
    c->status = c->head_len > 12 ? atoi(c->head + 9) : 0;
    c->chunked = c->close_after = false;
    c->left = 0;
    c->chunk_state = c->digits = 0;
    for (char *line = c->head; line && line < end; line = memchr(line, '\n', (size_t)(end - line))) {
        line += *line == '\n';
        if (strncasecmp(line, "content-length:", 15) == 0)
            c->left = strtoul(line + 15, NULL, 10);
        else if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0)
            c->chunked = true;
        else if (strncasecmp(line, "connection: close", 17) == 0)
            c->close_after = true;
    }
    c->in_body = true;
    return true;
}

/* Reads a part of a chunked body; returns the bytes used. `busy` is false after the last. */
static size_t read_chunked(struct conn *c, const char *at, size_t len, uint64_t now) {
    if (c->chunk_state == 1) {
        size_t take = len < c->left ? len : c->left;
        read_content(c, at, take, now);
        c->left -= take;
        if (!c->left)
            c->chunk_state = 2;
        return take;
    }
    char digit = *at;
    if (digit == '\r')
        return 1;
    if (digit != '\n') {
        c->left = c->left * 16 + (size_t)(digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
        c->digits++;
        return 1;
    }
    if (c->chunk_state == 2) { /* the line end after a chunk's data */
        c->chunk_state = 0;
        c->left = 0;
        c->digits = 0;
    } else if (c->left) {
        c->chunk_state = 1;
    } else if (c->digits) { /* the size line "0"; an empty line follows */
        c->digits = 0;
    } else {
        finish(c, now);
    }
    return 1;
}

static void read_answer(struct conn *c, const char *bytes, size_t len) {
    uint64_t now = now_ns();
    c->answered = true;
    if (!c->in_body) {
        size_t before = c->head_len, take = sizeof c->head - before < len ? sizeof c->head - before : len;
        memcpy(c->head + before, bytes, take);
        c->head_len += take;
        if (!head_complete(c)) {
            if (c->head_len == sizeof c->head)
                lose(c, "answer's head is too long");
            return;
        }
        size_t used = (size_t)((char *)memmem(c->head, c->head_len, "\r\n\r\n", 4) - c->head) + 4 - before;
        bytes += used;
        len -= used;
    }
    while (len && c->busy && c->chunked) {
        size_t used = read_chunked(c, bytes, len, now);
        bytes += used;
        len -= used;
    }
    if (c->busy && !c->chunked) {
        size_t take = len < c->left ? len : c->left;
        read_content(c, bytes, take, now);
        c->left -= take;
        if (!c->left)
            finish(c, now);
    }
}

static void on_readable(struct conn *c) {
    static char in[IN_CAP];
    ssize_t n = recv(c->fd, in, sizeof in, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0 && c->busy) {
        bytes_in += (uint64_t)n;
        read_answer(c, in, (size_t)n);
        return;
    }
    if (!c->busy) { /* an idle connection was closed: not an error */
        close_conn(c);
        reconnects++;
        return;
    }
    lose(c, c->answered ? "connection closed inside an answer" : "connection closed before an answer");
}

static void load_body(struct body *b, const char *file, const char *path, const char *host) {
    FILE *f = fopen(file, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(file);
        exit(2);
    }
    size_t len = (size_t)ftell(f);
    char *text = malloc(len + 1), *head = malloc(HEAD_CAP);
    rewind(f);
    if (!text || !head || fread(text, 1, len, f) != len)
        exit(2);
    fclose(f);
    text[len] = 0;
    char *model = memmem(text, len, "\"model\":\"sse-", 13);
    if (model)
        sscanf(model + 13, "%ld-%ld", &b->chunks, &b->pause_ms);
    /* pieces: head, (empty) salt, text, salt, text ... */
    b->piece[0].iov_base = head;
    b->piece[0].iov_len = (size_t)snprintf(head, HEAD_CAP,
        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: Bearer benchmark\r\n"
        "%sContent-Length: %zu\r\n\r\n", path, host, more_headers, len);
    b->total = b->piece[0].iov_len + len;
    b->pieces = 2;
    for (char *from = text, *end = text + len; from; ) {
        char *mark = b->pieces + 2 < PIECES ? memmem(from, (size_t)(end - from), SALT_MARK, SALT) : NULL;
        b->piece[b->pieces++] = (struct iovec){from, (size_t)((mark ? mark : end) - from)};
        if (mark)
            b->piece[b->pieces++].iov_len = SALT;
        from = mark ? mark + SALT : NULL;
    }
}

/* Starts what is to start; returns milliseconds until the next planned start, -1 for none. */
static int start_requests(struct conn *conns, int count) {
    uint64_t now = now_ns(), next = 0;
    for (int i = 0; i < count && now < deadline && connect_errors < CONNECT_ERRORS_MAX; i++) {
        struct conn *c = &conns[i];
        if (c->busy)
            continue;
        if (c->start_at > now) {
            if (!next || c->start_at < next)
                next = c->start_at;
        } else if (c->fd >= 0 || open_conn(c)) {
            begin(c, now_ns());
        }
    }
    return next ? (int)((next - now) / 1000000) + 1 : -1;
}

static void report(void) {
    double seconds = (double)(last_answer > started ? last_answer - started : deadline - started) / 1e9;
    struct series *all[] = {&latency, &ttfb, &delay};
    for (int i = 0; i < 3; i++)
        qsort(all[i]->at, all[i]->n, sizeof *all[i]->at, ascending);
    printf("{\"requests\":%lu,\"seconds\":%.6f,\"rps\":%.3f,\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,"
           "\"bytes_in\":%llu,\"reconnects\":%lu,", served, seconds, (double)served / seconds, quantile(&latency, .5),
           quantile(&latency, .9), quantile(&latency, .99), (unsigned long long)bytes_in, reconnects);
    printf("\"chunks\":%zu,\"chunks_per_s\":%.1f,\"ttfb_p50_us\":%.1f,\"ttfb_p99_us\":%.1f,\"delay_p50_us\":%.1f,"
           "\"delay_p99_us\":%.1f,", delay.n, (double)delay.n / seconds, quantile(&ttfb, .5), quantile(&ttfb, .99),
           quantile(&delay, .5), quantile(&delay, .99));
    printf("\"errors\":%lu,\"bad_status\":%lu,\"incomplete\":%lu,\"broken\":%lu,\"connect_errors\":%lu,\"unfinished\":%d,"
           "\"first_error\":\"%s\"}\n", bad_status + incomplete + broken + connect_errors + (unsigned long)in_flight,
           bad_status, incomplete, broken, connect_errors, in_flight, first_error);
}

static void run(struct conn *conns, int count, uint64_t drain) {
    struct epoll_event events[EVENTS];
    while (connect_errors < CONNECT_ERRORS_MAX) {
        int wait = start_requests(conns, count);
        uint64_t now = now_ns();
        if ((now >= deadline && !in_flight) || now >= deadline + drain)
            return;
        if (wait < 0 || wait > 100)
            wait = 100;
        int n = epoll_wait(poller, events, EVENTS, wait);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (c->fd >= 0 && events[i].events & EPOLLOUT)
                send_more(c);
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                on_readable(c);
            if (!c->busy && c->fd >= 0 && c->start_at <= now && now < deadline)
                begin(c, now_ns());
        }
    }
}

int main(int argc, char **argv) {
    for (; argc > 2 && strcmp(argv[1], "-H") == 0; argc -= 2, argv += 2) {
        strncat(more_headers, argv[2], sizeof more_headers - strlen(more_headers) - 3);
        strcat(more_headers, "\r\n");
    }
    int count = argc > 7 ? atoi(argv[5]) : 0;
    double seconds = argc > 7 ? atof(argv[6]) : 0;
    if (count < 1 || seconds <= 0) {
        fprintf(stderr, "load [-H HEADER]... HOST PORT PATH json|sse CONCURRENCY SECONDS BODY-FILE...\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    sse = strcmp(argv[4], "sse") == 0;
    body_count = argc - 7;
    bodies = calloc((size_t)body_count, sizeof *bodies);
    struct conn *conns = calloc((size_t)count, sizeof *conns);
    if (!bodies || !conns)
        return 1;
    for (int i = 0; i < body_count; i++)
        load_body(&bodies[i], argv[7 + i], argv[3], argv[1]);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    salt_seed = (unsigned long)wall.tv_sec * 1000 + (unsigned long)wall.tv_nsec / 1000000;
    poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < count; i++)
        conns[i].fd = -1;
    started = now_ns();
    deadline = started + (uint64_t)(seconds * 1e9);
    uint64_t stream = (uint64_t)(bodies[0].chunks * bodies[0].pause_ms) * 1000000u;
    if (sse && stream)
        for (int i = 0; i < count; i++)
            conns[i].start_at = started + (uint64_t)((double)i / count * 0.9 * seconds * 1e9);
    run(conns, count, stream + 30000000000u);
    report();
    return 0;
}
