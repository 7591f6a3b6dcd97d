/* Fetches one partition and looks at nothing but the headers of its batches: the least that a consumer can do.
 *
 *     fetch_client HOST PORT TOPIC COUNT BYTES_MAX
 *
 * One request of Kafka's protocol is in flight at a time (Fetch, version 4).  Prints a line of JSON as kafka_client.c
 * does: "count" are the records that the batches claim, "check" is the sum of their checksums, "disorder" counts
 * batches that do not begin after the one before.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { HEADER = 61, NAME_MAX_BYTES = 249, BYTES_LIMIT = 64 << 20, ROOM_BESIDE = 1 << 16 };
enum { FETCH = 1, VERSION = 4, WAIT_MS = 500 };
static uint8_t *reply;

static void fail(const char *what) {
    fprintf(stderr, "fetch_client: %s\n", what);
    exit(1);
}

static int64_t number(const char *text, int64_t most) {
    char *end;
    int64_t value = strtoll(text, &end, 10);
    if (*end || value < 1 || value > most) fail("usage: fetch_client HOST PORT TOPIC COUNT BYTES_MAX");
    return value;
}

static uint8_t *put(uint8_t *at, uint64_t value, int bytes) {
    while (bytes--) *at++ = (uint8_t)(value >> 8 * bytes);
    return at;
}

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

static void ask(int sock, const char *topic, uint64_t offset, uint64_t bytes_max) {
    static uint8_t request[512];
    size_t name = strlen(topic);
    uint8_t *at = put(put(put(request + 4, FETCH, 2), VERSION, 2), 0, 4);
    at = put(at, 0xffff, 2);                                     /* no client id */
    at = put(put(put(at, 0xffffffff, 4), WAIT_MS, 4), 1, 4);     /* no replica, at least one byte */
    at = put(put(put(at, bytes_max, 4), 0, 1), 1, 4);            /* read uncommitted, one topic */
    at = put(at, name, 2);
    memcpy(at, topic, name);
    at = put(put(put(put(at + name, 1, 4), 0, 4), offset, 8), bytes_max, 4); /* one partition */
    put(request, (uint64_t)(at - request - 4), 4);
    if (send(sock, request, (size_t)(at - request), MSG_NOSIGNAL) != at - request) fail("send");
}

static void receive(int sock, uint8_t *into, size_t count) {
    while (count) {
        ssize_t got = recv(sock, into, count, 0);
        if (got <= 0) fail("the broker closed the connection");
        into += got, count -= (size_t)got;
    }
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 6 || strlen(argv[3]) > NAME_MAX_BYTES) fail("usage: fetch_client HOST PORT TOPIC COUNT BYTES_MAX");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(argv[2], 65535))};
    uint64_t wanted = (uint64_t)number(argv[4], 1000000000), bytes_max = (uint64_t)number(argv[5], BYTES_LIMIT);
    uint64_t offset = 0, count = 0, check = 0, disorder = 0;
    int one = 1, sock = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) fail("not an IPv4 address");
    if (connect(sock, (void *)&address, sizeof address)) fail("cannot connect");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    reply = malloc(BYTES_LIMIT + ROOM_BESIDE);
    if (!reply) fail("no memory");
    double start = now(), cpu = cpu_s(), deadline = start + 60;
    while (count < wanted) {
        if (now() > deadline) fail("no more messages within 60 s");
        ask(sock, argv[3], offset, bytes_max);
        receive(sock, reply, 4);
        size_t size = get(reply, 4);
        if (size > BYTES_LIMIT + ROOM_BESIDE) fail("a reply of no sensible size");
        receive(sock, reply, size);
        uint8_t *at = reply + 12, *end = reply + size; /* correlation, throttle, topics */
        at += 2 + get(at, 2) + 4 + 4;                  /* its name, partitions, partition */
        if (get(at, 2)) fail("the broker answers with an error");
        at += 2 + 8 + 8;
        uint32_t aborted = (uint32_t)get(at, 4);
        at += 4 + (aborted == UINT32_MAX ? 0 : 16 * (size_t)aborted);
        for (at += 4; at + HEADER <= end; at += 12 + get(at + 8, 4)) {
            if (at + 12 + get(at + 8, 4) > end) break; /* the rest of this batch did not fit */
            uint64_t base = get(at, 8);
            if (count && base < offset) disorder++;
            offset = base + get(at + 23, 4) + 1;
            count += get(at + 57, 4);
            check += get(at + 17, 4);
        }
    }
    printf("{\"count\": %" PRIu64 ", \"seconds\": %.6f, \"client_cpu_s\": %.3f, \"check\": \"%016" PRIx64
           "\", \"disorder\": %" PRIu64 "}\n", count, now() - start, cpu_s() - cpu, check, disorder);
    return 0;
}
