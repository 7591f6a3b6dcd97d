/* Produces or consumes with librdkafka, and counts and checks every message.
 *
 *     kafka_client produce ADDRESS TOPIC PARTITIONS COUNT SIZE NAME=VALUE...
 *     kafka_client timed   ADDRESS TOPIC RATE COUNT SIZE NAME=VALUE...
 *     kafka_client consume ADDRESS TOPIC PARTITIONS COUNT SIZE NAME=VALUE...
 *     kafka_client delays  ADDRESS TOPIC SKIP COUNT SIZE NAME=VALUE...
 *
 * NAME=VALUE are settings of librdkafka.  Each program prints one line of JSON.  The first 8 bytes of a message are its
 * stamp: its number, or with "timed" the time at which it was due (CLOCK_MONOTONIC, ns).  "check" is the sum of a mix
 * of the stamps, the same for producer and consumer if all messages arrived once.  Numbers of one partition must
 * increase; "disorder" counts those that do not.  Seconds are from the first send to the last acknowledgement, or from
 * the first fetch to the last message, with connections and metadata there before.
 *
 * "timed" sends message k at start + k / RATE whatever happened to those before it, and "delays" counts from that time.
 * So a stall shows in every message that it delayed (no coordinated omission).  The first SKIP messages warm up.
 *
 * The functions of librdkafka are declared here: its binary interface is stable, and Python's wheel has no header.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
struct rd_kafka_metadata;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;
enum { PRODUCER = 0, CONSUMER = 1, COPY = 2, END_OF_PARTITION = -191 };
#define BEGINNING (-2)

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
int rd_kafka_metadata(rd_kafka_t *, int, rd_kafka_topic_t *, const struct rd_kafka_metadata **, int);
void rd_kafka_metadata_destroy(const struct rd_kafka_metadata *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_outq_len(rd_kafka_t *);
const char *rd_kafka_err2str(int);
const char *rd_kafka_version_str(void);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
int rd_kafka_consume_callback_queue(rd_kafka_queue_t *, int, void (*)(rd_kafka_message_t *, void *), void *);

enum { PATIENCE_S = 60, PARTITIONS_MAX = 10000, SIZE_MAX_BYTES = 1 << 20 };
static const int64_t SECOND = 1000000000;
static uint64_t wanted, counted, failed, check, disorder, skip;
static uint64_t last[PARTITIONS_MAX];
static int64_t *delays;
static size_t expected_size;
static int last_error;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "kafka_client: %s: %s\n", what, why);
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static uint64_t mix(uint64_t value) { /* splitmix64; without the addition 0 would count as nothing */
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static int64_t number(const char *text, int64_t most) {
    char *end;
    int64_t value = strtoll(text, &end, 10);
    if (*end || value < 0 || value > most) fail("not a number in range", text);
    return value;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err) failed++, last_error = message->err;
    else counted++;
}

static void on_message(rd_kafka_message_t *message, void *opaque) {
    uint64_t stamp;
    (void)opaque;
    if (message->err == END_OF_PARTITION) return;
    if (message->err) fail("fetch", rd_kafka_err2str(message->err));
    if (message->len != expected_size) fail("a message has another size", "it was changed");
    memcpy(&stamp, message->payload, sizeof stamp);
    if (delays) {
        if (counted >= skip && counted < wanted) delays[counted - skip] = now() - (int64_t)stamp;
    } else {
        if (stamp < last[message->partition]) disorder++;
        last[message->partition] = stamp + 1;
    }
    check += mix(stamp);
    counted++;
}

static rd_kafka_topic_t *connected(int kind, char **arguments, int count, rd_kafka_t **client) {
    char why[512];
    const struct rd_kafka_metadata *metadata;
    rd_kafka_conf_t *settings = rd_kafka_conf_new();
    if (rd_kafka_conf_set(settings, "bootstrap.servers", arguments[2], why, sizeof why)) fail("address", why);
    for (int i = 7; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value) fail("not NAME=VALUE", arguments[i]);
        *value++ = 0;
        if (rd_kafka_conf_set(settings, arguments[i], value, why, sizeof why)) fail(arguments[i], why);
    }
    if (kind == PRODUCER) rd_kafka_conf_set_dr_msg_cb(settings, on_delivery);
    *client = rd_kafka_new(kind, settings, why, sizeof why);
    if (!*client) fail("client", why);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(*client, arguments[3], NULL);
    if (!topic) fail("topic", arguments[3]);
    int error = rd_kafka_metadata(*client, 0, topic, &metadata, PATIENCE_S * 1000);
    if (error) fail("metadata", rd_kafka_err2str(error));
    rd_kafka_metadata_destroy(metadata);
    return topic;
}

static void send_one(rd_kafka_t *client, rd_kafka_topic_t *topic, int32_t partition, char *value, uint64_t stamp) {
    memcpy(value, &stamp, sizeof stamp);
    while (rd_kafka_produce(topic, partition, COPY, value, expected_size, NULL, 0, NULL)) {
        if (errno != ENOBUFS) fail("produce", strerror(errno));
        rd_kafka_poll(client, 10);
    }
    check += mix(stamp);
}

static void finish(rd_kafka_t *client) { /* patient as long as something is acknowledged now and then */
    uint64_t before = counted;
    int64_t deadline = now() + PATIENCE_S * SECOND;
    while (rd_kafka_outq_len(client) && now() < deadline) {
        rd_kafka_poll(client, 100);
        if (counted != before) before = counted, deadline = now() + PATIENCE_S * SECOND;
    }
    if (failed) fail("not delivered", rd_kafka_err2str(last_error));
}

static int64_t produce(rd_kafka_t *client, rd_kafka_topic_t *topic, int64_t partitions, int64_t count, char *value) {
    int64_t start = now();
    for (int64_t i = 0; i < count; i++) {
        send_one(client, topic, (int32_t)(i % partitions), value, (uint64_t)i);
        if (!(i & 1023)) rd_kafka_poll(client, 0);
    }
    finish(client);
    return now() - start;
}

static int64_t timed(rd_kafka_t *client, rd_kafka_topic_t *topic, int64_t rate, int64_t count, char *value) {
    int64_t start = now() + SECOND / 10;
    prctl(PR_SET_TIMERSLACK, 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t due = start + (int64_t)((__int128)i * SECOND / rate);
        if (now() < due) {
            struct timespec time = {due / SECOND, due % SECOND};
            rd_kafka_poll(client, 0);
            while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) continue;
        }
        send_one(client, topic, 0, value, (uint64_t)due);
    }
    finish(client);
    return now() - start;
}

static int64_t consume(rd_kafka_t *client, rd_kafka_topic_t *topic, int64_t partitions) {
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    int64_t start = now(), arrived = start;
    for (int32_t i = 0; i < partitions; i++)
        if (rd_kafka_consume_start_queue(topic, i, BEGINNING, queue)) fail("consume", strerror(errno));
    while (counted < wanted && now() < arrived + PATIENCE_S * SECOND)
        if (rd_kafka_consume_callback_queue(queue, 1000, on_message, NULL) > 0) arrived = now();
    return arrived - start;
}

static int ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static double percentile(double which) { /* in ms */
    uint64_t of = wanted - skip, at = (uint64_t)(of * which / 100);
    return delays[at < of ? at : of - 1] / 1e6;
}

int main(int argc, char **argv) {
    rd_kafka_t *client;
    int64_t took;
    static char value[SIZE_MAX_BYTES];
    if (argc < 7) fail("usage", "kafka_client produce|timed|consume|delays ADDRESS TOPIC N COUNT SIZE NAME=VALUE...");
    int producing = !strcmp(argv[1], "produce"), paced = !strcmp(argv[1], "timed"), delayed = !strcmp(argv[1], "delays");
    if (!producing && !paced && !delayed && strcmp(argv[1], "consume")) fail("no such program", argv[1]);
    int64_t given = number(argv[4], producing || !(paced || delayed) ? PARTITIONS_MAX : SECOND);
    wanted = (uint64_t)number(argv[5], SECOND);
    expected_size = (size_t)number(argv[6], SIZE_MAX_BYTES);
    if (expected_size < 8) fail("a message has 8 bytes or more", argv[6]);
    if (delayed) {
        skip = (uint64_t)given;
        if (skip >= wanted) fail("nothing to count", argv[4]);
        delays = malloc((wanted - skip) * sizeof *delays);
        if (!delays) fail("delays", "no memory");
    }
    double cpu;
    rd_kafka_topic_t *topic = connected(producing || paced ? PRODUCER : CONSUMER, argv, argc, &client);
    if (delayed) puts("ready"), fflush(stdout);
    cpu = cpu_s();
    took = producing ? produce(client, topic, given, (int64_t)wanted, value)
        : paced      ? timed(client, topic, given, (int64_t)wanted, value)
                     : consume(client, topic, delayed ? 1 : given);
    printf("{\"count\": %" PRIu64 ", \"seconds\": %.6f, \"client_cpu_s\": %.3f, \"check\": \"%016" PRIx64
           "\", \"disorder\": %" PRIu64 ", \"version\": \"%s\"", counted, took / 1e9, cpu_s() - cpu, check, disorder,
           rd_kafka_version_str());
    if (delayed && counted == wanted) {
        qsort(delays, wanted - skip, sizeof *delays, ascending);
        printf(", \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_ms\": %.4f", percentile(50),
               percentile(99), percentile(99.9), percentile(100));
    }
    puts("}");
    fflush(stdout);
    _Exit(0); /* nothing to tidy up that matters: the broker is not to wait for this client's threads */
}
