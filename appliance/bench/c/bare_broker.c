/* A broker of Kafka's protocol that only writes and sends: what a client and the kernel leave to win.
 *
 *     bare_broker PORT DIRECTORY
 *
 * It appends what is produced to a file for each partition in DIRECTORY, flushes it before it answers where a topic has
 * flush.messages=1, and sends files as they are.  It checks nothing, recovers nothing, and trusts its clients: topics
 * are gone when it ends, and may be deleted only when their clients are gone.  It speaks one version of each request.
 * Each connection has a thread; it does not gather what several clients produce, so with many another may be faster.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18 };
enum { CREATE_TOPICS = 19, DELETE_TOPICS = 20 };
static const int16_t APIS[][3] = { /* the first and the last version of each */
    {PRODUCE, 3, 3}, {FETCH, 4, 4}, {LIST_OFFSETS, 1, 1}, {METADATA, 4, 4}, {API_VERSIONS, 0, 3},
    {CREATE_TOPICS, 2, 2}, {DELETE_TOPICS, 1, 1}};
enum { NONE = 0, UNKNOWN_TOPIC = 3, TOPIC_EXISTS = 36 };
enum { TOPICS_MAX = 4096, PARTITIONS_MAX = 16, FRAME_BYTES_MAX = 16 << 20 };
enum { REPLY_BYTES_MAX = 1 << 16, TEXT_BYTES_MAX = 249, COUNT_AT = 57, LATEST = -1 };
static const char UNPACED[] = "reno"; /* as an appliance does on one host */

typedef struct {
    uint64_t offset;
    off_t position;
} Batch;

typedef struct {
    int file;
    uint64_t end, shown;      /* offsets; consumers get what is below "shown": "size" bytes of the file */
    off_t written, size;
    Batch *batches;
    size_t count, room;
} Log;

typedef struct {
    char name[TEXT_BYTES_MAX + 1];
    int partitions, flushes;  /* a topic that was deleted has no partitions; its place is not used again */
    pthread_mutex_t mutex;    /* for its logs */
    pthread_cond_t grown;
    Log logs[PARTITIONS_MAX];
} Topic;

typedef struct { /* of a fetch */
    uint64_t partition, offset;
    size_t most;
    Log *log;
    uint64_t shown; /* what the answer says */
    off_t position;
    size_t size;
} Part;

static Topic topics[TOPICS_MAX];
static int topics_count, port;
static pthread_mutex_t creating = PTHREAD_MUTEX_INITIALIZER;
static const char *directory;
/* of each connection */
static __thread int sock;
static __thread const uint8_t *at, *end; /* what is left of a request */
static __thread uint8_t reply[REPLY_BYTES_MAX], *out;
static __thread Topic *touched;          /* what was produced to, and is not shown yet */
static __thread uint32_t touched_logs;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void refuse(const char *what) {
    fprintf(stderr, "bare_broker: %s\n", what);
    exit(1);
}

/* ---- requests and replies */

static uint64_t take(int count) {
    uint64_t value = 0;
    if (end - at < count) refuse("a request ends too early");
    while (count--) value = value << 8 | *at++;
    return value;
}

static const uint8_t *skip(size_t size) {
    const uint8_t *found = at;
    if ((size_t)(end - at) < size) refuse("a request ends too early");
    at += size;
    return found;
}

static void take_text(char text[TEXT_BYTES_MAX + 1]) {
    size_t size = take(2);
    if (size == 0xffff) size = 0;
    if (size > TEXT_BYTES_MAX) refuse("a text is too long");
    memcpy(text, skip(size), size);
    text[size] = 0;
}

static void put(uint64_t value, int count) {
    if (reply + sizeof reply - out < count) refuse("a reply is too long");
    while (count--) *out++ = (uint8_t)(value >> 8 * count);
}

static void put_text(const char *text) {
    put(strlen(text), 2);
    while (*text) put((uint8_t)*text++, 1);
}

static void send_out(int flags) { /* if the client is gone the next recv says so */
    for (uint8_t *from = reply; from < out;) {
        ssize_t sent = send(sock, from, (size_t)(out - from), MSG_NOSIGNAL | flags);
        if (sent < 0) break;
        from += sent;
    }
    out = reply;
}

static void send_file(int file, off_t position, size_t size) {
    while (size) {
        ssize_t sent = sendfile(sock, file, &position, size);
        if (sent <= 0) return;
        size -= (size_t)sent;
    }
}

/* ---- topics */

static Topic *find(const char *name) {
    for (int i = topics_count; i-- > 0;)
        if (topics[i].partitions && !strcmp(topics[i].name, name)) return &topics[i];
    return NULL;
}

static void path_of(char path[4096], const char *name, int partition) {
    snprintf(path, 4096, "%s/%s-%d.log", directory, name, partition);
}

static int create(const char *name, uint64_t partitions, int flushes) { /* the error */
    Topic *topic = &topics[topics_count];
    if (find(name)) return TOPIC_EXISTS;
    if (topics_count == TOPICS_MAX) refuse("too many topics");
    if (!partitions || partitions > PARTITIONS_MAX) refuse("too many partitions, or none");
    strcpy(topic->name, name);
    topic->flushes = flushes;
    pthread_mutex_init(&topic->mutex, NULL);
    pthread_cond_init(&topic->grown, NULL);
    for (int i = 0; i < (int)partitions; i++) {
        char path[4096];
        path_of(path, name, i);
        topic->logs[i].file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        if (topic->logs[i].file < 0) fail(path);
    }
    topic->partitions = (int)partitions;
    topics_count++;
    return NONE;
}

static int delete(const char *name) { /* the error */
    Topic *topic = find(name);
    if (!topic) return UNKNOWN_TOPIC;
    pthread_mutex_lock(&topic->mutex);
    for (int i = 0; i < topic->partitions; i++) {
        char path[4096];
        path_of(path, name, i);
        unlink(path);
        close(topic->logs[i].file);
        free(topic->logs[i].batches);
        topic->logs[i] = (Log){.file = -1};
    }
    topic->partitions = 0;
    pthread_mutex_unlock(&topic->mutex);
    return NONE;
}

static void append(Log *log, uint8_t *batch, size_t size) {
    uint32_t records;
    uint64_t base = htobe64(log->end);
    if (size < COUNT_AT + 4) refuse("a batch is too short");
    memcpy(&records, batch + COUNT_AT, 4);
    memcpy(batch, &base, 8);
    if (log->count == log->room) {
        log->room = log->room ? 2 * log->room : 1024;
        log->batches = realloc(log->batches, log->room * sizeof *log->batches);
        if (!log->batches) fail("realloc");
    }
    log->batches[log->count++] = (Batch){log->end, log->written};
    for (size_t done = 0; done < size;) {
        ssize_t wrote = write(log->file, batch + done, size - done);
        if (wrote < 0) fail("write");
        done += (size_t)wrote;
    }
    log->written += (off_t)size, log->end += ntohl(records);
}

static void show(void) { /* to consumers what is written; before that it is flushed, where the topic wants it */
    if (!touched) return;
    for (Log *log = touched->logs; touched_logs; log++, touched_logs >>= 1) {
        if (!(touched_logs & 1)) continue;
        pthread_mutex_lock(&touched->mutex);
        uint64_t shown = log->end;
        off_t size = log->written;
        pthread_mutex_unlock(&touched->mutex);
        if (touched->flushes && fdatasync(log->file)) fail("fdatasync");
        pthread_mutex_lock(&touched->mutex);
        if (log->shown < shown) log->shown = shown, log->size = size;
        pthread_cond_broadcast(&touched->grown);
        pthread_mutex_unlock(&touched->mutex);
    }
    touched = NULL;
}

static off_t position_of(const Log *log, uint64_t offset) { /* of the batch that has it */
    size_t low = 0, high = log->count;
    if (offset >= log->shown) return log->size;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (log->batches[middle].offset <= offset) low = middle;
        else high = middle;
    }
    return log->batches[low].position;
}

/* ---- each request */

static void api_versions(int version) { /* version 0 has no compact forms */
    put(0, 2);
    put(sizeof APIS / sizeof *APIS + (version >= 3), version >= 3 ? 1 : 4);
    for (size_t i = 0; i < sizeof APIS / sizeof *APIS; i++) {
        for (int j = 0; j < 3; j++) put((uint64_t)APIS[i][j], 2);
        if (version >= 3) put(0, 1);
    }
    if (version >= 1) put(0, 4);
    if (version >= 3) put(0, 1);
}

static void metadata(void) {
    char name[TEXT_BYTES_MAX + 1];
    int32_t count = (int32_t)take(4);
    put(0, 4); /* throttled */
    put(1, 4), put(0, 4), put_text("127.0.0.1"), put((uint64_t)port, 4), put(0xffff, 2);
    put_text("bare"), put(0, 4); /* cluster, controller */
    put(count < 0 ? 0 : (uint64_t)count, 4);
    for (; count > 0; count--) {
        take_text(name);
        Topic *topic = find(name);
        int partitions = topic ? topic->partitions : 0;
        put(topic ? NONE : UNKNOWN_TOPIC, 2), put_text(name), put(0, 1), put((uint64_t)partitions, 4);
        for (int i = 0; i < partitions; i++) {
            put(0, 2), put((uint64_t)i, 4), put(0, 4);  /* its leader */
            put(1, 4), put(0, 4), put(1, 4), put(0, 4); /* replicas, in sync */
        }
    }
}

static void create_topics(void) {
    char name[TEXT_BYTES_MAX + 1], key[TEXT_BYTES_MAX + 1], value[TEXT_BYTES_MAX + 1];
    uint64_t count = take(4);
    pthread_mutex_lock(&creating);
    for (put(0, 4), put(count, 4); count; count--) {
        int flushes = 0;
        take_text(name);
        uint64_t partitions = take(4);
        take(2); /* replicas */
        for (uint64_t assigned = take(4); assigned; assigned--) take(4), skip(4 * take(4));
        for (uint64_t settings = take(4); settings; settings--) {
            take_text(key), take_text(value);
            if (!strcmp(key, "flush.messages") && !strcmp(value, "1")) flushes = 1;
        }
        put_text(name), put((uint64_t)create(name, partitions, flushes), 2), put(0xffff, 2);
    }
    pthread_mutex_unlock(&creating);
}

static void delete_topics(void) {
    char name[TEXT_BYTES_MAX + 1];
    uint64_t count = take(4);
    for (put(0, 4), put(count, 4); count; count--) {
        take_text(name);
        put_text(name), put((uint64_t)delete(name), 2);
    }
}

static void each_partition(void (*answer_one)(Topic *, Log *)) { /* of a request; the topics are named again */
    char name[TEXT_BYTES_MAX + 1];
    uint64_t count = take(4);
    for (put(count, 4); count; count--) {
        take_text(name);
        put_text(name);
        Topic *topic = find(name);
        uint64_t partitions = take(4);
        for (put(partitions, 4); partitions; partitions--) {
            uint64_t partition = take(4);
            Log *log = topic && partition < (uint64_t)topic->partitions ? &topic->logs[partition] : NULL;
            put(partition, 4), put(log ? NONE : UNKNOWN_TOPIC, 2);
            answer_one(topic, log);
        }
    }
}

static void appended(Topic *topic, Log *log) {
    size_t size = take(4);
    uint8_t *batch = (uint8_t *)skip(size);
    uint64_t base = 0;
    if (log) {
        if (touched != topic) show();
        pthread_mutex_lock(&topic->mutex);
        base = log->end;
        append(log, batch, size);
        pthread_mutex_unlock(&topic->mutex);
        touched = topic, touched_logs |= 1u << (log - topic->logs);
    }
    put(base, 8), put(UINT64_MAX, 8);
}

static void bounds(Topic *topic, Log *log) {
    int64_t time = (int64_t)take(8);
    (void)topic;
    put(UINT64_MAX, 8), put(log && time == LATEST ? log->shown : 0, 8);
}

static int produced(void) { /* whether the client wants a reply */
    char name[TEXT_BYTES_MAX + 1];
    take_text(name); /* transaction: none */
    int acks = (int)take(2);
    take(4);
    each_partition(appended);
    put(0, 4);
    return acks != 0;
}

static size_t whole(const Log *log, off_t from, size_t most, int first) { /* bytes of whole batches; of one if "first" */
    off_t limit = from + (off_t)most;
    size_t low = 0, high = log->count;
    if (limit >= log->size) return (size_t)(log->size - from);
    while (low < high) { /* the batches that begin at most there */
        size_t middle = (low + high) / 2;
        if (log->batches[middle].position <= limit) low = middle + 1;
        else high = middle;
    }
    off_t stop = log->batches[low - 1].position;
    if (stop <= from && first) stop = low < log->count ? log->batches[low].position : log->written;
    return stop > from ? (size_t)(stop - from) : 0;
}

static size_t look(Topic *topic, Part *parts, uint64_t count, size_t most) { /* how many bytes are there to fetch */
    size_t bytes = 0;
    for (Part *part = parts; part < parts + count; part++) {
        part->log = topic && part->partition < (uint64_t)topic->partitions ? &topic->logs[part->partition] : NULL;
        part->shown = part->log ? part->log->shown : 0;
        part->position = part->log ? position_of(part->log, part->offset) : 0;
        size_t left = bytes < most ? most - bytes : 0;
        part->size = part->log ? whole(part->log, part->position, part->most < left ? part->most : left, !bytes) : 0;
        bytes += part->size;
    }
    return bytes;
}

static void fetch(void) { /* of one topic */
    char name[TEXT_BYTES_MAX + 1] = "";
    Part parts[PARTITIONS_MAX];
    struct timespec until;
    take(4); /* replica */
    uint64_t wait_ms = take(4);
    take(4); /* at least */
    size_t most = take(4);
    take(1); /* isolation */
    uint64_t asked = take(4), count = 0;
    if (asked > 1) refuse("a fetch is of one topic");
    if (asked) take_text(name), count = take(4);
    if (count > PARTITIONS_MAX) refuse("a fetch has too many partitions");
    for (Part *part = parts; part < parts + count; part++)
        part->partition = take(4), part->offset = take(8), part->most = take(4);

    Topic *topic = find(name);
    size_t bytes = 0;
    clock_gettime(CLOCK_REALTIME, &until); /* what a condition's time is by default */
    until.tv_sec += (time_t)(wait_ms / 1000), until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    if (topic) {
        pthread_mutex_lock(&topic->mutex);
        while (!(bytes = look(topic, parts, count, most)) && topic->partitions)
            if (pthread_cond_timedwait(&topic->grown, &topic->mutex, &until)) break;
        pthread_mutex_unlock(&topic->mutex);
    } else look(topic, parts, count, most);

    uint8_t *size_at = out - 8; /* before it, the correlation */
    put(0, 4), put(asked, 4);
    if (asked) put_text(name), put(count, 4);
    size_t left = count * (4 + 2 + 8 + 8 + 4 + 4) + bytes;
    uint32_t size = htonl((uint32_t)((size_t)(out - size_at) - 4 + left));
    memcpy(size_at, &size, 4);
    for (Part *part = parts; part < parts + count; part++) {
        put(part->partition, 4), put(part->log ? NONE : UNKNOWN_TOPIC, 2);
        put(part->shown, 8), put(part->shown, 8), put(UINT32_MAX, 4), put(part->size, 4);
        if (!part->size) continue;
        send_out(MSG_MORE);
        send_file(part->log->file, part->position, part->size);
    }
}

static void answer(const uint8_t *request, size_t size) {
    at = request, end = request + size;
    int api = (int)take(2), version = (int)take(2), wanted = 1;
    uint64_t correlation = take(4);
    size_t client = take(2);
    skip(client == 0xffff ? 0 : client);
    if (api == FETCH) show(), send_out(0);
    uint8_t *start = out;
    put(0, 4), put(correlation, 4);
    switch (api) {
    case API_VERSIONS: api_versions(version); break;
    case METADATA: metadata(); break;
    case CREATE_TOPICS: create_topics(); break;
    case DELETE_TOPICS: delete_topics(); break;
    case LIST_OFFSETS: take(4), each_partition(bounds); break; /* the replica: a client */
    case PRODUCE: wanted = produced(); break;
    case FETCH: fetch(), send_out(0); return;
    default: refuse("an unknown request");
    }
    uint32_t bytes = htonl((uint32_t)(out - start - 4));
    memcpy(start, &bytes, 4);
    if (!wanted) out = start;
}

static size_t answer_all(const uint8_t *bytes, size_t count) { /* how many bytes of whole requests there were */
    size_t done = 0;
    while (count - done >= 4) {
        uint32_t size;
        memcpy(&size, bytes + done, 4);
        size = ntohl(size);
        if (size > FRAME_BYTES_MAX) refuse("a request is too large");
        if (count - done < 4 + (size_t)size) break;
        answer(bytes + done + 4, size);
        done += 4 + (size_t)size;
        if (out - reply > REPLY_BYTES_MAX / 2) show(), send_out(0);
    }
    show();
    send_out(0);
    return done;
}

static void *serve(void *given) {
    uint8_t *bytes = malloc(FRAME_BYTES_MAX + 4);
    ssize_t got;
    size_t size = 0;
    if (!bytes) fail("malloc");
    sock = (int)(intptr_t)given, out = reply;
    while ((got = recv(sock, bytes + size, FRAME_BYTES_MAX + 4 - size, 0)) > 0) {
        size_t done = answer_all(bytes, size += (size_t)got);
        memmove(bytes, bytes + done, size -= done);
    }
    close(sock);
    free(bytes);
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 3 || (port = atoi(argv[1])) <= 0 || port > 65535)
        return fputs("usage: bare_broker PORT DIRECTORY\n", stderr), 2;
    directory = argv[2];
    address.sin_port = htons((uint16_t)port);
    signal(SIGPIPE, SIG_IGN); /* sendfile to a client that is gone */
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) fail("listen");
    for (;;) {
        pthread_t thread;
        int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (accepted < 0) fail("accept");
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(accepted, IPPROTO_TCP, TCP_CONGESTION, UNPACED, sizeof UNPACED - 1);
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)accepted)) fail("pthread_create");
        pthread_detach(thread);
    }
}
