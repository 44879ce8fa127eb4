/* A provider that is never the bottleneck: one thread, epoll, canned answers, nothing parsed that need not be.
 *
 *   upstream PORT      PORT 0 takes a free one; prints "port N" when it listens on 127.0.0.1.
 *
 * POST .../chat/completions   a chat completion, or, where the body's model is "sse-N-MS", a stream of N stamped chunks,
 *                             one every MS milliseconds (0: without a pause). The usage chunk comes if include_usage is asked.
 * GET  .../models             a list.
 *
 * A stamped chunk's content is "~T" and 16 digits: CLOCK_MONOTONIC in nanoseconds when it was written, so the generator on
 * the same machine can tell how long it was on its way. prompt_tokens is a quarter of the body's bytes: a constant would look
 * like silent truncation to a gateway that watches usage. Not a general HTTP server; never part of the product. */

#define _GNU_SOURCE
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
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 64 * 1024, EVENTS = 512, STREAMS_MAX = 65536 };

struct conn {
    int fd;
    char *in;              /* head, then body (a chunked body is decoded in place) */
    size_t in_len, in_cap;
    size_t head_len;       /* 0: the head has not arrived yet */
    size_t body_len;       /* bytes of body, decoded */
    size_t cursor;         /* chunked: where the next chunk's size line begins */
    bool chunked, close_after, asked_for_writes;
    char *out;
    size_t out_len, out_cap, out_off;
    bool streaming;
    bool dead;             /* closed; freed at the end of the turn, other events may still name it */
    bool with_usage;
    unsigned long serial;
    long chunks_left, chunks_all;
    uint64_t interval, due; /* nanoseconds */
    struct conn *next_dead;
};

static int poller, timer;
static struct conn *streams[STREAMS_MAX];
static int stream_count;
static uint64_t armed_for;
static unsigned long serial;
static struct conn *graveyard;

static const char FRAME[] =
    "data: {\"id\":\"chatcmpl-%012lx\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\","
    "\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]}\n\n";

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *grown(void *old, size_t size) {
    void *block = realloc(old, size);
    if (!block) {
        perror("upstream: memory");
        exit(1);
    }
    return block;
}

static void put(struct conn *c, const char *bytes, size_t len) {
    if (c->out_len + len > c->out_cap) {
        c->out_cap = (c->out_len + len) * 2;
        c->out = grown(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, bytes, len);
    c->out_len += len;
}

/* One HTTP chunk that holds one SSE event. */
static void put_frame(struct conn *c, const char *frame, size_t len) {
    char size[16];
    put(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", len));
    put(c, frame, len);
    put(c, "\r\n", 2);
}

static void put_delta(struct conn *c, const char *delta, const char *finish) {
    char frame[512];
    put_frame(c, frame, (size_t)snprintf(frame, sizeof frame, FRAME, c->serial, delta, finish));
}

static void put_stamped(struct conn *c) {
    char delta[64];
    snprintf(delta, sizeof delta, "{\"content\":\"~T%016llu \"}", (unsigned long long)now_ns());
    put_delta(c, delta, "null");
}

static void put_stream_end(struct conn *c) {
    char frame[512];
    long prompt = (long)(c->body_len / 4) + 1;
    put_delta(c, "{}", "\"stop\"");
    if (c->with_usage)
        put_frame(c, frame, (size_t)snprintf(frame, sizeof frame,
            "data: {\"id\":\"chatcmpl-%012lx\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\","
            "\"choices\":[],\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":%ld,\"total_tokens\":%ld}}\n\n",
            c->serial, prompt, c->chunks_all, prompt + c->chunks_all));
    put_frame(c, "data: [DONE]\n\n", 14);
    put(c, "0\r\n\r\n", 5);
}

static void watch(struct conn *c, bool writes) {
    if (writes == c->asked_for_writes)
        return;
    c->asked_for_writes = writes;
    struct epoll_event e = {.events = EPOLLIN | (writes ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void leave_streams(struct conn *c) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == c) {
            streams[i] = streams[--stream_count];
            return;
        }
}

static void bury(struct conn *c) {
    if (c->dead)
        return;
    c->dead = true;
    if (c->streaming)
        leave_streams(c);
    close(c->fd);
    c->next_dead = graveyard;
    graveyard = c;
}

static void flush_out(struct conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            watch(c, true);
            return;
        }
        if (n <= 0) {
            bury(c);
            return;
        }
        c->out_off += (size_t)n;
    }
    c->out_off = c->out_len = 0;
    watch(c, false);
    if (c->close_after && !c->streaming)
        bury(c);
}

static void arm(uint64_t due) {
    armed_for = due;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Send what is due on every paced stream, then sleep until the earliest next one. */
static void tick(void) {
    uint64_t now = now_ns(), next = 0;
    for (int i = 0; i < stream_count;) {
        struct conn *c = streams[i];
        if (c->due <= now) {
            put_stamped(c);
            c->due += c->interval;
            if (--c->chunks_left == 0) {
                put_stream_end(c);
                c->streaming = false;
                streams[i] = streams[--stream_count];
                flush_out(c);
                continue;
            }
            flush_out(c);
            if (c->dead)
                continue; /* bury() put another stream in this place */
        }
        if (!next || c->due < next)
            next = c->due;
        i++;
    }
    armed_for = 0;
    if (next)
        arm(next);
}

/* The value of the body's "model"; it stands near an end in every client's bodies, so look there first. */
static const char *model_in(const char *body, size_t len, size_t *left) {
    const char *at = NULL;
    size_t edge = 16 * 1024;
    if (len > 2 * edge) {
        at = memmem(body + len - edge, edge, "\"model\":", 8);
        if (!at)
            at = memmem(body, edge, "\"model\":", 8);
    }
    if (!at)
        at = memmem(body, len, "\"model\":", 8);
    if (!at)
        return NULL;
    at += 8;
    while (at < body + len && (*at == ' ' || *at == '"'))
        at++;
    *left = (size_t)(body + len - at);
    return at;
}

static bool asks_for_usage(const char *body, size_t len) {
    const char *at = memmem(body, len, "\"include_usage\":", 16);
    return at && memmem(at, (size_t)(body + len - at) < 24 ? (size_t)(body + len - at) : 24, "true", 4);
}

static void start_stream(struct conn *c, const char *body, long chunks, long pause_ms) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    c->chunks_all = chunks;
    c->with_usage = asks_for_usage(body, c->body_len);
    put(c, head, sizeof head - 1);
    put_delta(c, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
    if (pause_ms <= 0 || chunks <= 0 || stream_count == STREAMS_MAX) {
        c->streaming = true; /* one write per chunk, as providers do; what the reader is too slow for coalesces */
        for (long i = 0; i < chunks && !c->dead; i++) {
            put_stamped(c);
            if (!c->asked_for_writes)
                flush_out(c);
        }
        c->streaming = false;
        put_stream_end(c);
        return;
    }
    c->chunks_left = chunks;
    c->interval = (uint64_t)pause_ms * 1000000u;
    c->due = now_ns() + c->interval;
    c->streaming = true;
    streams[stream_count++] = c;
    if (!armed_for || c->due < armed_for)
        arm(c->due);
}

static void answer_json(struct conn *c, int status, const char *json, size_t len) {
    char head[160];
    put(c, head, (size_t)snprintf(head, sizeof head,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
        status, status == 200 ? "OK" : "Error", len));
    put(c, json, len);
}

static void answer_chat(struct conn *c, const char *body) {
    char json[1024];
    size_t left = 0;
    const char *model = model_in(body, c->body_len, &left);
    c->serial = ++serial;
    if (model && left > 8 && memcmp(model, "sse-", 4) == 0) {
        char *rest;
        long chunks = strtol(model + 4, &rest, 10);
        long pause = *rest == '-' ? strtol(rest + 1, NULL, 10) : 0;
        start_stream(c, body, chunks, pause);
        return;
    }
    long prompt = (long)(c->body_len / 4) + 1;
    size_t len = (size_t)snprintf(json, sizeof json,
        "{\"id\":\"chatcmpl-%012lx\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"bench\",\"choices\":"
        "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The weir is open and the water runs, as you asked. "
        "Nothing else needs to be done before the next step.\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":24,\"total_tokens\":%ld}}",
        c->serial, prompt, prompt + 24);
    answer_json(c, 200, json, len);
}

static void answer(struct conn *c) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\","
                                 "\"created\":1700000000,\"owned_by\":\"benchmarks\"}]}";
    static const char missing[] = "{\"error\":{\"message\":\"no such path\",\"type\":\"invalid_request_error\","
                                  "\"param\":null,\"code\":null}}";
    const char *line_end = memchr(c->in, '\r', c->head_len);
    size_t line = line_end ? (size_t)(line_end - c->in) : c->head_len;
    if (memcmp(c->in, "POST ", 5) == 0 && memmem(c->in, line, "/chat/completions", 17))
        answer_chat(c, c->in + c->head_len);
    else if (memcmp(c->in, "GET ", 4) == 0 && memmem(c->in, line, "/models", 7))
        answer_json(c, 200, models, sizeof models - 1);
    else
        answer_json(c, 404, missing, sizeof missing - 1);
}

static bool header_is(const char *line, const char *name, const char **value) {
    size_t len = strlen(name);
    if (strncasecmp(line, name, len) != 0)
        return false;
    *value = line + len;
    while (**value == ' ')
        (*value)++;
    return true;
}

/* Returns false for a head that this server does not take. */
static bool read_head(struct conn *c) {
    const char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4), *value;
    if (!end)
        return c->in_len < HEAD_MAX;
    c->head_len = (size_t)(end - c->in) + 4;
    c->body_len = 0;
    c->chunked = c->close_after = false;
    c->cursor = c->head_len;
    for (const char *line = c->in; line && line < end; line = memchr(line, '\n', (size_t)(end - line))) {
        line += line != c->in;
        if (header_is(line, "content-length:", &value))
            c->body_len = strtoul(value, NULL, 10);
        else if (header_is(line, "transfer-encoding:", &value))
            c->chunked = strncasecmp(value, "chunked", 7) == 0;
        else if (header_is(line, "connection:", &value))
            c->close_after = strncasecmp(value, "close", 5) == 0;
        else if (header_is(line, "expect:", &value))
            put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    if (c->out_len)
        flush_out(c);
    return c->body_len < (size_t)1 << 30;
}

/* Move the chunks that have arrived to the end of the decoded body. Returns 1 at the end, 0 for more, -1 if malformed. */
static int dechunk(struct conn *c) {
    for (;;) {
        char *line = c->in + c->cursor, *rest;
        char *eol = memmem(line, c->in_len - c->cursor, "\r\n", 2);
        if (!eol)
            return 0;
        size_t size = strtoul(line, &rest, 16), data = (size_t)(eol - c->in) + 2;
        if (rest == line || size > (size_t)1 << 30)
            return -1;
        if (c->in_len < data + size + 2)
            return 0;
        memmove(c->in + c->head_len + c->body_len, c->in + data, size);
        c->body_len += size;
        c->cursor = data + size + 2;
        if (size == 0)
            return 1;
    }
}

/* Answer every whole request that is there. */
static void advance(struct conn *c) {
    while (!c->streaming && !c->dead && c->in_len) {
        if (!c->head_len && !read_head(c)) {
            bury(c);
            return;
        }
        if (c->dead || !c->head_len)
            return;
        size_t used = c->head_len + c->body_len;
        if (c->chunked) {
            int state = dechunk(c);
            if (state < 0)
                bury(c);
            if (state <= 0)
                return;
            used = c->cursor;
        }
        if (c->in_len < used)
            return;
        answer(c);
        memmove(c->in, c->in + used, c->in_len - used);
        c->in_len -= used;
        c->head_len = 0;
        flush_out(c);
    }
}

static void on_readable(struct conn *c) {
    for (;;) {
        size_t want = c->head_len && !c->chunked ? c->head_len + c->body_len : c->in_len + 16 * 1024;
        if (want + 1 > c->in_cap) {
            c->in_cap = want + 64 * 1024; /* one byte is always spare: strtol stops at it */
            c->in = grown(c->in, c->in_cap);
        }
        size_t room = c->in_cap - 1 - c->in_len;
        if (!room)
            return;
        ssize_t n = recv(c->fd, c->in + c->in_len, room, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            bury(c);
            return;
        }
        c->in_len += (size_t)n;
        c->in[c->in_len] = 0;
        advance(c);
        if (c->dead || (size_t)n < room)
            return;
    }
}

static void on_connect(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct conn *c = calloc(1, sizeof *c);
        if (!c)
            exit(1);
        c->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096) || getsockname(fd, (struct sockaddr *)&at, &len)) {
        perror("upstream: listen");
        exit(1);
    }
    printf("port %d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void clear_graveyard(void) {
    while (graveyard) {
        struct conn *c = graveyard;
        graveyard = c->next_dead;
        free(c->in);
        free(c->out);
        free(c);
    }
}

int main(int argc, char **argv) {
    static int listener_tag, timer_tag;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* never outlive the run that started it */
    int listener = listen_on(argc > 1 ? atoi(argv[1]) : 0);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &listener_tag}, events[EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    e.data.ptr = &timer_tag;
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &e);
    for (;;) {
        int n = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            void *tag = events[i].data.ptr;
            if (tag == &listener_tag) {
                on_connect(listener);
            } else if (tag == &timer_tag) {
                uint64_t fired;
                if (read(timer, &fired, sizeof fired) > 0)
                    tick();
            } else {
                struct conn *c = tag;
                if (!c->dead && events[i].events & EPOLLOUT) {
                    flush_out(c);
                    if (!c->dead)
                        advance(c);
                }
                if (!c->dead && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    on_readable(c);
            }
        }
        clear_graveyard();
    }
}
